"use strict";
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const figures = read("figures");
const dark = matchMedia("(prefers-color-scheme: dark)");
const titles = { stages: "stage", seconds: "seconds in stages" };

// Plotly knows no themes of a browser's: texts and lines take the page's colours.
function themed(layout) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line"), automargin: true };
  const shapes = (layout.shapes || []).map((shape) => ({ ...shape, line: { ...shape.line, color: colour("--quiet") } }));
  return {
    ...layout,
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 12, color: colour("--quiet") },
    xaxis: { ...layout.xaxis, ...axis },
    yaxis: { ...layout.yaxis, ...axis },
    shapes,
  };
}

// The mean of all values so far, of which older ones count less and less.
function smoothed(values, share) {
  let sum = 0;
  let weight = 0;
  return values.map((value) => {
    sum = share * sum + value;
    weight = share * weight + 1;
    return sum / weight;
  });
}

// A smoothed line lies upon its own values, which stay as a faint line.
function smooth(trace, share) {
  const isBand = trace.meta?.seeds && !trace.meta.mean;
  if (!share || !trace.meta || !trace.mode.includes("lines")) return [trace];
  const soft = { ...trace, y: smoothed(trace.y, share), error_y: undefined };
  if (isBand) return [soft];
  return [
    { ...trace, opacity: 0.25, error_y: undefined, hoverinfo: "skip", hovertemplate: undefined, showlegend: false },
    { ...soft, mode: "lines", hovertemplate: soft.hovertemplate.replace("<extra>", " smoothed<extra>") },
  ];
}

function over(kind, figure, isCurve, share, seeds) {
  if (!isCurve) return figure;
  const grouped = new Set(figure.data.flatMap((trace) => trace.meta?.replaces ?? []));
  const isShown = (trace) => (trace.meta?.seeds ? seeds === "mean" : !(seeds === "mean" && grouped.has(trace.meta?.run)));
  const data = figure.data
    .filter(isShown)
    .map((trace) => (trace.meta ? { ...trace, visible: true, x: trace.meta[kind] } : trace))
    .flatMap((trace) => smooth(trace, share));
  const xaxis = { ...figure.layout.xaxis, title: titles[kind] ? { text: titles[kind] } : figure.layout.xaxis.title };
  return { data, layout: { ...figure.layout, xaxis } };
}

function draw() {
  const chosen = (id, otherwise) => document.getElementById(id)?.value ?? otherwise;
  for (const [id, figure] of Object.entries(figures)) {
    const place = document.getElementById(id);
    const shown = over(chosen("over", "steps"), figure, place.classList.contains("curve"), Number(chosen("smoothing", 0)), chosen("seeds", "each"));
    Plotly.react(place, shown.data, themed(shown.layout), { responsive: true, displaylogo: false, displayModeBar: false });
  }
}

function play(player, clip) {
  const [image, button, slider] = ["img", "button", "input"].map((name) => player.querySelector(name));
  let timer = null;
  const show = (at) => {
    slider.value = at;
    image.src = clip.urls[at];
  };
  const pause = () => {
    clearInterval(timer);
    timer = null;
    button.textContent = "Play";
  };
  const start = () => {
    timer = setInterval(() => show((Number(slider.value) + 1) % clip.urls.length), 1000 * clip.seconds);
    button.textContent = "Pause";
  };
  slider.max = clip.urls.length - 1;
  slider.addEventListener("input", () => {
    pause();
    show(Number(slider.value));
  });
  button.addEventListener("click", () => (timer === null ? start() : pause()));
  show(0);
  start();
}

draw();
dark.addEventListener("change", draw);
for (const id of ["over", "smoothing", "seeds"]) document.getElementById(id)?.addEventListener("change", draw);
const clips = read("clips");
for (const player of document.querySelectorAll(".player")) play(player, clips[player.dataset.clip]);

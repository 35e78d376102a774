"use strict";
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const figures = read("figures");
const dark = matchMedia("(prefers-color-scheme: dark)");
const titles = { steps: "environment steps", stages: "stage", seconds: "seconds in stages" };

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

function over(kind, figure, isCurve) {
  if (!isCurve) return figure;
  const data = figure.data.map((trace) => (trace.meta ? { ...trace, x: trace.meta[kind] } : trace));
  const xaxis = { ...figure.layout.xaxis, title: { text: titles[kind] } };
  return { data, layout: { ...figure.layout, xaxis } };
}

function draw() {
  const choice = document.getElementById("over");
  for (const [id, figure] of Object.entries(figures)) {
    const place = document.getElementById(id);
    const shown = over(choice ? choice.value : "steps", figure, place.classList.contains("curve"));
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
document.getElementById("over")?.addEventListener("change", draw);
const clips = read("clips");
for (const player of document.querySelectorAll(".player")) play(player, clips[player.dataset.clip]);

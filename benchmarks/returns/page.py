"""Writes the part of docs/benchmarks.md on returns, and its curves, from the stored trials of `returns.py`."""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import bootstrap, trim_mean

from benchmarks.board.plots import NOBODYS, OURS, THEIRS, tick_step
from benchmarks.returns.rows import ROWS, Row, expected_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

Trials = dict[str, list[dict[str, Any]]]
"""A row's stored trials by the contender's title."""

HEAD = """## Returns

`make returns` writes this part. A trial is one contender with one seed; peers run their own scripts, at the settings
that they publish, in the same versions of the environments. Returns are the environment's own, of the episodes that
ended in a part of the training, as acted. Every seed is drawn, and the thick line is the interquartile mean (a quarter
of the seeds left out at each end: of five one, of three none). Intervals are 95 % by bootstrap over the seeds: of so
few they say little. A ring marks where a run was interrupted; it was resumed from its last commit. What has no figure
has not been run. *Missed* says where Penstock is below its peer, a goal or random actions. Offline rows have scores of
ten greedy episodes after each part: 0 is the mean return of the data set of random actions, and 100 that of the
expert's, both made here, so they are not D4RL's. Times are not compared here, since other work ran beside the trials:
rates are above.
"""
COLOURS = (OURS, "#4c9a6a", "#b07cc6", "#c98b2b", "#4a4a4a")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 880, 300, 70, 290, 14, 44


def stored_trials(folder: Path) -> dict[str, Trials]:
    """Read the trials of all rows, in the order of `ROWS`."""
    found: dict[str, Trials] = {}
    for name, row in ROWS.items():
        trials: Trials = {}
        for contender in row.contenders:
            paths = sorted((folder / name).glob(f"{contender.slug}-[0-9]*.json"))
            if paths:
                results = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
                trials[contender.title] = [scored(each) for each in results] if row.dataset else results
        if trials:
            found[name] = trials
    return found


def scored(result: dict[str, Any]) -> dict[str, Any]:
    """Return an offline trial with scores in place of returns: 0 at random actions, 100 at the expert."""
    lowest, highest = result["scale"]
    scores = [None if value is None else 100.0 * (value - lowest) / (highest - lowest) for value in result["returns"]]
    return {**result, "returns": scores}


def returns_part(folder: Path) -> Iterator[tuple[str | None, str]]:
    """Yield pictures by name, and sections of the page under None; nothing if there is no trial."""
    found = stored_trials(folder)
    if not found:
        return
    yield None, HEAD
    for name, trials in found.items():
        yield f"docs/images/returns-{name}.svg", curves(ROWS[name], trials, ROWS[name].measured)
        for key, what in ROWS[name].measures:
            if is_curve(measured := series(trials, key)):
                yield f"docs/images/returns-{picture_of(name, key)}.svg", curves(ROWS[name], measured, what)
        yield None, section(name, ROWS[name], trials)
    if missing := missing_rows(found):
        yield None, missing


def series(trials: Trials, key: str) -> Trials:
    """Return the trials that have another series, with it in place of their returns."""
    found = {
        title: [{**one, "returns": one[key]} for one in results if key in one] for title, results in trials.items()
    }
    return {title: results for title, results in found.items() if results}


def is_curve(trials: Trials) -> bool:
    """Return whether any trial has more than one point."""
    return any(sum(value is not None for value in one["returns"]) > 1 for each in trials.values() for one in each)


def picture_of(name: str, key: str) -> str:
    return f"{name}-{key.replace('_', '-')}"


def missing_rows(found: dict[str, Trials]) -> str:
    """Return a table of the rows of which trials are missing, with the command and the hours that they take."""
    lines = []
    for name, row in ROWS.items():
        there = {title: len(results) for title, results in found.get(name, {}).items()}
        left = sum(max(0, row.seeds - there.get(each.title, 0)) for each in row.contenders)
        if left:
            command = f'`make returns ARGS="--only {name}"`'
            lines.append(
                f"| {row.title} | {left} of {row.seeds * len(row.contenders)} | {hours_of(row, there)} | {command} |"
            )
    if not lines:
        return ""
    head = [
        "### Not run yet",
        "",
        "| row | trials missing | hours of one core, estimated | command |",
        "|---|---|---|---|",
    ]
    return "\n".join([*head, *lines]) + "\n"


def hours_of(row: Row, there: dict[str, int]) -> str:
    """Return the estimated hours of the trials that a row lacks, given how many each contender has."""
    seconds = sum(max(0, row.seeds - there.get(each.title, 0)) * expected_seconds(row, each) for each in row.contenders)
    return f"{seconds / 3600:.1f}"


def section(name: str, row: Row, trials: Trials) -> str:
    """Return a row's table: the last part of training, at a fifth of it, and each seed."""
    lines = [f"### {row.title}", "", f"![{row.title}: {row.measured}](images/returns-{name}.svg)", ""]
    what = f"In the first table: {row.number}; those of a part are its last version's. " if row.number else ""
    lines += [f"{row.env_steps:,} {row.unit}. {what}Goal: {row.goal}.{scale_of(trials)}", ""]
    lines += [*table(row, trials), "", verdict(row, trials)]
    for key, what in row.measures:
        if measured := series(trials, key):
            picture = f"![{row.title}: {what}](images/returns-{picture_of(name, key)}.svg)"
            lines += ["", f"{what[0].upper()}{what[1:]}:", "", *([picture, ""] if is_curve(measured) else [])]
            lines += table(row, measured)
    for title, results in trials.items():
        for one in results:
            if stopped := one.get("interruptions"):
                at = ", ".join(f"{steps:,}" for steps in stopped)
                lines.append(f"\n{title}, seed {one['seed']}: interrupted with {at} {row.unit} committed, and resumed.")
    commands = {f"`{results[0]['command']}`" for results in trials.values()}
    lines += ["", about(row, trials)]
    lines += [
        "",
        "Commands of a first seed: " + "; ".join(sorted(commands)) + f'. `make returns ARGS="--only {name}"`.',
    ]
    return "\n".join(lines) + "\n"


def verdict(row: Row, trials: Trials) -> str:
    """Return where Penstock's contenders are below their peer's figure, the row's least, or random actions."""
    below = losses(row, trials)
    said = f"**Missed**: {'; '.join(below)}." if below else "Nothing of Penstock's is below what it is compared with."
    lacking = [each.title for each in row.contenders if each.kind == "peer" and each.title not in trials]
    return f"{said} Not compared, since it has not run: {'; '.join(lacking)}." if lacking else said


def losses(row: Row, trials: Trials) -> list[str]:
    """Return what is below what it is compared with, in words."""
    below = []
    kinds = {each.title: each.kind for each in row.contenders}
    ours = [title for title in trials if kinds[title] not in ("peer", "baseline")]
    random = next((title for title in trials if kinds[title] == "baseline" and title.startswith("random")), None)
    for own in ours:
        peers = [title for title in trials if kinds[title] == "peer"]
        alike = [title for title in peers if title.startswith(f"{own} of ")] or peers
        for part, when in ((row.parts // 5 - 1, "at a fifth"), (row.parts - 1, "at the end")):
            mine = column(trials[own], part)
            for peer in alike:
                theirs = column(trials[peer], part)
                if len(mine) and len(theirs) and mean_of(mine) < mean_of(theirs) - row.margin:
                    below.append(f"{own} {when}, {middle(mine)} against {middle(theirs)} of {peer}")
        last = column(trials[own], row.parts - 1)
        if row.least is not None and len(last) and mean_of(last) < row.least:
            below.append(f"{own} at the end, {middle(last)} of {row.least:g}")
        if random and len(last) and mean_of(last) <= mean_of(column(trials[random], row.parts - 1)):
            below.append(f"{own} at the end, {middle(last)}, is no better than random actions")
    return below


def about(row: Row, trials: Trials) -> str:
    """Return when and where the trials ran, and whose steps are others than the row's."""
    every = [one for results in trials.values() for one in results]
    dates = sorted({one["date"] for one in every if "date" in one})
    processors = sorted({one["about"]["processor"] for one in every if "about" in one})
    trained = {each.title for each in row.contenders if each.kind != "baseline"}
    steps = {title: results[0].get("env_steps") for title, results in trials.items() if title in trained}
    other = [f"{title}: {count:,}" for title, count in steps.items() if count not in (None, row.env_steps)]
    when = " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else ""
    text = f"Trials of {when}, on {' and '.join(processors)}." if dates else ""
    return f"{text} Whole rounds alone are learned: {'; '.join(other)} {row.unit}.".strip() if other else text


def table(row: Row, trials: Trials) -> list[str]:
    """Return the lines of a table of one series."""
    fifth, parts = row.env_steps // 5, row.parts
    lines = [
        f"| | at {fifth:,} {row.unit} | the last {row.env_steps // parts:,} | 95 % | each seed |",
        "|---|---|---|---|---|",
    ]
    for title, results in trials.items():
        last, early = column(results, parts - 1), column(results, parts // 5 - 1)
        each = " ".join(f"{value:,.1f}" for value in last)
        lines.append(f"| {title} | {middle(early)} | {middle(last)} | {interval(last)} | {each} |")
    return lines


def scale_of(trials: Trials) -> str:
    """Return the sentence on the returns between which scores are; none for a row of returns."""
    ends = {tuple(result["scale"]) for results in trials.values() for result in results if "scale" in result}
    said = [f"{lowest:,.1f} and {highest:,.1f}" for lowest, highest in sorted(ends)]
    return f" Scores 0 and 100 are returns of {', or '.join(said)}." if said else ""


def column(results: Sequence[dict[str, Any]], part: int) -> NDArray[np.float64]:
    """Return each seed's mean return in one part of the training, where episodes ended in it."""
    found = [result["returns"][part] for result in results]
    return np.array([value for value in found if value is not None], np.float64)


def mean_of(values: NDArray[np.float64]) -> float:
    """Return the interquartile mean; of three seeds that is their mean."""
    return float(trim_mean(values, 0.25))


def middle(values: NDArray[np.float64]) -> str:
    return f"{mean_of(values):,.1f}" if len(values) else "-"


def interval(values: NDArray[np.float64]) -> str:
    """Return the interval of the interquartile mean."""
    if len(values) < 3 or np.ptp(values) == 0.0:
        return "-"
    found = bootstrap(
        (values,),
        lambda drawn, axis: trim_mean(drawn, 0.25, axis=axis),
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return f"{found.low:,.1f} to {found.high:,.1f}"


def interruptions(result: dict[str, Any], row: Row, place: Callable[[float, float], str]) -> Iterator[tuple[int, str]]:
    """Yield the steps of each interruption of a trial, and its point on the trial's line."""
    known = {at: value for at, value in enumerate(result["returns"]) if value is not None}
    for steps in result.get("interruptions", ()):
        at = steps / result["env_steps"] * row.parts - row.point
        yield steps, place(at, float(np.interp(at, list(known), list(known.values()))))


def curves(row: Row, trials: Trials, what: str) -> str:
    """Return an SVG picture with a line for each seed and a thick one for the interquartile mean of each contender."""
    everything = [
        value for results in trials.values() for one in results for value in one["returns"] if value is not None
    ]
    low, high = min(everything), max(everything)
    step = tick_step(max(high - low, 1e-9))
    low, high = np.floor(low / step) * step, np.ceil(high / step) * step

    def place(part: float, value: float) -> str:
        x = LEFT + (WIDTH - LEFT - RIGHT) * (part + row.point) / row.parts
        return f"{x:.1f},{TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low):.1f}"

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"',
        'font-family="sans-serif" font-size="13" role="img">',
        f"<title>{escape(row.title)}: {escape(what)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    for tick in np.arange(low, high + step / 2, step):
        y = place(0, tick).split(",")[1]
        lines.append(f'<line x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}" stroke="#e3e5e8"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{float(y) + 4:.1f}" text-anchor="end" fill="#555">{tick:,g}</text>')
    for part in (0, row.parts // 2, row.parts):
        x, steps = LEFT + (WIDTH - LEFT - RIGHT) * part / row.parts, row.env_steps * part // row.parts
        lines.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" fill="#555">{steps:,}</text>')
    lines.append(f'<text x="{LEFT}" y="{HEIGHT - 8}" fill="#555">{row.unit}</text>')
    kinds = {each.title: each.kind for each in row.contenders}
    ours = [title for title in trials if kinds[title] in ("penstock", "replay", "self-play")]
    colours = dict(zip(ours, (*COLOURS, *[OURS] * len(ours)), strict=False))
    for number, (title, results) in enumerate(trials.items()):
        kind = kinds[title]
        # Where there are peers of several algorithms, each has the colour of ours, in dots.
        alike = [colours[own] for own in ours if kind == "peer" and title.startswith(f"{own} of ")]
        colour = colours.get(title) or (alike[0] if alike else THEIRS if kind == "peer" else NOBODYS)
        dash = ' stroke-dasharray="5 4"' if kind == "baseline" else ' stroke-dasharray="2 3"' if alike else ""
        for one in results:
            points = " ".join(place(at, value) for at, value in enumerate(one["returns"]) if value is not None)
            lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-opacity="0.35"{dash}/>')
        means = [(at, column(results, at)) for at in range(row.parts)]
        points = " ".join(place(at, float(trim_mean(values, 0.25))) for at, values in means if len(values))
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="3"{dash}/>')
        lines += [
            f'<circle cx="{x}" cy="{y}" r="4" fill="#ffffff" stroke="{colour}" stroke-width="2">'
            f"<title>interrupted at {steps:,} {row.unit}</title></circle>"
            for one in results
            for steps, (x, y) in ((steps, point.split(",")) for steps, point in interruptions(one, row, place))
        ]
        x, y = WIDTH - RIGHT + 14, TOP + 16 + 20 * number
        stroke = f'stroke="{colour}" stroke-width="3"{dash}'
        lines.append(f'<line x1="{x}" y1="{y - 4}" x2="{x + 26}" y2="{y - 4}" {stroke}/>')
        label = f"{escape(title)} ({len(results)} seeds)"
        lines.append(f'<text x="{x + 34}" y="{y}" fill="#222">{label}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"

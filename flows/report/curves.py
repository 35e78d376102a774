"""Curves of one run or several on the same axes: Plotly figures over steps, stages or seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from penstock.flows.display.summary import steps_axis, steps_rate
from penstock.flows.report.seeds import identical_runs, seed_groups
from penstock.tasks.analysis.history import stored_lags

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from penstock.storage.runs.timings import ProcessUsage
    from penstock.tasks.analysis.history import History, Stage

COLOURS = ("#3f7fd4", "#e0813a", "#2f9f74", "#c4527c", "#8b6fd0", "#a8912c", "#3fa2b4", "#8a8f98")
_BOUND = "bound"
_TITLES = {"kl": "KL divergence"}
_DASHES = ("solid", "dot", "dash", "dashdot")
_IN_RETURN = "episode_return"
_FIRST_METRICS = ("episode_length", "policy_loss", "value_loss", "entropy", "kl", "clip_fraction")
_STAGE_PARTS = ("admission", "gather", "roles", "evaluate")

_MOST_SPREADS = 60
_ROOM = 0.06
"""Share of the lines' height that is left free above and below them."""
_DUPLICATE_DASH = "8px,8px"
_MOST_MARKERS = 200

HEIGHT_PIXELS = 270


@dataclass(frozen=True, slots=True)
class Panel:
    """A figure with its title, unit and note."""

    title: str
    figure: go.Figure
    unit: str
    note: str


@dataclass(slots=True)
class _Axes:
    """Builder of a panel."""

    histories: Sequence[History]
    title: str
    unit: str = ""
    tick_format: str = ""
    """Number format of d3."""
    note: str = ""
    range: list[float] | None = None
    tick_step: float | None = None
    lines: list[str] = field(default_factory=list)
    """Names of the lines of each run."""
    traces: list[go.Scatter] = field(default_factory=list)
    by_line: dict[str, dict[str, dict[int, float]]] = field(default_factory=dict)
    """Values by line, run and stage."""
    identical: Mapping[str, tuple[str, int]] = field(init=False)
    """Runs whose commits another one has, as of `identical_runs`."""

    def __post_init__(self) -> None:
        self.identical = identical_runs(self.histories)

    def line(
        self, history: History, name: str, values: Mapping[int, float], *, dots: bool = False, spread: Any = None
    ) -> None:
        """Add a line of values by index into the history's stages. The page's choice of x is in `meta`."""
        if not values:
            return
        if name not in self.lines:
            self.lines.append(name)
        place = self.lines.index(name)
        run = [one.run.name for one in self.histories].index(history.run.name)
        several = len(self.histories) > 1
        x = _places(history, values)
        by_stage = {history.stages[at].index: float(value) for at, value in values.items()}
        self.by_line.setdefault(name, {})[history.run.name] = by_stage
        dash = _DASHES[place % len(_DASHES)] if several or name == _BOUND else "solid"
        if history.run.name in self.identical and dash == "solid":
            dash = _DUPLICATE_DASH  # the colour of the line below shows through the gaps
        self.traces.append(
            go.Scatter(
                x=x["steps"],
                y=list(values.values()),
                mode="markers" if dots else "lines+markers" if len(values) <= _MOST_MARKERS else "lines",
                name=escape(f"{history.run.name}: {name}" if several else name),
                line={
                    "color": COLOURS[(run if several else place) % len(COLOURS)],
                    "dash": dash,
                    "width": 2,
                },
                marker={"size": 7 if dots else 4, "symbol": "diamond" if dots else "circle"},
                error_y=None if several else spread,  # bars of several runs hide each other
                meta={**x, "run": history.run.name},
                showlegend=not several,
                text=[f"stage {stage}" for stage in x["stages"]],
                hovertemplate="%{y} (%{text})<extra>%{fullData.name}</extra>",
            )
        )

    def panel(self) -> Panel:
        """Return the panel. With several runs, colours distinguish runs and dashes distinguish lines."""
        traces = [*self.traces, *self._seed_traces()]
        if len(self.histories) > 1 and len(self.lines) > 1:
            traces += [
                go.Scatter(
                    x=[None],
                    y=[None],
                    mode="lines",
                    name=escape(name),
                    line={"color": COLOURS[-1], "dash": _DASHES[place % len(_DASHES)]},
                )
                for place, name in enumerate(self.lines)
            ]
        figure = go.Figure(traces)
        figure.update_layout(
            template="none",
            height=HEIGHT_PIXELS,
            margin={"l": 44, "r": 14, "t": 10, "b": 42},
            hovermode="closest",
            showlegend=len(self.lines) > 1,
            legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
            xaxis={"title": {"text": steps_axis(one.is_replay for one in self.histories)}},
            yaxis={"tickformat": self.tick_format, "range": self.range or self._room(), "dtick": self.tick_step},
        )
        return Panel(self.title, figure, self.unit, self.note)

    def _room(self) -> list[float] | None:
        """Return the lines' range where bars would widen it: the bars are cut, and the lines are not flattened."""
        if all(trace.error_y.array is None for trace in self.traces):
            return None
        values = [value for runs in self.by_line.values() for by_stage in runs.values() for value in by_stage.values()]
        room = _ROOM * (max(values) - min(values)) or 1.0
        return [min(values) - room, max(values) + room]

    def _seed_traces(self) -> Iterator[go.Scatter]:
        """Yield mean and band of runs that differ by seed alone; the page shows them in place of the runs."""
        for group in seed_groups(self.histories):
            runs = [history.run.name for history in group]
            replaced = [*runs, *(name for name, (other, _) in self.identical.items() if other in runs)]
            first = [one.run.name for one in self.histories].index(runs[0])
            colour = COLOURS[first % len(COLOURS)]
            for place, line in enumerate(self.lines):
                of_runs = [self.by_line[line].get(run, {}) for run in runs]
                stages = sorted(set.intersection(*map(set, of_runs)))
                if not stages:
                    continue
                at = {stage.index: at for at, stage in enumerate(group[0].stages)}
                x = _places(group[0], {at[stage]: 0.0 for stage in stages})
                values = [[by_stage[stage] for by_stage in of_runs] for stage in stages]
                name = escape(f"{line}, mean of {len(runs)} seeds: {', '.join(runs)}")
                band = {
                    "mode": "lines",
                    "line": {"width": 0},
                    "hoverinfo": "skip",
                    "showlegend": False,
                    "visible": False,
                }
                meta = {**x, "seeds": runs, "replaces": replaced}
                yield go.Scatter(x=x["steps"], y=[min(each) for each in values], meta=meta, name=name, **band)
                yield go.Scatter(
                    x=x["steps"],
                    y=[max(each) for each in values],
                    meta=meta,
                    name=name,
                    fill="tonexty",
                    fillcolor=f"{colour}33",
                    **band,
                )
                yield go.Scatter(
                    x=x["steps"],
                    y=[sum(each) / len(each) for each in values],
                    mode="lines",
                    name=name,
                    line={"color": colour, "width": 2.5, "dash": _DASHES[place % len(_DASHES)]},
                    meta={**meta, "mean": True},
                    showlegend=False,
                    visible=False,
                    text=[f"stage {stage}" for stage in stages],
                    hovertemplate="%{y} (%{text})<extra>%{fullData.name}</extra>",
                )


def curve_panels(histories: Sequence[History]) -> list[Panel]:
    """Return all panels that have data."""
    found = [_returns(histories), _throughput(histories), _waiting(histories), _lag(histories)]
    found += [_bytes(histories), _seconds(histories), *_usage(histories), *_metrics(histories)]
    return [axes.panel() for axes in found if axes.traces]


def _returns(histories: Sequence[History]) -> _Axes:
    axes = _Axes(
        histories,
        "Return",
        "of an episode",
        note="Faint bars, of a single run: from the least to the greatest of an evaluation, cut at the edge.",
    )
    for history in histories:
        axes.line(history, "while acting", _metric(history, _IN_RETURN))
        found = _by_stage(history, lambda stage: stage.commit.evaluation)
        means = {at: float(one["mean_return"]) for at, one in found.items()}
        axes.line(history, "evaluation, greedy", means, spread=_spread(found.values()))
        versions = {stage.commit.version: at for at, stage in enumerate(history.stages)}
        concurrent = {versions[one["version"]]: one for one in history.evaluations if one["version"] in versions}
        means = {at: float(one["mean_return"]) for at, one in concurrent.items()}
        axes.line(
            history, "evaluated concurrently with training", means, dots=True, spread=_spread(concurrent.values())
        )
    return axes


def _spread(evaluations: Iterable[Mapping[str, Any]]) -> dict[str, object] | None:
    """Return error bars for Plotly; None where they would hide each other."""
    evaluations = list(evaluations)
    if len(evaluations) > _MOST_SPREADS:
        return None
    return {
        "type": "data",
        "symmetric": False,
        "array": [one.get("max_return", one["mean_return"]) - one["mean_return"] for one in evaluations],
        "arrayminus": [one["mean_return"] - one.get("min_return", one["mean_return"]) for one in evaluations],
        "thickness": 1,
        "width": 0,
        "color": "rgba(128, 136, 148, 0.35)",
    }


def _throughput(histories: Sequence[History]) -> _Axes:
    axes = _Axes(histories, "Throughput", steps_rate(one.is_replay for one in histories), "~s")
    for history in histories:
        axes.line(history, "without waiting for Prefect", _by_stage(history, lambda stage: stage.steps_per_second))
        axes.line(history, "actors, without waiting", _by_stage(history, _acting_rate))
    return axes


def _acting_rate(stage: Stage) -> float | None:
    parts = [part for part in stage.act if part.act_seconds]
    return sum(part.env_steps / part.act_seconds for part in parts) if parts else None


def _waiting(histories: Sequence[History]) -> _Axes:
    axes = _Axes(histories, "Waiting", "share of waiting and working", ".0%")
    for history in histories:
        axes.line(history, "learners, for shards", _by_stage(history, lambda stage: stage.wait_share))
        axes.line(history, "actors, for snapshots", _by_stage(history, _actors_wait))
    return axes


def _actors_wait(stage: Stage) -> float | None:
    waited = sum(part.wait_seconds for part in stage.act)
    busy = waited + sum(part.act_seconds for part in stage.act)
    return waited / busy if busy else None


def _lag(histories: Sequence[History]) -> _Axes:
    note = "Lag of a stage's last round, as stored in its shards; and the bound."
    axes = _Axes(histories, "Lag", "versions behind", "d", note, tick_step=1)
    for history in histories:
        lags = stored_lags(history)
        found = {at: lags[stage.index] for at, stage in enumerate(history.stages) if stage.index in lags}
        axes.line(history, "as stored", found)
        bound = history.config.get("schedule", {}).get("lag")
        if lags and bound is not None:
            axes.line(history, _BOUND, dict.fromkeys(range(len(history.stages)), bound))
            axes.range = [-0.1, max(axes.range[1] if axes.range else 0.0, *lags.values(), bound + 1) + 0.1]
    return axes


def _bytes(histories: Sequence[History]) -> _Axes:
    axes = _Axes(histories, "Bytes", "of a stage", "~s", "Stored shards, and what crossed processes on each edge.")
    for history in histories:
        stored = {
            at: sum(ref.nbytes for ref in stage.commit.shards)
            for at, stage in enumerate(history.stages)
            if stage.commit.shards
        }
        axes.line(history, "shards", stored)
        if len(histories) > 1:
            axes.line(history, "crossed processes", _by_stage(history, _crossed_bytes))
            continue
        edges = [stage.timings.edges if stage.timings else {} for stage in history.stages]
        for edge in dict.fromkeys(name for of_stage in edges for name in of_stage):
            crossed = {at: of_stage[edge].bytes for at, of_stage in enumerate(edges) if edge in of_stage}
            axes.line(history, edge, crossed)
    return axes


def _crossed_bytes(stage: Stage) -> int | None:
    edges = stage.timings.edges if stage.timings else {}
    return sum(edge.bytes for edge in edges.values()) if edges else None


def _seconds(histories: Sequence[History]) -> _Axes:
    axes = _Axes(histories, "Seconds", "of a stage")
    for history in histories:
        axes.line(history, "all", _by_stage(history, lambda stage: stage.seconds))
        if len(histories) == 1:
            for part in _STAGE_PARTS:
                key = f"{part}_seconds"
                axes.line(history, part, _by_stage(history, partial(_part_seconds, name=key)))
    return axes


def _part_seconds(stage: Stage, *, name: str) -> float | None:
    return getattr(stage.timings, name) if stage.timings else None


def _usage(histories: Sequence[History]) -> list[_Axes]:
    """Return panels of what worker processes used, by the role of their first member."""
    found = []
    for title, unit, note, amount in _USAGE:
        axes = _Axes(histories, title, unit, "~s", note)
        for history in histories:
            by_stage = [_by_role(stage, amount) for stage in history.stages]
            for role in sorted({role for roles in by_stage for role in roles}):
                values = {at: roles[role] for at, roles in enumerate(by_stage) if role in roles}
                axes.line(history, f"{role}, {title.replace('Memory', 'memory')}", values)
        found.append(axes)
    return found


def _by_role(stage: Stage, amount: Callable[[ProcessUsage], float | None]) -> dict[str, float]:
    """Return an amount of each role, over its processes; roles without one are left out."""
    roles: dict[str, float] = {}
    for usage in stage.timings.processes if stage.timings else ():
        value = amount(usage)
        if value is not None:
            role = usage.members[0].rsplit("-", 1)[0]
            roles[role] = roles.get(role, 0) + value
    return roles


def _cores(usage: ProcessUsage) -> float | None:
    return usage.cpu_seconds / usage.seconds if usage.seconds else None


_USAGE: tuple[tuple[str, str, str, Callable[[ProcessUsage], float | None]], ...] = (
    ("CPU", "cores, over a role's processes", "Mean of a stage.", _cores),
    ("Memory", "bytes, over a role's processes", "Resident at the end of a stage.", lambda usage: usage.memory_bytes),
    (
        "GPU memory",
        "bytes, over a role's processes",
        "Peak that torch allocated in a stage.",
        lambda usage: usage.gpu_memory_bytes,
    ),
)


def _metrics(histories: Sequence[History]) -> list[_Axes]:
    """Return a panel for each metric of the commits."""
    names = {name for history in histories for stage in history.stages for name in stage.commit.metrics}
    first = [name for name in _FIRST_METRICS if name in names]
    found = []
    for name in [*first, *sorted(names - set(first) - {_IN_RETURN})]:
        axes = _Axes(histories, _TITLES.get(name, name.replace("_", " ").capitalize()), "mean of a stage")
        for history in histories:
            axes.line(history, name, _metric(history, name))
        found.append(axes)
    return found


def _metric(history: History, name: str) -> dict[int, float]:
    return _by_stage(history, lambda stage: stage.commit.metrics.get(name))


def _by_stage(history: History, value: Callable[[Stage], Any]) -> dict[int, Any]:
    """Return the values of stages by index into the history; stages without one are left out."""
    values = ((at, value(stage)) for at, stage in enumerate(history.stages))
    return {at: found for at, found in values if found is not None}


def _places(history: History, values: Mapping[int, Any]) -> dict[str, list[float]]:
    """Return the x coordinates in steps, stages and seconds; pauses between stages do not count."""
    seconds = _elapsed(history)
    return {
        "steps": [history.stages[at].commit.env_steps for at in values],
        "stages": [history.stages[at].index for at in values],
        "seconds": [round(seconds[at], 3) for at in values],
    }


def _elapsed(history: History) -> list[float]:
    """Return the seconds in stages until the end of each.

    Stages that were not read count as long as those beside them on average, ones without timings as all others.
    """
    known = [stage.seconds for stage in history.stages if stage.seconds is not None]
    usual = sum(known) / len(known) if known else 0.0
    elapsed: list[float] = []
    total, before, before_seconds = 0.0, -1, None
    for stage in history.stages:
        seconds = usual if stage.seconds is None else stage.seconds
        beside = seconds if before_seconds is None else (before_seconds + seconds) / 2
        total += (stage.index - before - 1) * beside + seconds
        elapsed.append(total)
        before, before_seconds = stage.index, seconds
    return elapsed

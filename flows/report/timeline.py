"""Draws the timeline: bars of each member's activities by stage; and lists the slowest actors."""

from __future__ import annotations

from collections import defaultdict
from html import escape
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from penstock.flows.report.formatting import format_seconds
from penstock.storage.runs.timings import ActTimes, LearnTimes, MemberPlace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.storage.runs.timings import MemberTimes
    from penstock.tasks.analysis.history import History, Stage

_MOST_STAGES = 30
_SHOWN_STAGES = 6
_MOST_MEMBERS = 24
_SLOWEST = 12
_LEAST_SECONDS = 0.005
_MOST_BARS = 6000
"""Limit of bars of single rounds, which a browser draws without delay."""
_ROW_PIXELS = 26
_KINDS = {
    "admission": ("admission", "#8a8f98"),
    "gather": ("gathering", "#b8a04a"),
    "evaluate": ("evaluating", "#3fa2b4"),
    "commit": ("committing", "#c4527c"),
    "act": ("acting", "#3f7fd4"),
    "step": ("stepping environments", "#2f9f74"),
    "learn": ("learning", "#e0813a"),
    "serve": ("serving", "#8b6fd0"),
    "wait": ("waiting", "#d9a9a4"),
    "rest": ("other", "#a9adb5"),
}
_OF_MEMBERS = ("act", "step", "learn", "serve", "wait")
_FLOW = "flow"

_Bar = tuple[str, str, float, float, int]
"""Row, kind, start and length in seconds, stage."""


def timeline(history: History) -> tuple[go.Figure, int] | None:
    """Draw the newest stages without the pauses between them; None where no timings are left.

    Returns:
        The figure, and how many stages are in it.
    """
    stages = [stage for stage in history.stages if stage.timings][-_MOST_STAGES:]
    if not stages:
        return None
    shown = set(_members_to_show(stages))
    bars: list[_Bar] = []
    begins: list[float] = []
    at = 0.0
    single = _with_single_rounds(stages, shown)
    for stage in stages:
        begins.append(at)
        found = _bars(stage, at, single=stage.index in single)
        bars += [bar for bar in found if bar[0] == _FLOW or bar[0] in shown]
        at += stage.seconds or 0.0
    rows = [_FLOW, *(row for row in _rows(stages) if row in shown)]
    figure = go.Figure([_trace(kind, [bar for bar in bars if bar[1] == kind]) for kind in _KINDS if _has(bars, kind)])
    figure.update_layout(
        template="none",
        barmode="overlay",
        bargap=0.25,
        height=110 + _ROW_PIXELS * len(rows),
        margin={"l": 110, "r": 14, "t": 10, "b": 42},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        xaxis={
            "title": {"text": f"seconds from the beginning of stage {stages[0].index}, without pauses"},
            "range": [begins[-_SHOWN_STAGES] if len(begins) > _SHOWN_STAGES else 0.0, at],
        },
        yaxis={"categoryorder": "array", "categoryarray": [escape(row) for row in reversed(rows)]},
        shapes=[
            {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "line": {"width": 1, "dash": "dot"}}
            for x in begins[1:]
        ],
    )
    return figure, len(stages)


def _has(bars: list[_Bar], kind: str) -> bool:
    return any(bar[1] == kind for bar in bars)


def _trace(kind: str, bars: list[_Bar]) -> go.Bar:
    name, colour = _KINDS[kind]
    return go.Bar(
        orientation="h",
        name=name,
        marker={"color": colour},
        y=[escape(row) for row, *_ in bars],
        base=[round(start, 4) for _, _, start, _, _ in bars],
        x=[round(length, 4) for *_, length, _ in bars],
        text=[f"stage {stage}: {format_seconds(length)}" for *_, length, stage in bars],
        textposition="none",
        hovertemplate="%{text}<extra>%{fullData.name}</extra>",
    )


def _bars(stage: Stage, begin: float, *, single: bool) -> Iterator[_Bar]:
    timings = stage.timings
    if timings is None:
        return
    at = begin
    phases = (timings.admission_seconds, timings.gather_seconds, timings.roles_seconds, timings.evaluate_seconds)
    for phase, length in zip(("admission", "gather", "roles", "evaluate"), phases, strict=True):
        if phase == "roles":
            began, ended = at, at + length
        else:
            yield _FLOW, phase, at, length, stage.index
        at += length
    yield _FLOW, "commit", at, max(0.0, begin + timings.stage_seconds - at), stage.index
    for component, part in _components(stage):
        row = _row(component, part)
        worked = part.work_seconds
        lengths = [(kind, worked[kind]) for kind in _OF_MEMBERS if worked.get(kind)]
        # A task begins before the gang has gathered, and ends before the last task does.
        task = sum(length for _, length in lengths) if part.task_seconds is None else part.task_seconds
        start = min(began, max(begin, ended - task))
        if single:
            rounds = _rounds(stage, part)
            lengths = [(kind, length - sum(one[2] for one in rounds if one[0] == kind)) for kind, length in lengths]
            lengths = [(kind, length) for kind, length in lengths if length > _LEAST_SECONDS]
            yield from ((row, kind, begin + after, length, stage.index) for kind, after, length in rounds)
            if rounds:
                start, task = begin + max(after + length for _, after, length in rounds), 0.0
        rest = min(task, ended - start) - sum(length for _, length in lengths)
        if rest > 0:
            yield row, "rest", start, rest, stage.index
            start += rest
        for kind, length in lengths:
            yield row, kind, start, length, stage.index
            start += length


def _rounds(stage: Stage, part: MemberTimes) -> list[tuple[str, float, float]]:
    """Return kind, start in the stage and length of a member's spans; older runs have none."""
    if not isinstance(part, ActTimes | LearnTimes) or stage.timings is None:
        return []
    spans = {"act": part.spans.act, "learn": part.spans.learn, "wait": part.spans.wait}
    after = part.spans.began_at - stage.timings.started_at
    if not 0.0 <= after <= (stage.seconds or 0.0):  # its host's clock differs from the flow's
        return []
    return [
        (kind, after + start, length)
        for kind in _OF_MEMBERS
        for start, length in zip(*(iter(spans.get(kind) or ()),) * 2, strict=True)
    ]


def _with_single_rounds(stages: list[Stage], shown: set[str]) -> set[int]:
    """Return the newest stages whose rounds can be drawn one by one."""
    found, bars = set(), 0
    for stage in reversed(stages):
        bars += sum(len(_rounds(stage, part)) for name, part in _components(stage) if _row(name, part) in shown)
        if bars > _MOST_BARS:
            break
        found.add(stage.index)
    return found


def _components(stage: Stage) -> Iterator[tuple[str, MemberTimes]]:
    times = stage.by_component
    yield from ((name, part) for name in ("act", "env", "learn", "server") for part in times.get(name, ()))


def _row(component: str, part: MemberTimes) -> str:
    """Return the row of a member; one that both acts and learns has a row for each."""
    return part.member if part.member.startswith(component) else f"{part.member} {component}"


def _rows(stages: list[Stage]) -> list[str]:
    return list(dict.fromkeys(_row(name, part) for stage in stages for name, part in _components(stage)))


def _members_to_show(stages: list[Stage]) -> list[str]:
    """Return learners and servers, then the members that worked longest."""
    first = dict.fromkeys(
        _row(name, part) for stage in stages for name, part in _components(stage) if name in {"learn", "server"}
    )
    busy: dict[str, float] = defaultdict(float)
    for stage in stages:
        for name, part in _components(stage):
            worked = part.work_seconds
            busy[_row(name, part)] += worked.get("act", 0.0) + worked.get("step", 0.0)
    others = sorted(set(busy) - set(first), key=lambda row: (-busy[row], row))
    return [*first, *others][:_MOST_MEMBERS]


def slowest_actors(history: History) -> list[dict[str, str | int]]:
    """Return one row per actor over all stages with timings, those with the fewest steps per second first."""
    steps: dict[str, int] = defaultdict(int)
    acted: dict[str, float] = defaultdict(float)
    waited: dict[str, float] = defaultdict(float)
    again: dict[str, int] = defaultdict(int)
    hosts: dict[str, str] = {}
    for stage in history.stages:
        for part in stage.act:
            member = part.member
            steps[member] += part.env_steps
            acted[member] += part.act_seconds
            waited[member] += part.wait_seconds
            place = (stage.timings.members if stage.timings else {}).get(member, MemberPlace())
            again[member] += max(0, place.reports - 1)
            hosts[member] = place.host
    rates = {member: steps[member] / acted[member] for member in steps if acted[member]}
    if not rates:
        return []
    middle = sorted(rates.values())[len(rates) // 2]
    return [
        {
            "member": member,
            "host": hosts[member],
            "env steps": f"{steps[member]:,}",
            "steps/s while acting": f"{rates[member]:,.0f}",
            "of the middle one's": f"{rates[member] / middle:.0%}",
            "acting": format_seconds(acted[member]),
            "waiting": format_seconds(waited[member]),
            "began again": again[member],
        }
        for member in sorted(rates, key=lambda one: rates[one])[:_SLOWEST]
    ]

"""Renders the report as one self-contained HTML file."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from penstock.flows.display.summary import outcome, steps_axis
from penstock.flows.report import facts
from penstock.flows.report.curves import COLOURS, curve_panels
from penstock.flows.report.formatting import format_number, format_seconds
from penstock.flows.report.seeds import identical_notes, seed_groups
from penstock.flows.report.timeline import slowest_actors, timeline
from penstock.storage.runs.continuing.extensions import without_end

if TYPE_CHECKING:
    from collections.abc import Sequence

    import plotly.graph_objects as go

    from penstock.tasks.analysis.history import History
    from penstock.tasks.analysis.recordings import Clip


@dataclass(frozen=True, slots=True)
class Pictures:
    """Pictures of a run's policy: a clip, or images with their captions; otherwise the reason why there are none."""

    clip: Clip | None = None
    drawn: tuple[tuple[str, bytes], ...] = ()
    """Captions and PNG files."""
    missing: str = ""


@dataclass(slots=True)
class _Figures:
    """Figures of the page by the id of their element."""

    found: dict[str, object] = field(default_factory=dict)

    def add(self, figure: go.Figure) -> str:
        name = f"figure-{len(self.found)}"
        self.found[name] = json.loads(figure.to_json())
        return name


def render(histories: Sequence[History], pictures: Sequence[Pictures]) -> str:
    """Return the HTML. Every text in it that comes from a run is escaped."""
    figures = _Figures()
    curves = [(panel.title, panel.unit, panel.note, figures.add(panel.figure)) for panel in curve_panels(histories)]
    sections = [_section(history, seen, figures) for history, seen in zip(histories, pictures, strict=True)]
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_part("page.html")).render(
        title=", ".join(history.run.name for history in histories),
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        style=Markup(_part("page.css")),  # noqa: S704  (ours)
        script=Markup(_part("page.js")),  # noqa: S704  (ours)
        plotly=Markup(get_plotlyjs()),  # noqa: S704  (Plotly's)
        figures=_as_script(figures.found),
        clips=_as_script({run["name"]: run["clip"]["frames"] for run in sections if run["clip"]}),
        curves=curves,
        colours=COLOURS,
        steps=steps_axis(history.is_replay for history in histories),
        has_seeds=bool(seed_groups(histories)),
        identical=identical_notes(histories),
        runs=sections,
        fact_names=list(dict.fromkeys(name for run in sections for name in run["facts"])),
        differing=facts.differing_settings(histories) if len(histories) > 1 else [],
    )


def _section(history: History, seen: Pictures, figures: _Figures) -> dict[str, Any]:
    drawn = timeline(history)
    return {
        "name": history.run.name,
        "store": history.run.root.url,
        "outcome": outcome(without_end(history.run.store, history.newest), replay=history.is_replay),
        "facts": facts.facts(history),
        "metrics": facts.metrics(history),
        "timeline": figures.add(drawn[0]) if drawn else None,
        "timeline_stages": drawn[1] if drawn else 0,
        "actors": slowest_actors(history),
        "lineage": facts.lineage(history),
        "newest": facts.newest_made_of(history),
        "sources": facts.sources(history),
        "clip": _clip(seen.clip) if seen.clip else None,
        "drawn": [{"caption": caption, "url": _url("image/png", data)} for caption, data in seen.drawn],
        "missing": seen.missing,
        "configuration": facts.configuration(history),
        "made_with": history.description["made_with"],
        "stages_read": len(history.stages),
        "committed": history.committed,
    }


def _clip(clip: Clip) -> dict[str, object]:
    shown = "every step" if clip.every == 1 else f"one step in {clip.every}"
    end = "" if clip.ended else ", cut there"
    return {
        "frames": {"seconds": clip.frame_seconds, "urls": [_url("image/webp", frame) for frame in clip.frames]},
        "caption": (
            f"An episode that version {clip.version} played for this page, greedily, on the first seed of the "
            f"evaluation of stage {clip.stage}: return {format_number(clip.episode_return)}, "
            f"{clip.steps:,} steps{end}. "
            f"{shown.capitalize()} is shown; {format_seconds(clip.frame_seconds * len(clip.frames))} in all."
        ),
    }


def _url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _as_script(value: object) -> Markup:
    """Return JSON that is safe in a script element: it can neither end the element nor begin a comment."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))  # noqa: S704


def _part(name: str) -> str:
    return files("penstock.flows.report").joinpath(name).read_text(encoding="utf-8")

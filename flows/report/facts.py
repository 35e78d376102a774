"""Tables of a report: facts of a run, its configuration, and the differences between several runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.flows.display.summary import round_return, steps_axis
from penstock.flows.report.formatting import (
    format_bytes,
    format_digest,
    format_number,
    format_seconds,
    format_span,
    format_time,
)
from penstock.flows.settings.listing import default_settings, flat_settings, format_setting
from penstock.storage.runs.continuing.extensions import list_extensions
from penstock.tasks.analysis.lineage import newest_shards, source_stages, stage_lineage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.tasks.analysis.history import History
    from penstock.tasks.analysis.lineage import StageLineage

_MOST_LINEAGE = 200
_OF_THE_NAME = ("name",)

Row = dict[str, object]


def facts(history: History) -> Row:
    """Return a run at a glance."""
    newest, config = history.newest, history.config
    seconds = [stage.seconds for stage in history.stages if stage.seconds is not None]
    found: Row = {
        "environment": config.get("environment", {}).get("id"),
        "algorithm": config.get("algorithm", {}).get("name"),
        "policy": config.get("distribution", {}).get("policy"),
        "seed": config.get("seed"),
        "begun": format_time(history.description.get("created")),
        "stages": f"{history.committed:,}",
    }
    if newest:
        found[steps_axis([history.is_replay])] = f"{newest.env_steps:,}"
        found["episodes"] = f"{newest.episodes:,}"
        means = [stage.commit.evaluation["mean_return"] for stage in history.stages if stage.commit.evaluation]
        if means:
            shown = len(history.stages)
            of = "" if shown == history.committed else f" of {shown:,} stages that were read"
            found[f"best evaluation{of}"] = f"{round_return(max(means)):,}"
    if newest and len(history.stages) == history.committed:
        found["shards"] = format_bytes(sum(ref.nbytes for stage in history.stages for ref in stage.commit.shards))
        if seconds:
            found["time in stages"] = format_seconds(sum(seconds))
    extended = list_extensions(history.run.store).values()
    if extended:
        found["extended"] = "; ".join(
            f"after stage {one.stage} to max_stages {one.max_stages}"
            + ("" if one.target_return is None else f", target_return {one.target_return:g}")
            for one in extended
        )
    if history.attempts:
        found["tried again"] = "; ".join(
            f"stage {stage}: {one.get('reason')}" for stage, one in history.attempts.items()
        )
    promise = history.description["promise"]
    found["same bytes again"] = "yes" if promise.get("same_bytes") else "not promised"
    return {name: value for name, value in found.items() if value is not None}


def configuration(history: History) -> list[Row]:
    """Return every setting with its value, its default, and whether they differ."""
    values, defaults = flat_settings(history.config), default_settings(history.config)
    return [
        {
            "setting": path,
            "value": format_setting(value),
            "default": format_setting(defaults[path]) if path in defaults else "",
            "changed": path in defaults and path not in _OF_THE_NAME and value != defaults[path],
        }
        for path, value in values.items()
    ]


_PATHS = "stored setting"
"""Heading of the settings' names; no run has a name with a space."""


def differing_settings(histories: Sequence[History]) -> list[Row]:
    """Return the settings that differ between runs, with the value of each run."""
    flat = [flat_settings(history.config) for history in histories]
    paths = dict.fromkeys(path for values in flat for path in values if path not in _OF_THE_NAME)
    rows: list[Row] = []
    for path in paths:
        texts = [format_setting(values[path]) if path in values else "(has none)" for values in flat]
        if len(set(texts)) > 1:
            rows.append({_PATHS: path, **{h.run.name: one for h, one in zip(histories, texts, strict=True)}})
    return rows


def lineage(history: History) -> list[Row]:
    """Return, stage by stage, newest first, the shards, snapshots and checkpoint that it read and made."""
    rows = []
    for stage in reversed(history.stages[-_MOST_LINEAGE:]):
        one = stage_lineage(history, stage)
        rows.append(
            {
                "stage": one.stage,
                "rounds": format_span(*one.rounds),
                "acted with versions": format_span(*one.acted_with) if one.acted_with else "",
                "shards": _format_shards(one) if one.shards else "",
                "made versions": format_span(*one.versions) if one.snapshots else "",
                "snapshots kept": [format_digest(name) for name in one.snapshots],
                "checkpoint": [format_digest(one.checkpoint)],
                "upon commit": [format_digest(one.parent)],
            }
        )
    return rows


def _format_shards(one: StageLineage) -> str:
    missed = f", {one.missed:,} missed" if one.missed else ""
    return f"{one.shards:,} ({one.tiles} a round{missed}), {format_bytes(one.nbytes)}"


def newest_made_of(history: History) -> list[Row]:
    """Return the shards that the newest version was learned from last."""
    return [
        {
            "shard": [format_digest(ref.name)],
            "tile": ref.tile,
            "rows": f"{ref.rows:,}",
            "bytes": format_bytes(ref.nbytes),
        }
        for ref in newest_shards(history)
    ]


def sources(history: History) -> list[Row]:
    """Return the stages of other runs that a replay reads."""
    rows = []
    for one in source_stages(history):
        of = "" if one.all_shards is None else f" of {one.all_shards:,}"
        rows.append(
            {
                "run": one.run,
                "stage": one.stage,
                "rounds": format_span(*one.rounds),
                "shards": f"{one.shards:,}{of}, {format_bytes(one.nbytes)}",
                "acted with versions": format_span(*one.acted_with) if one.acted_with else "",
                "commit": [format_digest(one.commit)] if one.commit else "no longer stored",
            }
        )
    return rows


def metrics(history: History) -> Row:
    """Return the newest commit's metrics."""
    return {
        name: format_number(value) for name, value in sorted((history.newest.metrics if history.newest else {}).items())
    }

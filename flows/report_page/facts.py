"""What a report says in words and tables: facts of a run, its configuration, what several runs differ in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flows.report_page.words import told_bytes, told_digest, told_number, told_seconds, told_span, told_time
from flows.setting_list import default_settings, flat_settings, told_setting
from flows.summary import outcome, told_return
from tasks.lineage import newest_shards, source_stages, stage_lineage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tasks.history import History
    from tasks.lineage import StageLineage

_MOST_LINEAGE = 200
_OF_THE_NAME = ("name",)

Row = dict[str, Any]


def told_outcome(history: History) -> str:
    """One line: what it has reached."""
    return outcome(history.newest)


def facts(history: History) -> Row:
    """A run at a glance."""
    newest, config = history.newest, history.config
    seconds = [stage.seconds for stage in history.stages if stage.seconds is not None]
    found: Row = {
        "environment": config.get("environment", {}).get("id"),
        "algorithm": config.get("algorithm", {}).get("name"),
        "policy": config.get("placement", {}).get("policy"),
        "seed": config.get("seed"),
        "begun": told_time(history.description.get("created")),
        "stages": f"{history.committed:,}",
    }
    if newest:
        found["environment steps"] = f"{newest['env_steps']:,}"
        found["episodes"] = f"{newest['episodes']:,}"
        means = [stage.commit["evaluation"]["mean_return"] for stage in history.stages if stage.commit["evaluation"]]
        if means:
            found["best evaluation"] = f"{told_return(max(means)):,}"
    if newest and len(history.stages) == history.committed:
        found["shards"] = told_bytes(sum(ref["nbytes"] for stage in history.stages for ref in stage.commit["shards"]))
        if seconds:
            found["time in stages"] = told_seconds(sum(seconds))
    if history.attempts:
        found["tried again"] = "; ".join(
            f"stage {stage}: {one.get('reason')}" for stage, one in history.attempts.items()
        )
    promise = history.description["promise"]
    found["same bytes again"] = "yes" if promise.get("same_bytes") else "not promised"
    return {name: value for name, value in found.items() if value is not None}


def configuration(history: History) -> list[Row]:
    """Every setting with its value, its default, and whether they differ."""
    values, defaults = flat_settings(history.config), default_settings(history.config)
    return [
        {
            "setting": path,
            "value": told_setting(value),
            "default": told_setting(defaults[path]) if path in defaults else "",
            "changed": path in defaults and path not in _OF_THE_NAME and value != defaults[path],
        }
        for path, value in values.items()
    ]


def differing_settings(histories: Sequence[History]) -> list[Row]:
    """Settings that runs do not share, with the value of each run."""
    flat = [flat_settings(history.config) for history in histories]
    paths = dict.fromkeys(path for values in flat for path in values if path not in _OF_THE_NAME)
    rows = []
    for path in paths:
        told = [told_setting(values[path]) if path in values else "(has none)" for values in flat]
        if len(set(told)) > 1:
            rows.append({"setting": path, **{h.run.name: one for h, one in zip(histories, told, strict=True)}})
    return rows


def lineage(history: History) -> list[Row]:
    """Stage by stage, newest first, which shards made which snapshots and checkpoint."""
    rows = []
    for stage in reversed(history.stages[-_MOST_LINEAGE:]):
        one = stage_lineage(history, stage)
        rows.append(
            {
                "stage": one.stage,
                "rounds": told_span(*one.rounds),
                "acted with versions": told_span(*one.acted_with) if one.acted_with else "",
                "shards": _told_shards(one) if one.shards else "",
                "made versions": told_span(*one.versions) if one.snapshots else "",
                "snapshots kept": [told_digest(name) for name in one.snapshots],
                "checkpoint": [told_digest(one.checkpoint)],
                "upon commit": [told_digest(one.parent)],
            }
        )
    return rows


def _told_shards(one: StageLineage) -> str:
    missed = f", {one.missed:,} missed" if one.missed else ""
    return f"{one.shards:,} ({one.tiles} a round{missed}), {told_bytes(one.nbytes)}"


def newest_made_of(history: History) -> list[Row]:
    """The shards that the newest version was learned from last."""
    return [
        {
            "shard": [told_digest(ref["name"])],
            "tile": ref["tile"],
            "rows": f"{ref['rows']:,}",
            "bytes": told_bytes(ref["nbytes"]),
        }
        for ref in newest_shards(history)
    ]


def sources(history: History) -> list[Row]:
    """Of a replay, what it reads of which runs."""
    rows = []
    for one in source_stages(history):
        of = "" if one.all_shards is None else f" of {one.all_shards:,}"
        rows.append(
            {
                "run": one.run,
                "stage": one.stage,
                "rounds": told_span(*one.rounds),
                "shards": f"{one.shards:,}{of}, {told_bytes(one.nbytes)}",
                "acted with versions": told_span(*one.acted_with) if one.acted_with else "",
                "commit": [told_digest(one.commit)] if one.commit else "not there any more",
            }
        )
    return rows


def metrics(history: History) -> Row:
    """The newest commit's."""
    return {name: told_number(value) for name, value in sorted((history.newest or {"metrics": {}})["metrics"].items())}

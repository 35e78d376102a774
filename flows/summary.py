"""What is said of stages and runs, as rows and as Markdown; the same words on the terminal and in Prefect's UI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tasks.config import RunConfig


_CARD_COLUMNS, _CARD_STAGES = 8, 15
"""As many as have room on the card; the table of stages has all."""


def stage_row(commit: dict[str, Any], timings: dict[str, Any]) -> dict[str, Any]:
    """A stage in the table of stages."""
    act_seconds = max((part["act_seconds"] for part in timings["act"]), default=0.0)
    learn = timings["learn"][0]
    acted = sum(part["env_steps"] for part in timings["act"] or timings["learn"])
    busy = learn["learn_seconds"] + learn["wait_seconds"]
    evaluation = commit["evaluation"]
    # Stages of earlier versions have none.
    pipeline = learn.get("pipeline", {"queue_depth": 0.0, "retries": 0, "hedges": 0})
    episode_return = stage_return(commit)
    return {
        "stage": commit["stage"],
        "env steps": commit["env_steps"],
        "steps/s": round(acted / timings["stage_seconds"]),
        "return": None if episode_return is None else told_return(episode_return),
        "evaluation": None if evaluation is None else told_return(evaluation["mean_return"]),
        "wait share": round(learn["wait_seconds"] / busy, 3) if busy else None,
        # Only of runs with a quorum below 1.
        **({"missed shards": timings["missed_shards"]} if "missed_shards" in timings else {}),
        # A commit names the snapshot of its last round and those that rounds after it still act with.
        "lag": len(commit["snapshots"]) - 1,
        "shard bytes": sum(shard["nbytes"] for shard in commit["shards"]),
        "queue depth": round(pipeline["queue_depth"], 1),
        "seconds": round(timings["stage_seconds"], 3),
        "act seconds": round(act_seconds, 3),
        "learn seconds": round(learn["learn_seconds"], 3),
        "retries": pipeline["retries"],
        "hedges": pipeline["hedges"],
        "attempt": timings["attempt"],
    }


def stage_return(commit: Mapping[str, Any]) -> float | None:
    """Mean return of the episodes that ended while a stage acted; None if none did, or nothing acted."""
    value = commit["metrics"].get("episode_return")
    return None if value is None else float(value)


def told_return(value: float) -> float:
    """A return as it is told: with one decimal, or with three where it is so small that they matter."""
    return round(value, 1 if abs(value) >= 10.0 else 3)


def outcome(commit: dict[str, Any] | None) -> str:
    """One line: what a run has reached."""
    if commit is None:
        return "nothing was committed"
    return outcome_line({**commit, "stages": commit["stage"] + 1})


def outcome_line(result: dict[str, Any]) -> str:
    """The same, of a flow's result."""
    evaluation = result["evaluation"]
    reached = "not evaluated yet"
    if evaluation:
        reached = f"mean return {told_return(evaluation['mean_return'])} over {evaluation['episodes']} episodes"
    state = result["finished"] or "not finished"
    return f"{reached} after {result['env_steps']:,} environment steps, {result['stages']} stages ({state})"


def next_steps(run: str, store: str, finished: bool) -> list[str]:
    """What to type next."""
    where = "" if store == "runs" else f" --store {store}"
    if finished:
        return [f"penstock show {run}{where}", f"penstock evaluate {run}{where}", "penstock ui"]
    return [f"penstock resume {run}{where}", f"penstock show {run}{where}"]


def summary_markdown(
    config: RunConfig, commit: dict[str, Any] | None, rows: list[dict[str, Any]], curve: str, error: str | None
) -> str:
    """The run's card: what was reached, its newest stages, why it stopped if it did, and what to do next."""
    finished = commit is not None and commit["finished"] is not None
    lines = [
        f"# Run {config.name}",
        "",
        f"**{outcome(commit)}**",
        "",
        f"- {config.story}",
        f"- seed {config.seed}, placement {config.placement.policy}",
        f"- store: `{config.store}/{config.name}`",
        "",
    ]
    if error:
        lines += [f"Stopped by {error}", ""]
    if curve:
        lines += [curve, ""]
    if rows:
        columns = list(rows[0])[:_CARD_COLUMNS]
        rows = rows[-_CARD_STAGES:]
        lines += [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
        lines += [f"| {' | '.join('' if row[name] is None else str(row[name]) for name in columns)} |" for row in rows]
        lines.append("")
    lines += ["What to do next:", ""]
    lines += [f"- `{command}`" for command in next_steps(str(config.name), config.store, finished)]
    if not finished:
        lines.append("- or, if a deployment started it: *Retry* on the flow run's page goes on from the last commit")
    return "\n".join(lines)

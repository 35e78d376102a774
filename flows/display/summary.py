"""Summaries of stages and runs, as rows and as Markdown: the terminal and Prefect's UI show the same words."""

from __future__ import annotations

import os
import time
from datetime import datetime
from typing import TYPE_CHECKING, TypedDict

from penstock.flows.display.amounts import amount
from penstock.storage.runs.run import store_option

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.runs.lease import Lease
    from penstock.storage.runs.timings import StageTimings
    from penstock.tasks.setup.config.run import RunConfig


_CARD_COLUMNS, _CARD_STAGES = 8, 15
"""Limits of the card; the table of stages has all columns and stages."""

Cell = str | int | float | None
Row = dict[str, Cell]
"""A row of a printed table; None is an empty cell."""
STEPS, STORED_STEPS = "env steps", "stored steps"
"""Columns of steps, of runs that act and of replays."""
_AXES = {False: "environment steps", True: "stored steps learned from"}
_RATES = {False: "environment steps/s", True: "stored steps/s"}


class FlowResult(TypedDict):
    """Result of a flow that drives a run: how far the run is."""

    run: str
    store: str
    stages: int
    version: int
    env_steps: int
    """Environment steps; in a replay the stored steps that it learned from, which count again in each pass."""
    replay: bool
    """True if the run learns from stored steps, and nothing acts."""
    episodes: int
    evaluation: Mapping[str, float] | None
    finished: str | None
    """Why the run ended; None if it can continue."""
    seconds: float


def flow_result(config: RunConfig, commit: Commit | None, seconds: float) -> FlowResult:
    """Return the result of a flow that took `seconds` and left the run at a commit; None: it has none."""
    return {
        "run": str(config.name),
        "store": config.store,
        "stages": commit.stage + 1 if commit else 0,
        "version": commit.version if commit else 0,
        "env_steps": commit.env_steps if commit else 0,
        "replay": not config.has_actors,
        "episodes": commit.episodes if commit else 0,
        "evaluation": commit.evaluation if commit else None,
        "finished": commit.finished if commit else None,
        "seconds": seconds,
    }


def stage_row(commit: Commit, timings: StageTimings | None) -> Row:
    """Return a stage as a row of the table of stages; without timings, which may be lost, what its commit says."""
    evaluation = commit.evaluation
    episode_return = stage_return(commit)
    row: Row = {
        "stage": commit.stage,
        STEPS: commit.env_steps,
        "steps/s": None,
        "return": None if episode_return is None else round_return(episode_return),
        "evaluation": None if evaluation is None else round_return(evaluation["mean_return"]),
        "wait share": None,
        # Only runs with a quorum below 1 have it, and only runs with max_staleness what follows.
        **({} if timings is None or timings.missed_shards is None else {"missed shards": timings.missed_shards}),
        **({} if timings is None else _staleness(timings)),
        # A commit names the snapshot of its last round and those that later rounds still act with.
        "lag": len(commit.snapshots) - 1,
        "shard bytes": sum(shard.nbytes for shard in commit.shards),
    }
    return row if timings is None else row | _times(timings)


def shown_row(row: Row, *, replay: bool) -> Row:
    """Return a row of the table of stages as it is shown: a replay's steps are not an environment's."""
    return {STORED_STEPS if replay and name == STEPS else name: cell for name, cell in row.items()}


def steps_axis(replays: Iterable[bool]) -> str:
    """Return the title of an axis of steps; each run on it is a replay or not."""
    return _joined(_AXES, replays)


def steps_rate(replays: Iterable[bool]) -> str:
    """Return the unit of an axis of steps per second, likewise."""
    return _joined(_RATES, replays)


def _joined(words: Mapping[bool, str], replays: Iterable[bool]) -> str:
    return ", or ".join(words[replay] for replay in sorted(set(replays)))


def _times(timings: StageTimings) -> Row:
    """Return what a stage's row says of its members: the slowest's seconds, and what learners did together."""
    learn = timings.learn
    acted = sum(part.env_steps for part in timings.act or learn)
    waited = sum(one.wait_seconds for one in learn)
    busy = waited + sum(one.learn_seconds for one in learn)
    depths = [one.pipeline.queue_depth for one in learn]
    return {
        "steps/s": round(acted / timings.own_seconds) if timings.own_seconds else None,
        "wait share": round(waited / busy, 3) if busy else None,
        "queue depth": round(sum(depths) / len(depths), 1) if depths else None,
        "seconds": round(timings.own_seconds, 3),
        "act seconds": round(max((part.act_seconds for part in timings.act), default=0.0), 3),
        "learn seconds": round(max((one.learn_seconds for one in learn), default=0.0), 3),
        "retries": sum(one.pipeline.retries for one in learn),
        "hedges": sum(one.pipeline.hedges for one in learn),
        "attempt": timings.attempt,
    }


def _staleness(timings: StageTimings) -> Row:
    """Return by how many minibatches learners were ahead of the slowest: at most, and on average."""
    counted = [server.staleness for server in timings.server or () if server.staleness]
    greatest, mean = "greatest staleness", "mean staleness"
    return {
        name: value
        for one in counted
        for name, value in ((greatest, one.greatest_lead), (mean, round(one.mean_lead, 3)))
    }


def stage_return(commit: Commit) -> float | None:
    """Return the mean return of the episodes that ended in a stage; None if none did, or nothing acted."""
    value = commit.metrics.get("episode_return")
    return None if value is None else float(value)


def round_return(value: float) -> float:
    """Round a return for display: to one decimal, or to three where it is below 10."""
    return round(value, 1 if abs(value) >= 10.0 else 3)


def steps_done(env_steps: int, *, replay: bool) -> str:
    """Return the steps of a run in words: those of environments, or those that a replay has learned from."""
    return f"{amount(env_steps, STORED_STEPS)} learned from" if replay else amount(env_steps, "environment steps")


def outcome(commit: Commit | None, *, replay: bool) -> str:
    """Return one line that says how far a run is."""
    if commit is None:
        return "nothing was committed"
    steps = steps_done(commit.env_steps, replay=replay)
    return _outcome_line(commit.evaluation, steps, commit.stage + 1, commit.finished)


def outcome_line(result: FlowResult) -> str:
    """Return the same line for a flow's result."""
    steps = steps_done(result["env_steps"], replay=result["replay"])
    return _outcome_line(result["evaluation"], steps, result["stages"], result["finished"])


def _outcome_line(evaluation: Mapping[str, float] | None, steps: str, stages: int, finished: str | None) -> str:
    reached = "not evaluated yet"
    if evaluation:
        episodes = amount(int(evaluation["episodes"]), "episodes")
        reached = f"mean return {round_return(evaluation['mean_return'])} over {episodes}"
    return f"{reached} after {steps}, {amount(stages, 'stages')} ({finished or 'not finished'})"


def driver_line(lease: Lease) -> str:
    """Return one line that says which process drives a run, and since when if it runs on this host."""
    who = f"{lease.owner} on host {lease.host}, pid {lease.pid}"
    if lease.owner_process() != "alive":
        return f"driven by {who}, unless that process is dead: it can't be seen from here"
    if not lease.process_start.isdigit():
        return f"driven by {who}"
    # The kernel counts a process's start in ticks since the boot.
    seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - int(lease.process_start) / os.sysconf("SC_CLK_TCK")
    return f"driven by {who}, since {datetime.fromtimestamp(time.time() - seconds).astimezone():%Y-%m-%d %H:%M:%S}"


def next_steps(
    run: str,
    store: str,
    finished: bool,
    *,
    driven: bool = False,
    has_policy: bool = True,
    imported: bool = False,
) -> list[str]:
    """Return the commands to type next: a run that is driven is not resumed, one of given episodes is learned from.

    One that was imported is not, as it names no environment.
    """
    where = store_option(store)
    if imported:
        return [f"penstock export {run} FOLDER --to minari{where}"]
    if not has_policy:
        return [f"penstock replay NAME --from {run}{where}"]
    if finished:
        return [f"penstock show {run}{where}", f"penstock evaluate {run}{where}", "penstock ui"]
    if driven:
        return [f"penstock evaluate {run}{where} --follow", f"penstock report {run}{where}"]
    return [f"penstock resume {run}{where}", f"penstock show {run}{where}"]


def summary_markdown(config: RunConfig, commit: Commit | None, rows: list[Row], curve: str, error: str | None) -> str:
    """Return the run's card: its outcome, its newest stages, the error that stopped it, and the next steps."""
    finished = commit is not None and commit.finished is not None
    lines = [
        f"# Run {config.name}",
        "",
        f"**{outcome(commit, replay=not config.has_actors)}**",
        "",
        f"- {config.summary}",
        f"- seed {config.seed}, distribution {config.distribution.policy}",
        f"- store: `{config.store}/{config.name}`",
        "",
    ]
    if error:
        lines += [f"Stopped by {error}", ""]
    if curve:
        lines += [curve, ""]
    rows = [shown_row(row, replay=not config.has_actors) for row in rows]
    if rows:
        columns = list(rows[0])[:_CARD_COLUMNS]
        rows = rows[-_CARD_STAGES:]
        lines += [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
        lines += [f"| {' | '.join('' if row[name] is None else str(row[name]) for name in columns)} |" for row in rows]
        lines.append("")
    lines += ["What to do next:", ""]
    lines += [f"- `{command}`" for command in next_steps(str(config.name), config.store, finished)]
    if not finished:
        lines.append("- or, if a deployment started it: *Retry* on the flow run's page resumes from the last commit")
    return "\n".join(lines)

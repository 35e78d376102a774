"""The lineage of parameters: the shards behind each snapshot and checkpoint, of this run or of runs that it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.storage.errors import CorruptObjectError, ObjectNotFoundError, RunNotFoundError
from penstock.storage.refs import parse_shard_name
from penstock.storage.runs.run import RunFolder
from penstock.tasks.data.replay.plan import ReplayPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.storage.refs import ShardRef
    from penstock.tasks.analysis.history import History, Stage


@dataclass(frozen=True, slots=True)
class StageLineage:
    """The inputs and outputs of a stage."""

    stage: int
    rounds: tuple[int, int]
    acted_with: tuple[int, int] | None
    """The oldest and the newest version that acted; None if the stage did not act."""
    shards: int
    tiles: int
    missed: int
    """Shards that did not arrive in time, with a quorum below 1."""
    nbytes: int
    versions: tuple[int, int]
    """Published versions; version v was learned from round v - 1."""
    snapshots: tuple[str, ...]
    """Names of the snapshots that the commit keeps."""
    checkpoint: str
    parent: str
    """Digest of the commit before."""


@dataclass(frozen=True, slots=True)
class SourceStage:
    """A stage of another run that a replay reads."""

    run: str
    stage: int
    rounds: tuple[int, int]
    shards: int
    all_shards: int | None
    """Number of shards of the stage; None if the run no longer exists."""
    nbytes: int
    acted_with: tuple[int, int] | None
    """Versions of the other run; None if it no longer exists."""
    commit: str | None
    """Digest of the commit; None if the run no longer exists."""


def stage_lineage(history: History, stage: Stage) -> StageLineage:
    """Return the inputs and outputs of a stage."""
    commit = stage.commit
    first, last = commit.rounds
    lag = int(history.config.get("schedule", {}).get("lag", 0))
    acted = bool(commit.shards) and bool(commit.snapshots)
    tiles = len({ref.tile for ref in commit.shards})
    below_one = history.config.get("distribution", {}).get("quorum", 1.0) < 1.0
    if below_one:  # a tile that is always late may have no shard in the stage
        environment = history.config["environment"]
        tiles = environment["num_envs"] // environment["envs_per_tile"]
    return StageLineage(
        stage=stage.index,
        rounds=(first, last),
        acted_with=(max(0, first - lag), max(0, last - lag)) if acted else None,
        shards=len(commit.shards),
        tiles=tiles,
        missed=(last + 1 - first) * tiles - len(commit.shards) if below_one else 0,
        nbytes=sum(ref.nbytes for ref in commit.shards),
        versions=(first + 1, commit.version),
        snapshots=tuple(ref.name for ref in commit.snapshots),
        checkpoint=commit.checkpoint.name,
        parent=commit.parent,
    )


def newest_shards(history: History) -> list[ShardRef]:
    """Return references to the shards of the newest version's round."""
    newest = history.newest
    return [ref for ref in newest.shards if ref.round == newest.rounds[1]] if newest else []


def source_stages(history: History) -> list[SourceStage]:
    """Return the stages of other runs that a replay reads; none if the run is not a replay.

    Raises:
        CorruptObjectError: the plan was altered.
    """
    reads = history.description.get("reads")
    if not reads:
        return []
    data = history.run.store.read(reads["plan"])
    plan = ReplayPlan.decode(data, reads["plan"], history.config["plan"])
    columns = (plan.table[name].to_pylist() for name in ("run", "name", "nbytes", "round"))
    found: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for run, name, nbytes, round_ in zip(*columns, strict=True):
        found.setdefault((run, parse_shard_name(name).stage), []).append((round_, nbytes))
    return [_source_stage(history, run, stage, shards) for (run, stage), shards in found.items()]


def _source_stage(history: History, name: str, stage: int, shards: Sequence[tuple[int, int]]) -> SourceStage:
    rounds = [round_ for round_, _ in shards]
    first, last = min(rounds), max(rounds)
    run = RunFolder(history.run.root, name)
    commit, digest, acted_with = None, None, None
    try:
        lag = int(run.load("config")["config"].get("schedule", {}).get("lag", 0))
        commit, digest = run.log.read(stage), run.log.digest_of(stage)
        acted_with = (max(0, first - lag), max(0, last - lag)) if commit.snapshots else None
    except (RunNotFoundError, ObjectNotFoundError, CorruptObjectError):
        pass
    return SourceStage(
        run=name,
        stage=stage,
        rounds=(first, last),
        shards=len(shards),
        all_shards=len(commit.shards) if commit else None,
        nbytes=sum(nbytes for _, nbytes in shards),
        acted_with=acted_with,
        commit=digest,
    )

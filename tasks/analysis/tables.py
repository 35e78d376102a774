"""Lays out what a run stored as Arrow tables: its stages, evaluations, snapshots and episodes. Imports no torch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.storage.errors import CorruptObjectError
from penstock.storage.runs.reader_claims import shards_kept_from
from penstock.storage.runs.run import stored_evaluations
from penstock.storage.shards.episode_index import ENDS
from penstock.storage.shards.reader import open_shard

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.storage.refs import ShardRef
    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.runs.run import RunFolder
    from penstock.storage.shards.episode_index import Episodes
    from penstock.tasks.analysis.history import Stage

_READS_AT_ONCE = 8

_STAGES = pa.schema(
    [
        ("stage", pa.int64()),
        ("env_steps", pa.int64()),
        ("version", pa.int64()),
        ("episodes", pa.int64()),
        ("return", pa.float64()),
        ("evaluation", pa.float64()),
        ("seconds", pa.float64()),
        ("steps_per_second", pa.float64()),
        ("wait_share", pa.float64()),
    ]
)
_RETURN = "episode_return"
"""The metric that is the column `return`."""
_EVALUATIONS = pa.schema(
    [
        ("version", pa.int64()),
        ("stage", pa.int64()),
        ("env_steps", pa.int64()),
        ("mean_return", pa.float64()),
        ("min_return", pa.float64()),
        ("max_return", pa.float64()),
        ("mean_length", pa.float64()),
        ("episodes", pa.int64()),
        ("seeds", pa.int64()),
    ]
)
_PYTHON = {pa.int64(): int, pa.float64(): float}
_SNAPSHOTS = pa.schema(
    [
        ("version", pa.int64()),
        ("stage", pa.int64()),
        ("env_steps", pa.int64()),
        ("return", pa.float64()),
        ("evaluation", pa.float64()),
        ("nbytes", pa.int64()),
        ("stored", pa.bool_()),
        ("name", pa.string()),
    ]
)
_EPISODES = pa.schema(
    [
        ("stage", pa.int64()),
        ("round", pa.int64()),
        ("env_id", pa.int64()),
        ("episode_id", pa.int64()),
        ("length", pa.int64()),
        ("return", pa.float64()),
        ("end", pa.string()),
        ("first_policy_version", pa.int64()),
        ("last_policy_version", pa.int64()),
    ]
)


def stage_table(stages: Sequence[Stage]) -> pa.Table:
    """Return a row for each stage, with a column of float64 for each metric that any of them has.

    Returns:
        `stage`; `env_steps`, `version` and `episodes` after it; `return`, the mean of the episodes that ended in it;
        `evaluation`, the mean return of its evaluation; `seconds`, its duration, the wait for its flow run included;
        `steps_per_second`, without that wait; `wait_share`, the share of the learners' time that they waited; then
        the metrics. Missing values are null.
    """
    metrics = sorted({name for stage in stages for name in stage.commit.metrics} - {_RETURN})
    # An algorithm may name a metric like a column.
    columns = {name: f"{name}_metric" if name in _STAGES.names else name for name in metrics}
    schema = pa.schema([*_STAGES, *(pa.field(column, pa.float64()) for column in columns.values())])
    rows = [
        {
            "stage": stage.index,
            "env_steps": stage.commit.env_steps,
            "version": stage.commit.version,
            "episodes": stage.commit.episodes,
            "return": stage.commit.metrics.get(_RETURN),
            "evaluation": _mean_return(stage.commit),
            "seconds": stage.seconds,
            "steps_per_second": stage.steps_per_second,
            "wait_share": stage.wait_share,
            **{column: stage.commit.metrics.get(name) for name, column in columns.items()},
        }
        for stage in stages
    ]
    return pa.Table.from_pylist(rows, schema)


def evaluation_table(run: RunFolder, commits: Sequence[Commit]) -> pa.Table:
    """Return a row for each evaluation, those of the run's own stages and those of `penstock evaluate`, by version.

    Args:
        run: a run.
        commits: all of its commits.

    Returns:
        `version` of the parameters, `stage` and `env_steps` of the commit that names it; `mean_return`, `min_return`,
        `max_return` and `mean_length` of its episodes; `episodes`; `seeds`, the key of their seeds, which is null for
        the run's own and where it is no int64, as earlier versions took any.

    Raises:
        CorruptObjectError: an evaluation is damaged.
    """
    by_version = _first_commits(commits)
    found = [commit.evaluation for commit in commits if commit.evaluation is not None]
    rows = [_evaluation(run, result, by_version) for result in (*found, *stored_evaluations(run))]
    rows.sort(key=lambda row: (row["version"], -1 if row["seeds"] is None else row["seeds"], row["episodes"]))
    return pa.Table.from_pylist(rows, _EVALUATIONS)


def _evaluation(run: RunFolder, result: Mapping[str, Any], by_version: Mapping[int, Commit]) -> dict[str, Any]:
    try:
        row: dict[str, Any] = {
            field.name: None if result.get(field.name) is None else _PYTHON[field.type](result[field.name])
            for field in _EVALUATIONS
        }
    except (TypeError, ValueError) as error:
        raise CorruptObjectError(f"an evaluation of run '{run.name}' is damaged: {dict(result)}") from error
    if row["seeds"] is not None and row["seeds"] >= 1 << 63:
        row["seeds"] = None
    commit = by_version.get(row["version"])
    return {**row, "stage": commit and commit.stage, "env_steps": commit and commit.env_steps}


def snapshot_table(run: RunFolder, commits: Sequence[Commit]) -> pa.Table:
    """Return a row for each snapshot that a commit names, by version.

    Args:
        run: a run.
        commits: all of its commits.

    Returns:
        `version`; `stage` and `env_steps` of the first commit that names it, and `return` and `evaluation` of that
        stage, where the version is the one it ended with; `nbytes`; `stored`, false if `penstock gc` or a hand has
        removed it; `name` of its object.
    """
    stored = set(run.store.list("snapshots/"))
    rows: dict[int, dict[str, Any]] = {}
    for commit in commits:
        for ref in commit.snapshots:
            is_last = ref.version == commit.version
            rows.setdefault(
                ref.version,
                {
                    "version": ref.version,
                    "stage": commit.stage,
                    "env_steps": commit.env_steps,
                    "return": commit.metrics.get(_RETURN) if is_last else None,
                    "evaluation": _mean_return(commit) if is_last else None,
                    "nbytes": ref.nbytes,
                    "stored": ref.name in stored,
                    "name": ref.name,
                },
            )
    return pa.Table.from_pylist([rows[version] for version in sorted(rows)], _SNAPSHOTS)


def episode_table(run: RunFolder, commits: Iterable[Commit]) -> pa.Table:
    """Return a row for each episode that ended in the shards of these commits, in order of stage, round and row.

    This reads the head of each shard, and nothing of those that `penstock gc --drop-shards-before` has dropped.

    Returns:
        `stage` and `round` that it ended in, `env_id`, `episode_id` within the environment, `length` in steps and
        `return` of the whole episode, `end` (`terminated`, `truncated` or `both`), `first_policy_version` and
        `last_policy_version`, which acted its first and its last step.

    Raises:
        ObjectNotFoundError: a shard was removed by hand.
        CorruptObjectError: a shard was altered.
    """
    kept = shards_kept_from(run.store)
    shards = [(commit.stage, ref) for commit in commits if commit.stage >= kept for ref in commit.shards]
    with ThreadPoolExecutor(_READS_AT_ONCE, thread_name_prefix="episodes") as threads:
        tables = list(threads.map(lambda shard: _ended_in(run, *shard), shards))
    return pa.concat_tables([_EPISODES.empty_table(), *tables])


def _ended_in(run: RunFolder, stage: int, ref: ShardRef) -> pa.Table:
    found: Episodes = open_shard(run.store, ref).info.episodes
    count = len(found)
    columns = [
        np.full(count, stage),
        np.full(count, ref.round),
        found.env_id,
        found.episode_id,
        found.length,
        found.return_,
        [ENDS[end] for end in found.end.tolist()],
        found.first_policy_version,
        found.last_policy_version,
    ]
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, _EPISODES, strict=True)], schema=_EPISODES
    )


def _first_commits(commits: Sequence[Commit]) -> dict[int, Commit]:
    """Return the first commit that names each version."""
    found: dict[int, Commit] = {}
    for commit in commits:
        for version in (*(ref.version for ref in commit.snapshots), commit.version):
            found.setdefault(version, commit)
    return found


def _mean_return(commit: Commit) -> float | None:
    return None if commit.evaluation is None else float(commit.evaluation["mean_return"])

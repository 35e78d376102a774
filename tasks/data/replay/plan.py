"""The plan of a replay: a pinned list of committed shards of earlier runs, made once when the replay begins.

The list is a file in the replay's folder, named by its digest in `run.json`. So later commits of the source runs change
nothing, and a killed replay resumes with the same rows. Imports no torch.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import pyarrow as pa

from penstock.storage.digest import digest
from penstock.storage.errors import ConfigError, CorruptObjectError
from penstock.storage.refs import ShardRef, check_ref, plan_name
from penstock.storage.runs.reader_claims import reading, shards_kept_from
from penstock.storage.runs.rollups.content import refs_of
from penstock.storage.runs.run import RunFolder
from penstock.storage.shards.reader import open_shard
from penstock.tasks.setup.config.consent import require_consent
from penstock.tasks.setup.config.replay import build_stored_config
from penstock.tasks.setup.config.run import TrainConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from penstock.storage.stores.protocol import Store
    from penstock.tasks.setup.config.replay import Bounds, ReplayConfig, SourceSettings

FORMAT = b"penstock-plan/1"
_SEGMENTS = pa.list_(pa.int32())
_SCHEMA = pa.schema(
    [
        ("run", pa.string()),
        ("name", pa.string()),
        ("digest", pa.string()),
        ("nbytes", pa.int64()),
        ("round", pa.int64()),
        ("tile", pa.int64()),
        ("rows", pa.int64()),
        pa.field("segments", _SEGMENTS, nullable=True),
    ]
)
_REF_COLUMNS = _SCHEMA.names[1:-1]
_INDEX_THREADS = 8


@dataclass(frozen=True, slots=True)
class PlannedShard:
    """A shard of another run, and its selected rows."""

    run: str
    ref: ShardRef
    segments: tuple[int, ...] | None
    """Triples (environment of the tile, first step, last step); None: all rows."""

    @property
    def row_count(self) -> int:
        """Return the number of selected rows."""
        if self.segments is None:
            return self.ref.rows
        return sum(last - first + 1 for first, last in zip(self.segments[1::3], self.segments[2::3], strict=True))

    def row_ids(self, steps: int, envs: int, row_steps: int = 1) -> NDArray[np.int64] | None:
        """Return the selected rows `t * B + b`, ascending; None: all. ValueError if a segment exceeds `[T, B]`.

        With `row_steps`, a row has so many steps, and t counts rows; segments are whole rows.
        """
        if self.segments is None:
            return None
        chosen = np.zeros((steps, envs), dtype=bool)
        for env, first, last in zip(*(iter(self.segments),) * 3, strict=True):
            if not (0 <= env < envs and 0 <= first <= last < steps):
                raise ValueError(f"segment {(env, first, last)} is outside of {steps} steps of {envs} environments")
            chosen[first : last + 1, env] = True
        return np.flatnonzero(chosen[::row_steps])


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """The list of shards, in order of source run, round and tile."""

    table: pa.Table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, index: int) -> PlannedShard:
        """Return an entry. Raises CorruptObjectError if it names something else than a shard."""
        row = self.table.slice(index, 1).to_pylist()[0]
        segments = row["segments"]
        ref = ShardRef(**{name: row[name] for name in _REF_COLUMNS})
        check_ref(ref)
        return PlannedShard(row["run"], ref, None if segments is None else tuple(segments))

    def encode(self) -> bytes:
        """Return the file's bytes, the same for the same list."""
        sink = pa.BufferOutputStream()
        table = self.table.combine_chunks().replace_schema_metadata({b"format": FORMAT})
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        return bytes(sink.getvalue())

    @classmethod
    def decode(cls, data: bytes | memoryview, name: str, expected_digest: str) -> ReplayPlan:
        """Decode what `encode` returned.

        Raises:
            CorruptObjectError: its digest differs, or it is not a plan.
        """
        if digest(data) != expected_digest:
            raise CorruptObjectError(
                f"'{name}' has {len(data)} bytes with digest {digest(data)}, expected {expected_digest}: it was "
                f"altered or cut short. Restore it from a copy, or start the replay again under another name"
            )
        try:
            table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
            table.validate(full=True)  # Arrow trusts offsets otherwise, and reads outside of the file
        except (pa.ArrowException, OSError, ValueError) as error:
            raise CorruptObjectError(f"'{name}' is not a plan: {error}. Restore it from a copy") from error
        if not table.schema.equals(_SCHEMA) or any(table[column].null_count for column in _SCHEMA.names[:-1]):
            raise CorruptObjectError(
                f"'{name}' is not a plan: it has the columns {table.schema}, expected {_SCHEMA} with a value in every "
                f"row of all but the last. Restore it from a copy"
            )
        return cls(table)


class SourceRecord(TypedDict):
    """A source run as `run.json` records it."""

    run: str
    stages: list[int]
    """First and last stage."""
    commit: str
    """Digest of the last stage's commit."""


@dataclass(frozen=True, slots=True)
class _Source:
    """A run to read."""

    run: RunFolder
    config: TrainConfig
    first: int
    """The first selected stage, of those whose shards were not deleted."""
    last: int
    """The last selected stage, of those committed now."""


def _sources(root: Store, config: ReplayConfig) -> list[_Source]:
    """Return the runs to read, with their configurations and stages.

    Raises:
        RunNotFoundError: there is no run of that name.
        ConfigError: a run is a replay itself, was imported or has not committed enough, the environments differ, or a
            round is no whole number of sequences.
    """
    found: list[_Source] = []
    stages = config.source.stages
    for name in config.source.runs:
        run = RunFolder(root, name)
        config_json = require_consent(run)["config"]
        if "imported" in config_json:
            raise ConfigError(
                f"source.runs: '{name}' was imported, and says nothing of the environment in which a replay's "
                f"policy is evaluated and acts; read its rows with a dataset (docs/reading.md), or name runs that acted"
            )
        stored = build_stored_config(config_json)
        if not isinstance(stored, TrainConfig):
            raise ConfigError(f"source.runs: '{name}' is a replay, which stores no shards; name the runs that it read")
        newest = run.log.newest()
        kept = shards_kept_from(run.store)
        first, end = max(stages.first, kept), newest.stage if newest else -1
        last = end if stages.last is None else min(stages.last, end)
        if last < first:
            committed = f"stages 0 to {end}"
            if kept:
                committed += ", and none of them has shards any more"
                if kept <= end:
                    committed = f"stages {kept} to {end} (the shards of earlier ones were deleted)"
            committed = committed if newest else "nothing"
            longer = "extend" if newest and newest.finished else "resume"
            raise ConfigError(
                f"source.stages = '{_show(stages)}': run '{name}' has committed {committed}; choose other stages, or "
                f"`{run.command(longer)}` first"
            )
        if stored.schedule.round_steps % config.algorithm.row_steps:
            raise ConfigError(
                f"algorithm.sequence_steps = {config.algorithm.row_steps}: run '{name}' has stored rounds of "
                f"{stored.schedule.round_steps} steps, which is not a multiple of it; choose a divisor"
            )
        found.append(_Source(run, stored, first, last))
    reference, *others = found
    for other in others:
        if _environment_key(other.config) != _environment_key(reference.config):
            raise ConfigError(
                f"source.runs: '{other.run.name}' has environment {_environment_key(other.config)}, and "
                f"'{reference.run.name}' has {_environment_key(reference.config)}; one replay learns from one "
                f"environment"
            )
    return found


def _environment_key(config: TrainConfig) -> list[object]:
    """Return what two environments must have in common; earlier versions stored 4 as 4.0, which is equal here."""
    environment = config.environment
    # Observations name a block by its number, so runs of other blocks, or of the same in another order, do not fit.
    blocks = " ".join(str(block.digest) for block in environment.blocks)
    key: list[object] = [environment.id, environment.max_episode_steps, environment.settings]
    key += [f"blocks {digest(blocks.encode())}"] if blocks else []
    key += [f"header {digest(environment.header_text.encode())}"] if environment.header_text else []
    key += [f"model {environment.model_digest}"] if environment.model_digest else []
    wrappers = [one if isinstance(one, str) else [one.name, one.settings] for one in environment.wrappers]
    key += [{"wrappers": wrappers}] if wrappers else []
    key += [f"action_mask {environment.action_mask}"] if environment.action_mask else []
    return [*key, "structured"] if environment.structured else key


def in_environment_of_sources(root: Store, config: ReplayConfig) -> ReplayConfig:
    """Return the settings with the environment of the source runs; raises as `make_plan`."""
    environment = _sources(root, config)[0].config.environment
    return config.model_copy(update={"environment": environment})


def make_plan(root: Store, config: ReplayConfig) -> tuple[ReplayPlan, list[SourceRecord]]:
    """Select shards among those committed now.

    It takes a few hundred reads for each run, however long the run is; with `min_return`, one more for the episode
    index of each shard within the stages.

    Returns:
        The plan, and its sources as stored in `run.json`: run, stages, and the digest of the last stage's commit.

    Raises:
        RunNotFoundError: there is no run of that name.
        ConfigError: a run is a replay itself or has not committed enough, the environments differ, a round is no whole
            number of sequences, or no rows are left.
        CorruptObjectError: a source's log is inconsistent, or a shard is damaged.
    """
    tables: list[pa.Table] = []
    read: list[SourceRecord] = []
    for source in _sources(root, config):
        log, stages = source.run.log, [source.first, source.last]
        read.append({"run": source.run.name, "stages": stages, "commit": log.digest_of(source.last)})
        table = log.shard_table(*stages)
        tables.append(_selected(source.run, source.config, table, config.source, config.algorithm.row_steps))
    plan = ReplayPlan(pa.concat_tables(tables).combine_chunks())
    if not len(plan):
        given = config.source
        least = "any return" if given.min_return is None else f"a return of at least {given.min_return:g}"
        row_steps = config.algorithm.row_steps
        whole = f", in whole sequences of {row_steps} steps" if row_steps > 1 else ""
        raise ConfigError(
            f"source: no row of {', '.join(given.runs)} is left with stages '{_show(given.stages)}', versions "
            f"'{_show(given.versions)}' and {least}{whole}; widen one of them. "
            f"`{RunFolder(root, given.runs[0]).command('show')}` lists the stored ones"
        )
    return plan, read


def require_rows(root: Store, config: ReplayConfig) -> None:
    """Refuse a selection of which no row is left. Where some are, the newest stages mostly show it, in a few reads.

    Raises:
        PenstockError: as `make_plan`.
    """
    for source in _sources(root, config):
        newest = source.run.log.shard_table(source.last, source.last)
        if _selected(source.run, source.config, newest, config.source, config.algorithm.row_steps).num_rows:
            return
    make_plan(root, config)


def pin(root: Store, run: RunFolder, config: ReplayConfig) -> tuple[ReplayConfig, dict[str, Any]]:
    """Select the shards of a new replay, and store the list in its folder.

    Returns:
        The settings with the list's digest and the environment of the sources, and the entries for `run.json`.

    Raises:
        PenstockError: as `make_plan`.
    """
    plan, read = make_plan(root, config)
    data = plan.encode()
    run.store.write(plan_name(digest(data)), [data], durable=True)
    config = in_environment_of_sources(root, config).model_copy(update={"plan": digest(data)})
    return config, {"reads": {"sources": read, "plan": plan_name(digest(data)), "shards": len(plan)}}


@contextmanager
def claimed(root: Store, config: ReplayConfig) -> Iterator[None]:
    """Keep the sources' shards from being deleted, until `run.json` says that an unfinished replay needs them.

    Raises:
        PenstockError: as `make_plan`.
    """
    with ExitStack() as stack:
        for source in _sources(root, config):
            stack.enter_context(reading(source.run.store, "plan", source.first, source.last))
        yield


def _show(bounds: Bounds) -> str:
    return f"{bounds.first}:{'' if bounds.last is None else bounds.last}"


def _selected(run: RunFolder, stored: TrainConfig, table: pa.Table, source: SourceSettings, row_steps: int) -> pa.Table:
    """Return a run's rows of the plan; of training rows with several steps those whose steps are all selected."""
    rounds = table["round"].to_numpy()
    versions = np.maximum(0, rounds - stored.schedule.lag)
    within = versions >= source.versions.first
    if source.versions.last is not None:
        within &= versions <= source.versions.last
    segments: list[list[int] | None] = [None] * table.num_rows
    if source.min_return is not None:
        refs = list(refs_of(table))
        found = _good_segments(run, refs, stored.schedule.round_steps, source.min_return)
        segments = [found.get((ref.round, ref.tile)) for ref in refs]
        if row_steps > 1:
            segments = [_whole_rows(segment or [], row_steps) or None for segment in segments]
        within &= np.array([segment is not None for segment in segments], dtype=bool)
    chosen = np.flatnonzero(within)
    columns = {name: table[name].take(chosen) for name in _REF_COLUMNS}
    kept = pa.array([segments[index] for index in chosen.tolist()], type=_SEGMENTS)
    runs = pa.array([run.name] * len(chosen), pa.string())
    return pa.table({"run": runs, **columns, "segments": kept}, schema=_SCHEMA)


def _good_segments(
    run: RunFolder, refs: Sequence[ShardRef], steps: int, min_return: float
) -> dict[tuple[int, int], list[int]]:
    """Find steps of episodes with at least a return, by (round, tile): triples of environment, first and last step.

    An episode may have begun in an earlier shard than the one that records its end. Steps that are not available do not
    count: those of earlier stages than are read, those in a shard that came too late to be learned from, and all before
    it.
    """
    before: dict[tuple[int, int], int] = {}
    found: dict[tuple[int, int], list[int]] = {}
    with ThreadPoolExecutor(_INDEX_THREADS, thread_name_prefix="episode-index") as threads:
        infos = threads.map(lambda ref: open_shard(run.store, ref).info, refs)
        for ref, info in zip(refs, infos, strict=True):
            before[ref.round, ref.tile] = info.round_before
            episodes = info.episodes
            for index in np.flatnonzero(episodes.return_ >= min_return).tolist():
                last, env = divmod(int(episodes.row[index]), info.envs)
                round_, left = ref.round, int(episodes.length[index])
                while left > 0 and (round_, ref.tile) in before:
                    first = max(0, last + 1 - left)
                    found.setdefault((round_, ref.tile), []).extend([env, first, last])
                    left -= last + 1 - first
                    round_, last = before[round_, ref.tile], steps - 1
    return found


def _whole_rows(segments: Sequence[int], row_steps: int) -> list[int]:
    """Return the training rows of so many steps all of whose steps are in segments, which do not overlap; sorted."""
    steps: Counter[tuple[int, int]] = Counter()
    for env, first, last in zip(*(iter(segments),) * 3, strict=True):
        for row in range(first // row_steps, last // row_steps + 1):
            steps[env, row] += min(last, (row + 1) * row_steps - 1) - max(first, row * row_steps) + 1
    whole = sorted(row for row, count in steps.items() if count == row_steps)
    return [number for env, row in whole for number in (env, row * row_steps, (row + 1) * row_steps - 1)]

"""Stores whole episodes that no actor of a run played as a run of one stage, for readers and replays."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.storage.digest import canonical_json, digest
from penstock.storage.errors import ConfigError, RunExistsError
from penstock.storage.refs import Ref, ShardRef, checkpoint_name, shard_name
from penstock.storage.runs.commit_schema import Commit
from penstock.storage.runs.continuing.leftovers import clear_leftovers
from penstock.storage.runs.lease import acquire
from penstock.storage.shards.codec import ShardColumns, ShardInfo, allocate, encode_shard
from penstock.storage.shards.episode_index import Episodes
from penstock.storage.shards.specs import DTYPES, Spec
from penstock.storage.tensors import save_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from penstock.storage.runs.run import RunFolder

_LEASE_TTL_SECONDS = 30.0
LAST = "/last"
"""Name, which no column has, of an episode's observation after its last step."""


def write_episodes(
    run: RunFolder,
    round_: int,
    episodes: Sequence[dict[str, NDArray[Any]]],
    environment: str,
    returns: Sequence[float] | None = None,
) -> ShardRef:
    """Write a shard with whole episodes, one after another, as the rows of one environment.

    Args:
        run: it need not exist yet.
        round_: the shard's round, which has no other.
        episodes: columns `[steps, ...]` by name, with the observation after the last step as `LAST` `[1, ...]`.
        environment: its id.
        returns: of the episodes; None: the sums of their rewards, as the column has them.

    Raises:
        ConfigError: columns differ, no column can hold one, an episode has no end or another one before its last step,
            or a reward is not finite.
    """
    first = episodes[0]
    names = [name for name in first if name != LAST]
    columns = {name: _spec(name, first[name]) for name in names}
    lengths = np.array([len(rows["reward"]) for rows in episodes])
    steps = int(lengths.sum())
    arrays = allocate(columns, steps, 1)
    for rows in episodes:
        _require_columns(rows, columns)
    for name in names:
        np.concatenate([rows[name] for rows in episodes], out=arrays[name][:, 0])
    ends = np.cumsum(lengths) - 1
    _check_episodes(arrays, ends, lengths)
    versions, index = arrays["policy_version"], _index_of(arrays, ends, lengths, returns)
    info = ShardInfo(0, 0, round_, 0, steps, 1, int(versions.min()), int(versions.max()), environment, {}, index)
    shard = encode_shard(ShardColumns(columns, arrays), ends, np.concatenate([rows[LAST] for rows in episodes]), info)
    name = shard_name(0, 0, round_, 0, shard.digest)
    run.store.write(name, shard.parts)
    return ShardRef(name, shard.digest, shard.nbytes, round_, 0, steps)


def _require_columns(rows: Mapping[str, NDArray[Any]], columns: Mapping[str, Spec]) -> None:
    """Refuse an episode whose columns are not those of the first one."""
    own = {name: _spec(name, rows[name]) for name in rows if name != LAST}
    if own.keys() != columns.keys():
        raise ConfigError(f"the dataset's episodes have different columns: {sorted(own)}, expected {sorted(columns)}")
    if other := [name for name, spec in own.items() if spec != columns[name]]:
        kinds = [f"{spec.dtype} {list(spec.shape)}" for spec in (own[other[0]], columns[other[0]])]
        raise ConfigError(
            f"the dataset's episodes have different columns: '{other[0]}' is {kinds[0]} in one and {kinds[1]} in "
            f"the first"
        )


def _check_episodes(arrays: Mapping[str, NDArray[Any]], ends: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
    """Refuse episodes that do not end at their last row alone, and rewards that are not finite."""
    flags = (arrays["terminated"] | arrays["truncated"])[:, 0] != 0
    if not flags[ends].all():
        raise ConfigError("an episode of the dataset neither terminates nor is truncated; Minari requires one of them")
    ids = np.repeat(arrays["episode_id"][ends, 0], lengths)
    flags[ends] = False
    if flags.any():
        raise ConfigError(
            f"episode {ids[flags.argmax()]} of the dataset terminates or is truncated before its last step; an episode "
            f"ends once: divide it there"
        )
    wrong = ~np.isfinite(arrays["reward"][:, 0])
    if wrong.any():
        raise ConfigError(
            f"episode {ids[wrong.argmax()]} of the dataset has the reward {arrays['reward'][wrong.argmax(), 0]}, "
            f"expected finite numbers: leave it out, or correct it"
        )


def _index_of(
    arrays: Mapping[str, NDArray[Any]],
    ends: NDArray[np.int64],
    lengths: NDArray[np.int64],
    returns: Sequence[float] | None,
) -> Episodes:
    """Return the index of episodes by their last rows; their returns are the sums of rewards where none are given."""
    starts = ends + 1 - lengths
    versions, rewards = arrays["policy_version"][:, 0], arrays["reward"][:, 0]
    if returns is None:
        returns = [math.fsum(rewards[start : end + 1].tolist()) for start, end in zip(starts, ends, strict=True)]
    return Episodes.from_flags(
        row=ends,
        env_id=arrays["env_id"][ends, 0].astype(np.int64),
        episode_id=arrays["episode_id"][ends, 0].astype(np.int64),
        length=lengths,
        return_=np.array(returns),
        terminated=(arrays["terminated"][ends, 0] != 0).astype(np.uint8),
        truncated=(arrays["truncated"][ends, 0] != 0).astype(np.uint8),
        first_policy_version=versions[starts].astype(np.int64),
        last_policy_version=versions[ends].astype(np.int64),
    )


@contextmanager
def written_as(run: RunFolder, description: Mapping[str, Any], what: str) -> Iterator[Callable[[], None]]:
    """Let episodes be written as this run, by this process alone; clears what an interrupted call or another one left.

    Args:
        run: the run to create; one that such a call has created, and that has no commit yet, is the same.
        description: what its `run.json` will say.
        what: word for what is written, for messages.

    Yields:
        A check that this process still writes the run, for `commit_episodes`.

    Raises:
        RunExistsError: there is another run of that name.
        LeaseHeldError: another command makes the run.
    """
    with acquire(run.store, f"an import of {what}", _LEASE_TTL_SECONDS) as keeper:
        refuse_committed(run, what)
        if not run.exists():
            clear_leftovers(run, ())
        elif run.genesis() != digest(canonical_json(description["identity"])):
            raise _taken(run, what)
        yield keeper.check


def refuse_committed(run: RunFolder, what: str) -> None:
    """Refuse a run with commits as the place of episodes; arguments as `written_as`.

    Raises:
        RunExistsError: it has some.
    """
    if run.exists() and run.log.newest():
        raise _taken(run, what)


def _taken(run: RunFolder, what: str) -> RunExistsError:
    return RunExistsError(f"there is a run '{run.name}' already; choose another name for the {what}")


def commit_episodes(
    run: RunFolder,
    description: Mapping[str, Any],
    refs: Sequence[ShardRef],
    episodes: int,
    finished: str,
    check: Callable[[], None],
) -> None:
    """Create the run, unless an interrupted call did, and commit shards as its only stage.

    Args:
        run: to create.
        description: what its `run.json` says.
        refs: of the shards.
        episodes: number of these in them.
        finished: the reason for which the run is finished.
        check: as `written_as` yields it.

    Raises:
        LeaseLostError: another command began to make the run, while this process stood still.
    """
    check()
    if not run.exists():
        run.create(description)
    check()
    checkpoint = save_tensors({}, {"stage": 0, "imported": True})
    ref = Ref(checkpoint_name(0, digest(checkpoint)), digest(checkpoint), len(checkpoint))
    run.store.write(ref.name, [memoryview(checkpoint)])
    run.store.sync([ref.name, *(shard.name for shard in refs)])
    run.log.append(
        Commit(
            stage=0,
            # Not the genesis that is stored: another command may have made a run of its own there meanwhile.
            parent=digest(canonical_json(description["identity"])),
            rounds=(0, len(refs) - 1),
            version=0,
            env_steps=sum(shard.rows for shard in refs),
            episodes=episodes,
            shards=tuple(refs),
            states=(),
            snapshots=(),
            checkpoint=ref,
            metrics={},
            evaluation=None,
            finished=finished,
        )
    )


def _spec(name: str, array: NDArray[Any]) -> Spec:
    if array.dtype.name not in DTYPES or 0 in array.shape[1:]:
        raise ConfigError(f"'{name}' has {array.dtype}{list(array.shape[1:])} a step, which no column can hold")
    return Spec(array.dtype.name, array.shape[1:])

"""Hands acted rounds to the learner of the same process, which then reads nothing from storage.

A handed round has the rows that decoding its shard would give, and they stay on the device where they were made. The
shard is stored all the same, in the background. A learner that finds no handed round reads the shard: after a restart,
if the round came from another process, or if it was refused because the learner is far behind.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch

from penstock.storage.refs import ShardRef
from penstock.tasks.specs import Trajectory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from penstock.storage.shards.codec import ShardInfo
    from penstock.storage.shards.specs import Spec
    from penstock.tasks.data.snapshots.handed_versions import HandedVersions

ShardLater: TypeAlias = ShardRef | Future[ShardRef]
"""A shard's reference, or a promise of it: digest and size are known once the shard is encoded."""


def ref_of(shard: ShardLater) -> ShardRef:
    """Return a shard's reference; waits until this process can read it, and raises the error that prevents that."""
    return shard.result() if isinstance(shard, Future) else shard


@dataclass(frozen=True, slots=True)
class HandedShard:
    """A round of one tile, in memory that nobody overwrites."""

    describe: Callable[[], ShardInfo]
    """Returns the description that its shard has. On a device it waits for the round."""
    trajectory: Trajectory
    """The columns that learners use."""
    stored_as: Future[ShardRef]
    """Done once this process can read the shard: it is stored, or in the node's cache while it is uploaded."""

    @property
    def nbytes(self) -> int:
        """Return the memory in bytes."""
        tensors = (*self.trajectory.columns.values(), self.trajectory.bootstrap_observation)
        return sum(tensor.nbytes for tensor in tensors) + self.trajectory.bootstrap_rows.nbytes


class HandedRows:
    """Holds the rounds that an actor has handed over and the learner has not taken. Thread-safe.

    Args:
        columns: that learners use, as shards declare them.
        first_round: that the learner learns.
        lag: of the run. While a round is learned, at most the next lag + 1 are held.
        wake: makes a waiting learner look again.
    """

    def __init__(self, columns: Mapping[str, Spec], first_round: int, lag: int, wake: Callable[[], None]) -> None:
        self._columns = columns
        self._learned_round = first_round
        self._ahead = lag + 1
        self._wake = wake
        self._lock = threading.Lock()
        self._held: dict[tuple[int, int], HandedShard] = {}

    def offer(
        self,
        round_: int,
        tile: int,
        describe: Callable[[], ShardInfo],
        played: Trajectory,
        stored_as: Future[ShardRef],
    ) -> None:
        """Hand a copy of a round over, unless the learner is too far behind to use it soon.

        Args:
            round_: of the run.
            tile: that was played.
            describe: returns the description that its shard has; any thread may call it.
            played: the round, borrowed; on a GPU, written by work that the current stream has queued.
            stored_as: set, or failed, by whoever stores the shard.
        """
        if not self._is_wanted(round_):
            return
        # Actors work in inference mode, and autograd can't use tensors that were made there. Actor and learner share
        # the device's default stream, so the copies are done before a learner's kernels read them.
        with torch.inference_mode(mode=False), torch.no_grad():
            columns = {
                name: _copy(played.columns[name], getattr(torch, spec.dtype)) for name, spec in self._columns.items()
            }
            observation = columns["observation"]
            after = _copy(played.bootstrap_observation, observation.dtype).reshape(-1, *observation.shape[2:])
            handed = Trajectory(columns, _copy(played.bootstrap_rows, torch.int64), after, played.first_env)
        with self._lock:
            if self._is_wanted(round_):
                self._held[round_, tile] = HandedShard(describe, handed, stored_as)
        self._wake()

    def begin_round(self, round_: int) -> None:
        """Note the round that is learned next, and drop what was held of earlier ones."""
        with self._lock:
            self._learned_round = round_
            for key in [key for key in self._held if key[0] < round_]:
                del self._held[key]

    def holds(self, round_: int, tile: int) -> bool:
        """Return whether a round can be taken."""
        with self._lock:
            return (round_, tile) in self._held

    def take(self, round_: int, tile: int) -> HandedShard | None:
        """Return a round, which is then no longer held; None if it is not there."""
        with self._lock:
            return self._held.pop((round_, tile), None)

    def _is_wanted(self, round_: int) -> bool:
        return self._learned_round <= round_ <= self._learned_round + self._ahead


@dataclass(frozen=True, slots=True)
class HandOver:
    """The exchange between an actor and a learner in one process."""

    rows: HandedRows
    versions: HandedVersions


def _copy(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.detach().to(dtype, copy=True, memory_format=torch.contiguous_format)

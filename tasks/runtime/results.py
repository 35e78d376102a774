"""Results that the members of a gang return to the driver: plain records, small, pickled by Dask.

The driver makes a stage's commit of the references, sums and digests, and its timings of the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.storage.refs import Ref, ShardRef, SnapshotRef, StateRef
    from penstock.storage.runs.timings import ActTimes, EnvTimes, LearnTimes, ProcessUsage, ServerTimes


@dataclass(frozen=True, slots=True)
class Published:
    """Objects that the holder of `sync` stored."""

    snapshots: tuple[SnapshotRef, ...]
    """Those that later rounds act with; the newest is last."""
    checkpoint: Ref
    version: int


@dataclass(frozen=True, slots=True)
class ActResult:
    """The result of an act component."""

    states: tuple[StateRef, ...]
    """The environments of each tile after the stage."""
    shards: Mapping[int, tuple[str, ...]]
    """Digests of what is stored, by tile in the order of rounds."""
    times: ActTimes


@dataclass(frozen=True, slots=True)
class EnvResult:
    """The result of an environment server."""

    times: EnvTimes


@dataclass(frozen=True, slots=True)
class LearnResult:
    """The result of a learner; sums over its rounds, so that those of several learners add up."""

    shards: tuple[ShardRef, ...]
    outputs: Mapping[str, Mapping[int, tuple[float, int]]]
    """Mean over rows and number of rows, for each row output and round."""
    episodes: int
    return_sum: float
    length_sum: int
    parameters: str
    """Digest of everything that all learners must agree on."""
    published: Published | None
    """None if it does not hold `sync`."""
    times: LearnTimes


@dataclass(frozen=True, slots=True)
class ServerResult:
    """The result of a parameter server."""

    parameters: str
    published: Published
    times: ServerTimes


ComponentResult: TypeAlias = ActResult | EnvResult | LearnResult | ServerResult


@dataclass(frozen=True, slots=True)
class MemberResult:
    """The result of a member: that of each component that it ran."""

    member: str
    source: str
    """Digest of the algorithm's source on its worker."""
    components: tuple[ComponentResult, ...]
    usage: ProcessUsage | None = None
    """The resources that its process used meanwhile; None if nobody measured."""

"""How many requests, bytes, messages and calls a stage needs, for so many actors and learners: counted, not timed.

Follows from what the roles do (`docs/storage.md`, "Who writes what, when"), for runs that nothing disturbs, from the
second stage on and without evaluations. What depends on how long something takes is given seconds. Imports no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage.digest import canonical_json
from storage.ranges import PART_BYTES
from storage.refs import ShardRef, SnapshotRef, StateRef, shard_name, snapshot_name, state_name
from tasks.looks import first_pause_seconds, next_pause_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tasks.cost import Sizes

_LOOKS_PER_TTL = 3
_LISTED_AT_ONCE = 1_000
_STATES_KEPT = 2
_LISTINGS_OF_A_CROWD = 8
"""Of either kind, of 32 actors that begin in one process: 5 to 18 were counted (`benchmarks/scale.py`)."""
_COMMIT_BYTES = 650
"""Of a commit, beside its shards, states and snapshots."""
_STAGE_MESSAGES = 11
"""Two topics are heard and left, two graphs of tasks come; calls for lock (three), places and the start."""
_MEMBER_MESSAGES = 11
"""A task goes out, it reports and logs and these go on to the flow, it is finished, its result is had and forgotten."""
_MESSAGES_PER_SECOND = 1.6
"""Of the flow, which says that it lives."""
_DIGEST = "0" * 32


@dataclass(frozen=True, slots=True)
class Deployment:
    """Who is where: actors that step and infer on nodes of their own, and learners, each on one of its own.

    Where there is one node of actors, the first learner is on it as well, as in a run with workers of its own.
    """

    actors: int
    learners: int
    actors_per_node: int
    processes_per_node: int
    """Worker processes that the actors of a node share."""
    tiles_per_actor: int
    envs_per_tile: int
    round_steps: int
    rounds_per_stage: int
    lag: int
    lease_seconds: float
    client: str | None
    """Scheme of a store behind a network, `s3`; None for a folder."""
    gpu: bool = False
    """Whether learners have one."""

    @property
    def nodes(self) -> int:
        """Of actors."""
        return -(-self.actors // self.actors_per_node)

    @property
    def node_actors(self) -> int:
        """On the fullest node."""
        return -(-self.actors // self.nodes)

    @property
    def node_processes(self) -> int:
        """On the fullest node."""
        return min(self.processes_per_node, self.node_actors)

    @property
    def act_processes(self) -> int:
        """Worker processes of actors."""
        return min(self.actors, self.nodes * self.processes_per_node)

    @property
    def processes(self) -> int:
        """Worker processes of actors and learners."""
        return self.act_processes + self.learners

    @property
    def apart(self) -> bool:
        """Whether learners are on other nodes than actors."""
        return self.nodes > 1

    @property
    def caches(self) -> int:
        """Nodes, of actors and of learners."""
        return self.nodes + self.learners if self.apart else 1

    @property
    def members(self) -> int:
        """Dask tasks of a stage."""
        return self.actors + self.learners

    @property
    def tiles(self) -> int:
        """Of all actors; a shard and a state each, a round."""
        return self.actors * self.tiles_per_actor

    @property
    def round_rows(self) -> int:
        """Environment steps of a round."""
        return self.tiles * self.envs_per_tile * self.round_steps

    @property
    def moved_states(self) -> float:
        """States that a stage begins with, and that another node wrote: members are placed anew in every stage."""
        return self.tiles * (1.0 - 1.0 / self.nodes)


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """How long a stage takes, for what happens by the clock."""

    stage: float
    snapshot_wait: float
    """Of an actor, a round, for a version."""
    shard_wait: float
    """Of a learner's input, a round, for the next round's first shard."""


def store_requests(deployment: Deployment, sizes: Sizes, seconds: StageSeconds) -> dict[str, float]:
    """Requests of a stage, by kind: `get`, `put`, `list`, `head`, `delete`; none where the store is a folder."""
    d, rounds = deployment, deployment.rounds_per_stage
    if d.client is None:
        return dict.fromkeys(("get", "put", "list", "head", "delete"), 0.0)
    # The lease: a read and a write a renewal; a look of every process at once, and then as often.
    renewals = seconds.stage * _LOOKS_PER_TTL / d.lease_seconds
    leases = renewals + d.processes * (1 + int(renewals))
    # Shards, in parts if they are large, and a version for each node, once.
    parts = max(1, math.ceil(sizes.shard_bytes / PART_BYTES))
    fetched = rounds * (d.tiles * parts + d.nodes) if d.apart else 0
    # Who waits for a hint looks into storage, ever more seldom: for a version, one of a process; for a round's shards.
    looked = d.act_processes * looks(seconds.snapshot_wait, d.act_processes)
    looked += d.learners * looks(seconds.shard_wait, d.learners) * _pages(d.tiles)
    return {
        # Which attempt it is; the commit before, once a node; learners read the checkpoint.
        "get": 1 + leases + d.caches + d.learners + d.moved_states + fetched,
        # Commit, hint and timings; a shard and a state each, a round; versions and the checkpoint.
        "put": 3 + renewals + 2 * d.tiles * rounds + rounds + 1,
        # Actors list shards and states, learners shards; the first learner lists snapshots.
        "list": _begin_listings(d) + d.learners + 1 + rounds * looked,
        "head": 1,
        # Of states the last two stay.
        "delete": d.tiles * max(0, rounds - _STATES_KEPT),
    }


def begin_requests(deployment: Deployment) -> float:
    """Requests with which an actor begins a stage: the commit, two listings, states that are elsewhere."""
    listings = _begin_listings(deployment) / deployment.actors
    return deployment.caches / deployment.members + listings + deployment.moved_states / deployment.actors


def _begin_listings(deployment: Deployment) -> int:
    """Of actors, two each; those of a process that begin together share them (`storage.shared_calls`)."""
    crowd = -(-deployment.actors // deployment.act_processes)
    return 2 * deployment.act_processes * min(crowd, _LISTINGS_OF_A_CROWD)


def looks(wait_seconds: float, lookers: int) -> float:
    """How often one of so many who wait about so long for a hint looks into storage, on average.

    Waits differ: at each look (`tasks.looks`), half of them are over.
    """
    pause = first_pause_seconds(lookers)
    count, left = min(0.5, wait_seconds / pause / 2), wait_seconds - pause
    while left > 0:
        pause = next_pause_seconds(pause, lookers)
        count += min(1.0, left / pause)
        left -= pause
    return count


def _pages(objects: int) -> int:
    """Requests of a listing."""
    return max(1, math.ceil(objects / _LISTED_AT_ONCE))


def commit_bytes(deployment: Deployment) -> int:
    """Of a commit."""
    shard = ShardRef(shard_name(0, 0, 0, 0, _DIGEST), _DIGEST, 1000, 10, 10, 100)
    state = StateRef(state_name(0, 0, 0, 0, _DIGEST), _DIGEST, 100, 10, 10)
    snapshot = SnapshotRef(snapshot_name(0, _DIGEST), _DIGEST, 1000, 10)
    shard_bytes, state_bytes, snapshot_bytes = (
        len(canonical_json(ref.to_json())) + 1 for ref in (shard, state, snapshot)
    )
    tiles, rounds = deployment.tiles, deployment.rounds_per_stage
    return _COMMIT_BYTES + tiles * (rounds * shard_bytes + state_bytes) + (deployment.lag + 1) * snapshot_bytes


def written_bytes(deployment: Deployment, sizes: Sizes) -> float:
    """Of a stage, into the store, states that are removed again included."""
    shards = deployment.tiles * deployment.rounds_per_stage * (sizes.shard_bytes + sizes.state_bytes)
    versions = deployment.rounds_per_stage * sizes.snapshot_bytes
    return shards + versions + sizes.checkpoint_bytes + commit_bytes(deployment)


def kept_bytes(deployment: Deployment, sizes: Sizes) -> float:
    """Of a stage, that lie in the store for good, where `penstock gc` runs: shards and the commit."""
    return deployment.tiles * deployment.rounds_per_stage * sizes.shard_bytes + commit_bytes(deployment)


def read_bytes(deployment: Deployment, sizes: Sizes) -> float:
    """Of a stage, from the store over the network; nothing where it is a folder."""
    d = deployment
    if d.client is None:
        return 0.0
    commits = d.caches * commit_bytes(d)
    read = commits + d.learners * sizes.checkpoint_bytes + d.moved_states * sizes.state_bytes
    if d.apart:
        read += d.rounds_per_stage * (d.tiles * sizes.shard_bytes + d.nodes * sizes.snapshot_bytes)
    return read


def node_reads(deployment: Deployment) -> tuple[int, int]:
    """Snapshot reads of a node through its cache in a stage, and how many of them go to the store."""
    of_store = deployment.rounds_per_stage if deployment.apart and deployment.client else 0
    return deployment.node_actors * deployment.rounds_per_stage, of_store


def hints(deployment: Deployment) -> tuple[float, int]:
    """Messages between workers in a round: those that a learner gets, and those that all actors' processes get.

    Of a shard, that it is made and that it is stored; where the store is a folder, these are one.
    """
    told = 1 if deployment.client is None else 2
    return told * deployment.tiles / deployment.learners, deployment.processes - deployment.learners


def scheduler_messages(deployment: Deployment, stage_seconds: float) -> float:
    """Messages of a stage that Dask's scheduler gets or sends, and calls that it answers; none of a step or a shard."""
    # Topic, graphs and admission; a round's progress, in and out; each member's task, report, log record and result.
    once = _STAGE_MESSAGES + 2 * deployment.rounds_per_stage + _MEMBER_MESSAGES * deployment.members
    beats = deployment.processes / _heartbeat_seconds(deployment.processes)
    return once + stage_seconds * (beats + _MESSAGES_PER_SECOND)


def _heartbeat_seconds(processes: int) -> float:
    """How often a worker says that it lives: Dask's own rule (`distributed.scheduler.heartbeat_interval`)."""
    if processes <= 10:
        return 0.5
    if processes < 50:
        return 1.0
    return 2.0 if processes < 200 else processes / 200 + 1


def prefect_calls(stage_seconds: float, constants: Mapping[str, float]) -> float:
    """Requests of a stage to Prefect's server, and events.

    No replica is seen there but in log records, and those go together.
    """
    return constants["prefect_stage_calls"] + constants["prefect_calls_per_second"] * stage_seconds

"""Counts the requests, bytes, messages and calls of a stage for a number of actors and learners; measures no time.

The counts follow from the roles' work (`docs/storage.md`, "Who writes what, when"), for runs without failures, from the
second stage on and without evaluations. Counts that depend on time take the seconds as an argument. Imports no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.storage.digest import canonical_json
from penstock.storage.refs import ShardRef, SnapshotRef, StateRef, shard_name, snapshot_name, state_name
from penstock.storage.transfer.ranged_reads import PART_BYTES
from penstock.tasks.runtime.waiting import first_poll_seconds, next_poll_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.tasks.setup.planning.traffic import Sizes

_POLLS_PER_TTL = 3
_LISTED_AT_ONCE = 1_000
_STATES_KEPT = 2
_LISTINGS_OF_A_CROWD, _SHARE_THAT_LISTS = 8, 3 / 8
"""Listings of either kind by actors that begin in one process: 5 to 18 by 32 were counted
(`benchmarks/cluster/scale.py`), and 96 by 256 (`benchmarks/cluster/two_schedulers.py`)."""
_COMMIT_BYTES = 650
"""Bytes of a commit without its shards, states and snapshots."""
_STAGE_MESSAGES = 12
"""Two topics are subscribed and left, two task graphs arrive; calls for the lock (3), slots, start and forgetting."""
_MEMBER_MESSAGES = 11
"""A task is sent, its report and logs are forwarded to the flow, it finishes, its result is fetched and released."""
_REPORTS_PER_SECOND = 10.0
"""Upper bound of a learner's reports of rounds; the first and the last one of a stage come besides."""
_MESSAGES_PER_SECOND = 1.6
"""Heartbeats of the flow."""
_DIGEST = "0" * 32


@dataclass(frozen=True, slots=True)
class Deployment:
    """Actors that step and infer, several on a node, and learners, each on its own node.

    With one node of actors, the first learner is on it as well, as in a run with a local cluster.
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
    """Scheme of a remote store, `s3` or `s3+obstore`; None for a folder."""
    gpu: bool = False
    """True if learners have a GPU."""
    schedulers: int = 1
    """Dask schedulers that share the actors' nodes; learners are on the first."""

    @property
    def nodes(self) -> int:
        """Return the number of actors' nodes."""
        return -(-self.actors // self.actors_per_node)

    @property
    def node_actors(self) -> int:
        """Return the number of actors on the fullest node."""
        return -(-self.actors // self.nodes)

    @property
    def node_processes(self) -> int:
        """Return the number of actors' processes on the fullest node."""
        return min(self.processes_per_node, self.node_actors)

    @property
    def act_processes(self) -> int:
        """Return the number of actors' worker processes."""
        return min(self.actors, self.nodes * self.processes_per_node)

    @property
    def processes(self) -> int:
        """Return the number of worker processes of actors and learners."""
        return self.act_processes + self.learners

    @property
    def apart(self) -> bool:
        """Return whether learners are on other nodes than actors."""
        return self.nodes > 1

    @property
    def clusters(self) -> int:
        """Return the number of Dask clusters with actors; what crosses two of them is found by polls of storage."""
        return min(self.schedulers, self.nodes)

    @property
    def caches(self) -> int:
        """Return the number of node caches: those of actors' and of learners' nodes."""
        return self.nodes + self.learners if self.apart else 1

    @property
    def members(self) -> int:
        """Return the number of Dask tasks of a stage."""
        return self.actors + self.learners

    @property
    def tiles(self) -> int:
        """Return the number of tiles of all actors; each writes a shard and a state per round."""
        return self.actors * self.tiles_per_actor

    @property
    def round_rows(self) -> int:
        """Return the number of environment steps of a round."""
        return self.tiles * self.envs_per_tile * self.round_steps

    @property
    def moved_states(self) -> float:
        """Return the states at a stage's start that another node wrote.

        In every stage, Dask places members again on any node of their cluster, which stays the same.
        """
        return self.tiles * (1.0 - self.clusters / self.nodes)


@dataclass(frozen=True, slots=True)
class StageSeconds:
    """Seconds that a stage takes, for counts that grow with time."""

    stage: float
    snapshot_wait: float
    """Seconds per round that an actor waits for a version."""
    shard_wait: float
    """Seconds per round that a learner's input waits for the next round's first shard."""


def store_requests(deployment: Deployment, sizes: Sizes, seconds: StageSeconds) -> dict[str, float]:
    """Return a stage's requests by kind, `get`, `put`, `list`, `head` and `delete`; 0 for a folder."""
    d, rounds = deployment, deployment.rounds_per_stage
    if d.client is None:
        return dict.fromkeys(("get", "put", "list", "head", "delete"), 0.0)
    # The lease: a read and a write per renewal; every process polls it at the start, and then as often.
    renewals = seconds.stage * _POLLS_PER_TTL / d.lease_seconds
    leases = renewals + d.processes * (1 + int(renewals))
    # Shards, in parts if they are large, and a version for each node, once.
    parts = max(1, math.ceil(sizes.shard_bytes / PART_BYTES))
    fetched = rounds * (d.tiles * parts + d.nodes) if d.apart else 0
    # Waiting members poll storage with exponential back-off: one per process for a version; learners for shards.
    waiters, far = -(-d.act_processes // d.clusters), d.clusters > 1
    polls = d.act_processes * expected_polls(seconds.snapshot_wait, waiters, far=far)
    polls += d.learners * _shard_polls(d, seconds.shard_wait) * _pages(d.tiles)
    return {
        # The attempt; the previous commit, once per node; learners read the checkpoint.
        "get": 1 + leases + d.caches + d.learners + d.moved_states + fetched,
        # Commit, hint and timings; a shard and a state per tile and round; versions, differences and the checkpoint.
        "put": 3 + renewals + 2 * d.tiles * rounds + rounds * (1 + bool(sizes.difference_bytes)) + 1,
        # Actors list shards and states, learners shards; the first learner lists snapshots.
        "list": _begin_listings(d) + d.learners + 1 + rounds * polls,
        "head": 1,
        # The last two states of a tile stay.
        "delete": d.tiles * max(0, rounds - _STATES_KEPT),
    }


def begin_requests(deployment: Deployment) -> float:
    """Return an actor's requests at a stage's start: the commit, two listings, states that are not on its node."""
    listings = _begin_listings(deployment) / deployment.actors
    return deployment.caches / deployment.members + listings + deployment.moved_states / deployment.actors


def _begin_listings(deployment: Deployment) -> float:
    """Return the listings of actors, two each; actors of a process that ask together share one."""
    crowd = -(-deployment.actors // deployment.act_processes)
    return 2 * deployment.act_processes * min(crowd, max(_LISTINGS_OF_A_CROWD, _SHARE_THAT_LISTS * crowd))


def _shard_polls(deployment: Deployment, wait_seconds: float) -> float:
    """Return a learner's polls for the shards of a round.

    Those of another cluster are not announced, and come in any order: when the awaited one is found, after half of the
    rest of the round on average, the learner takes all up to the next that is missing, and begins to poll for that.
    """
    if deployment.clusters == 1:
        return expected_polls(wait_seconds, deployment.learners)
    waits = 1 + math.ceil(math.log2(max(1.0, deployment.tiles / deployment.learners)))
    return sum(
        expected_polls(wait_seconds / 2**number, deployment.learners, far=True) for number in range(1, waits + 1)
    )


def expected_polls(wait_seconds: float, waiters: int, *, far: bool = False) -> float:
    """Return the mean number of storage polls of one of several waiters, for a wait of about `wait_seconds`.

    Waits differ: at each poll (`penstock.tasks.runtime.membership`), half of them are over.
    """
    pause = first_poll_seconds(waiters, far=far)
    count, left = min(0.5, wait_seconds / pause / 2), wait_seconds - pause
    while left > 0:
        pause = next_poll_seconds(pause, waiters)
        count += min(1.0, left / pause)
        left -= pause
    return count


def poll_delay_seconds(wait_seconds: float, waiters: int) -> float:
    """Return the mean seconds until a poll finds an object of another cluster, which came after `wait_seconds`."""
    pause = first_poll_seconds(waiters, far=True)
    while wait_seconds > pause:
        wait_seconds -= pause
        pause = next_poll_seconds(pause, waiters)
    return pause / 2


def _pages(objects: int) -> int:
    """Return the number of requests of a listing."""
    return max(1, math.ceil(objects / _LISTED_AT_ONCE))


def commit_bytes(deployment: Deployment) -> int:
    """Return the bytes of a commit."""
    shard = ShardRef(shard_name(0, 0, 0, 0, _DIGEST), _DIGEST, 1000, 10, 10, 100)
    state = StateRef(state_name(0, 0, 0, 0, _DIGEST), _DIGEST, 100, 10, 10)
    snapshot = SnapshotRef(snapshot_name(0, _DIGEST), _DIGEST, 1000, 10)
    shard_bytes, state_bytes, snapshot_bytes = (
        len(canonical_json(ref.to_json())) + 1 for ref in (shard, state, snapshot)
    )
    tiles, rounds = deployment.tiles, deployment.rounds_per_stage
    return _COMMIT_BYTES + tiles * (rounds * shard_bytes + state_bytes) + (deployment.lag + 1) * snapshot_bytes


def written_bytes(deployment: Deployment, sizes: Sizes) -> float:
    """Return the bytes that a stage writes to the store, including states that are removed again."""
    shards = deployment.tiles * deployment.rounds_per_stage * (sizes.shard_bytes + sizes.state_bytes)
    differences = sizes.difference_bytes if deployment.client else 0
    versions = deployment.rounds_per_stage * (sizes.snapshot_bytes + differences)
    return shards + versions + sizes.checkpoint_bytes + commit_bytes(deployment)


def kept_bytes(deployment: Deployment, sizes: Sizes) -> float:
    """Return the bytes of a stage that stay after `penstock gc`: shards and the commit."""
    return deployment.tiles * deployment.rounds_per_stage * sizes.shard_bytes + commit_bytes(deployment)


def read_bytes(deployment: Deployment, sizes: Sizes) -> float:
    """Return the bytes that a stage reads over the network; 0 where the store is a folder."""
    d = deployment
    if d.client is None:
        return 0.0
    commits = d.caches * commit_bytes(d)
    read = commits + d.learners * sizes.checkpoint_bytes + d.moved_states * sizes.state_bytes
    if d.apart:
        read += d.rounds_per_stage * (d.tiles * sizes.shard_bytes + d.nodes * sizes.version_read_bytes)
    return read


def node_reads(deployment: Deployment) -> tuple[int, int]:
    """Return a node's snapshot reads through its cache in a stage, and the number of them that go to the store."""
    of_store = deployment.rounds_per_stage if deployment.apart and deployment.client else 0
    return deployment.node_actors * deployment.rounds_per_stage, of_store


def hints(deployment: Deployment) -> tuple[float, float]:
    """Return the messages between workers in a round: those to a learner, and those to all actors' processes.

    A shard is announced when it is cached and when it is stored; with a folder as store these are one message. None
    goes to another cluster.
    """
    announcements, clusters = 1 if deployment.client is None else 2, deployment.clusters
    return (
        announcements * deployment.tiles / clusters / deployment.learners,
        (deployment.processes - deployment.learners) / clusters,
    )


def scheduler_messages(deployment: Deployment, stage_seconds: float) -> float:
    """Return the messages and calls of a stage at all Dask schedulers; no step and no shard causes one."""
    clusters = deployment.clusters
    reports = min(deployment.rounds_per_stage, 2 + _REPORTS_PER_SECOND * stage_seconds)
    # Topic, graphs and admission; a round's report, in and out; each member's task, report, log record and result.
    once = clusters * _STAGE_MESSAGES + 2 * reports + _MEMBER_MESSAGES * deployment.members
    once -= clusters - 1  # the learners' graph goes to one
    beats = deployment.processes / _heartbeat_seconds(-(-deployment.processes // clusters))
    return once + stage_seconds * (beats + clusters * _MESSAGES_PER_SECOND)


def _heartbeat_seconds(processes: int) -> float:
    """Return the seconds between a worker's heartbeats, by Dask's rule (`distributed.scheduler.heartbeat_interval`)."""
    if processes <= 10:
        return 0.5
    if processes < 50:
        return 1.0
    return 2.0 if processes < 200 else processes / 200 + 1


def prefect_calls(stage_seconds: float, constants: Mapping[str, float]) -> float:
    """Return the requests and events of a stage to Prefect's server.

    Replicas cause only log records, which are sent in batches.
    """
    return constants["prefect_stage_calls"] + constants["prefect_calls_per_second"] * stage_seconds

"""Timings of a stage: the durations of its parts and of its members' work. Written after the commit, for reports only.

A kill between the two loses them. Fields that earlier versions did not write have defaults; unknown ones are ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.storage.digest import canonical_json, parse_json
from penstock.storage.records import from_json, to_json
from penstock.storage.stores.counted import StoreCalls


@dataclass(frozen=True, slots=True)
class EdgeCount:
    """Counts what crossed processes on one edge of the dataflow."""

    bytes: int
    rounds: int
    """Messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineCounts:
    """Counts the work of a learner's input pipeline."""

    queue_depth: float = 0.0
    """Mean number of shards that were ready when one was taken."""
    wait_seconds: float = 0.0
    shards: int = 0
    read_bytes: int = 0
    requests: int = 0
    retries: int = 0
    hedges: int = 0
    peak_bytes: int = 0
    staging_bytes: int = 0
    staging_allocations: int = 0
    staging_uses: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCounts:
    """Counts a member's reads through the node's cache."""

    hits: int = 0
    misses: int = 0
    downloads: int = 0
    waits: int = 0
    origin_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSpans:
    """The first spans of a member's stage: `start, length, start, length, ...` in seconds since `began_at`."""

    began_at: float = 0.0
    """Unix time."""
    act: tuple[float, ...] | None = None
    learn: tuple[float, ...] | None = None
    wait: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActTimes:
    """The times of an act component in a stage."""

    member: str
    env_steps: int
    act_seconds: float
    wait_seconds: float
    """For snapshots."""
    first_step_at: float = 0.0
    """Unix time; 0 if everything was stored already."""
    task_seconds: float | None = None
    spans: MemberSpans = MemberSpans()
    cache: CacheCounts | None = None
    edges: Mapping[str, EdgeCount] = field(default_factory=dict)

    @property
    def work_seconds(self) -> dict[str, float]:
        """Return the seconds of each kind of work."""
        return {"act": self.act_seconds, "wait": self.wait_seconds}


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvTimes:
    """The times of an environment server in a stage."""

    member: str
    env_steps: int
    step_seconds: float
    """In the environments."""
    task_seconds: float | None = None
    edges: Mapping[str, EdgeCount] = field(default_factory=dict)

    @property
    def work_seconds(self) -> dict[str, float]:
        """Return the seconds of each kind of work."""
        return {"step": self.step_seconds}


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnTimes:
    """The times of a learner in a stage."""

    member: str
    env_steps: int
    """Stored steps that it learned from."""
    learn_seconds: float
    wait_seconds: float
    """For shards."""
    publish_seconds: float | None = None
    """None if it does not hold `sync`."""
    update_rows: int = 0
    task_seconds: float | None = None
    spans: MemberSpans = MemberSpans()
    pipeline: PipelineCounts = PipelineCounts()
    cache: CacheCounts | None = None
    edges: Mapping[str, EdgeCount] = field(default_factory=dict)

    @property
    def work_seconds(self) -> dict[str, float]:
        """Return the seconds of each kind of work."""
        return {"learn": self.learn_seconds, "wait": self.wait_seconds}


@dataclass(frozen=True, slots=True, kw_only=True)
class StalenessCounts:
    """Counts how stale the gradients were that a parameter server applied one learner at a time."""

    minibatches: int = 0
    """Learners' minibatches that were applied."""
    greatest_lead: int = 0
    """Most minibatches that a learner was ahead of the slowest when it began one: `max_staleness` at most."""
    mean_lead: float = 0.0
    greatest_delay: int = 0
    """Most minibatches of other learners that were applied between the parameters of a gradient and the gradient."""
    mean_delay: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTimes:
    """The times of a parameter server in a stage."""

    member: str
    serve_seconds: float
    publish_seconds: float | None = None
    task_seconds: float | None = None
    edges: Mapping[str, EdgeCount] = field(default_factory=dict)
    staleness: StalenessCounts | None = None
    """None unless `max_staleness` is set."""

    @property
    def work_seconds(self) -> dict[str, float]:
        """Return the seconds of each kind of work."""
        return {"serve": self.serve_seconds}


MemberTimes = ActTimes | EnvTimes | LearnTimes | ServerTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPlace:
    """The process in which a member ran."""

    scheduler: str = ""
    address: str = ""
    host: str = ""
    pid: int = 0
    reports: int = 1
    """More than one if its process was lost and it began again."""
    source: str = ""
    """Digest of the algorithm's source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUsage:
    """The resources that a worker process used while its members ran."""

    members: tuple[str, ...] = ()
    """The members that shared it, in the order of their names."""
    seconds: float = 0.0
    """Time that the longest of them ran."""
    cpu_seconds: float = 0.0
    """CPU time of all threads, divided by `seconds` the number of cores that it used."""
    memory_bytes: int = 0
    """Resident memory at the end."""
    gpu_memory_bytes: int | None = None
    """Peak of the GPU memory that torch allocated; None without a GPU."""
    store: Mapping[str, StoreCalls] = field(default_factory=dict)
    """Its calls of the store by operation; files that it maps from a local folder are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimings:
    """The duration of a stage, and the times of each of its members."""

    stage: int
    attempt: int = 0
    started_at: float
    """Unix time."""
    stage_seconds: float
    admission_seconds: float = 0.0
    gather_seconds: float = 0.0
    roles_seconds: float = 0.0
    prefect_seconds: float | None = None
    """Part of `roles_seconds`: all members had ended, and the flow run had not begun. None if it never waited."""
    evaluate_seconds: float = 0.0
    act: tuple[ActTimes, ...]
    learn: tuple[LearnTimes, ...]
    env: tuple[EnvTimes, ...] | None = None
    server: tuple[ServerTimes, ...] | None = None
    members: Mapping[str, MemberPlace] = field(default_factory=dict)
    processes: tuple[ProcessUsage, ...] = ()
    edges: Mapping[str, EdgeCount] = field(default_factory=dict)
    missed_shards: int | None = None
    """Shards that were not learned from; None with quorum 1."""
    late_shards: int | None = None
    """Missed shards that arrived late."""

    @property
    def own_seconds(self) -> float:
        """Return the stage's duration without the wait for its flow run."""
        return self.stage_seconds - (self.prefect_seconds or 0.0)

    @property
    def by_component(self) -> dict[str, tuple[MemberTimes, ...]]:
        """Return the times of all members by component."""
        return {"act": self.act, "env": self.env or (), "learn": self.learn, "server": self.server or ()}


def timings_name(stage: int, generation: int) -> str:
    """Return `timings/<stage>-<generation>.json`: the lease's generation names the driver that wrote them."""
    return f"timings/{stage:08d}-{generation:08d}.json"


def encode_timings(timings: StageTimings) -> bytes:
    """Return the bytes of a timings object."""
    return canonical_json(to_json(timings))


def decode_timings(data: bytes) -> StageTimings | None:
    """Return the timings that an object holds; None if it is damaged, for no run depends on them."""
    try:
        return from_json(StageTimings, parse_json(data), ignore_unknown=True)
    except ValueError:
        return None

"""Predicts for `penstock scale` the throughput and the first bottleneck of a number of actors and learners.

The model is a pure function. Every part of the system has the seconds that it alone needs for a stage. Sequential parts
add up, concurrent parts do not; the part with the most seconds is the first bottleneck. Imports no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.tasks.setup.planning.operation_counts import (
    StageSeconds,
    begin_requests,
    commit_bytes,
    hints,
    node_reads,
    poll_delay_seconds,
    prefect_calls,
    read_bytes,
    scheduler_messages,
    store_requests,
    written_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.tasks.setup.planning.operation_counts import Deployment
    from penstock.tasks.setup.planning.round_time import PartSeconds
    from penstock.tasks.setup.planning.traffic import Sizes

_WRITER_REQUESTS = 3
"""Requests of a tile's round: a shard and a state are written, an older state is removed."""
_STAGE_ROUND_TRIPS = 12
"""Sequential round trips to the store: a stage's beginning, its checkpoint, its commit."""

REMEDIES = {
    "stepping": "nothing holds the actors up: more actors give more steps",
    "inference": "a smaller network, larger tiles (environment.envs_per_tile), --snapshot-dtype bfloat16",
    "shard writing": "larger shards: more environments a tile, more steps a round",
    "snapshot reading": "a smaller network, --snapshot-dtype bfloat16, more steps a round",
    "learner": "more learners, a GPU, fewer epochs, larger minibatches",
    "learner input": "fewer and larger shards (environment.envs_per_tile, schedule.round_steps), more learners, "
    "--store s3+obstore://",
    "scheduler": "more rounds a stage (schedule.rounds_per_stage), more environments an actor and fewer actors",
    "object store requests": "fewer and larger shards, --store s3+obstore://, a store that takes more",
    "bandwidth": "columns stored smaller (shards.compression, shards.stacked), more learners, faster networks",
    "commit": "fewer and larger shards: a commit names each, and every member parses it",
    "snapshot fan-out": "schedule.lag 1, --snapshot-dtype int8, or bfloat16 with --snapshot-differences true, more "
    "actors a node",
    "Prefect": "more rounds a stage; Prefect's server on Postgres",
}
"""The parts of the system, and what to do about each when it is the first bottleneck."""
ACTING = ("stepping", "inference", "shard writing", "snapshot reading")
"""Parts that an actor does in turn."""
LEARNING = ("learner", "learner input")
"""Parts that a learner does in turn."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The steady-state prediction for one deployment."""

    deployment: Deployment
    round_seconds: float
    stage_seconds: float
    parts: dict[str, float]
    """Seconds that each part needs for a stage, by the names of `REMEDIES`."""
    requests: dict[str, float]
    """Requests of a stage to the store, by kind."""
    written_bytes: float
    """Bytes that a stage writes to the store."""
    read_bytes: float
    """Bytes that a stage reads over the network."""
    messages: float
    """Messages of a stage to and from the Dask scheduler."""
    calls: float
    """Requests of a stage to Prefect's server."""
    cache_hits: float
    """Share of a node's snapshot reads that its cache serves."""

    @property
    def steps_per_second(self) -> float:
        """Return the environment steps of all actors per second."""
        return self.deployment.round_rows * self.deployment.rounds_per_stage / self.stage_seconds

    @property
    def bottleneck(self) -> str:
        """Return the part that needs the most seconds."""
        return max(self.parts, key=lambda name: self.parts[name])

    def per_second(self, of_stage: float) -> float:
        """Return the rate per second of something counted per stage."""
        return of_stage / self.stage_seconds


def predict(deployment: Deployment, sizes: Sizes, parts: PartSeconds, constants: Mapping[str, float]) -> Prediction:
    """Predict the throughput of a deployment, and the seconds, requests, bytes and messages of a stage.

    Args:
        deployment: Numbers of actors, learners, nodes and processes.
        sizes: Bytes and counts of the messages of a round.
        parts: Seconds of the parts of a round, each measured alone.
        constants: Values of `penstock.tasks.setup.planning.measured_constants`, by name.
    """
    d, rounds = deployment, deployment.rounds_per_stage
    acting, learning = _acting(d, parts, constants), _learning(d, sizes, parts, constants)
    act, learn, fan_out = sum(acting.values()), sum(learning.values()), _fan_out(d, sizes, constants)
    announced = 2 * constants["hint_latency_seconds"] + _round_trips(d) * constants["request_seconds"]
    if d.clusters > 1:  # a version is found by polls, and so is the last shard, for which there was little to wait
        announced += poll_delay_seconds(learn + fan_out, -(-d.act_processes // d.clusters))
        announced += poll_delay_seconds(0.0, d.learners)
    ends, filling = _ends(d, parts, constants), 0.0
    if d.lag == 0:
        round_seconds, wait = act + learn + fan_out + announced, learn + fan_out
    else:
        round_seconds = max(act, learn, fan_out, _shared(d, parts, learn, constants)) + announced / (d.lag + 1)
        wait = round_seconds - act
        # Nothing overlaps with a stage's first acting and its last learning.
        filling = act + learn + fan_out - max(act, learn, fan_out)
    alone = rounds * round_seconds + filling + sum(ends.values())
    # Polls of the lease, and of storage by waiters, delay nothing: a busy store answers them later.
    needed = store_requests(d, sizes, StageSeconds(0.0, 0.0, 0.0))
    concurrent = _concurrent(d, sizes, needed, constants)
    concurrent["Prefect"] = _prefect_seconds(d, alone, constants)
    round_seconds = max(round_seconds, concurrent["object store requests"] / rounds, concurrent["bandwidth"] / rounds)
    stage_seconds = max(rounds * round_seconds + filling + sum(ends.values()), concurrent["Prefect"])
    found = {name: rounds * seconds for name, seconds in (*acting.items(), *learning.items())}
    reads, downloads = node_reads(d)
    return Prediction(
        deployment=d,
        round_seconds=round_seconds,
        stage_seconds=stage_seconds,
        parts=found | {"snapshot fan-out": rounds * fan_out} | ends | concurrent,
        requests=store_requests(d, sizes, StageSeconds(stage_seconds, wait, round_seconds)),
        written_bytes=written_bytes(d, sizes),
        read_bytes=read_bytes(d, sizes),
        messages=scheduler_messages(d, stage_seconds),
        calls=prefect_calls(stage_seconds, constants),
        cache_hits=1.0 - downloads / reads,
    )


def actor_cpu_seconds(deployment: Deployment, parts: PartSeconds, constants: Mapping[str, float]) -> float:
    """Return the processor seconds of all actors' processes for a stage."""
    d, rounds = deployment, deployment.rounds_per_stage
    begins = d.actors * _begin_seconds(d, constants)
    begins += d.act_processes * d.tiles * rounds * constants["read_ref_seconds"]
    received = hints(d)[1] * constants["hint_seconds"]
    return begins + rounds * (_actors_cpu_seconds(d, parts, constants) + received)


def learner_cpu_seconds(
    deployment: Deployment, sizes: Sizes, parts: PartSeconds, constants: Mapping[str, float]
) -> float:
    """Return the processor seconds of all learners' processes for a stage."""
    d, rounds = deployment, deployment.rounds_per_stage
    read = d.tiles * rounds * constants["read_ref_seconds"]
    return d.learners * (rounds * sum(_learning(d, sizes, parts, constants).values()) + read)


def _acting(d: Deployment, parts: PartSeconds, constants: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of a round: of one actor, of all on a node's cores, or of all in a process; the largest.

    Stepping releases the interpreter lock; inference and writing hold it most of the time.
    """
    infer, write = d.round_steps * parts.infer, _writing(d, parts, constants)
    cores = d.node_actors / _cores(parts, constants)
    queue = d.node_actors / d.node_processes
    most = max(
        (d.round_steps * parts.step, infer, write),
        (cores * d.round_steps * parts.step_cpu, cores * infer, cores * write),
        (0.0, queue * infer, queue * write),
        key=sum,
    )
    found = {
        name: d.tiles_per_actor * seconds
        for name, seconds in zip(("stepping", "inference", "shard writing"), most, strict=True)
    }
    return found | {"snapshot reading": max(1.0, cores) * parts.fetch}


def _writing(d: Deployment, parts: PartSeconds, constants: Mapping[str, float]) -> float:
    return parts.write + (0.0 if d.client is None else _WRITER_REQUESTS * _request_cpu_seconds(d, constants))


def _learning(d: Deployment, sizes: Sizes, parts: PartSeconds, constants: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of a round for reading its shards and for learning from them."""
    tiles = d.tiles / d.learners
    fetch = _request_cpu_seconds(d, constants) if d.client and d.apart else 0.0
    update = parts.update + parts.update_row * d.round_rows / d.learners
    if d.learners > 1:
        gradients = 2 * sizes.gradient_bytes * 8 / constants["node_bits_per_second"]
        update += (sizes.updates + 1) * parts.collective * math.log2(d.learners) + gradients
    return {"learner": update, "learner input": tiles * (parts.take + fetch) + hints(d)[0] * constants["hint_seconds"]}


def _shared(d: Deployment, parts: PartSeconds, learn: float, constants: Mapping[str, float]) -> float:
    """Return the seconds of a round on one node that acts and learns with all of its cores."""
    if d.apart:
        return 0.0
    return (_actors_cpu_seconds(d, parts, constants) + d.learners * learn) / _cores(parts, constants)


def _cores(parts: PartSeconds, constants: Mapping[str, float]) -> float:
    """Return how many cores without others next to them would compute as fast as all cores of a node together."""
    cores = constants["cores_per_node"]
    return cores if cores <= 1 else max(1.0, cores * parts.busy_core_speed)


def _actors_cpu_seconds(d: Deployment, parts: PartSeconds, constants: Mapping[str, float]) -> float:
    """Return the processor seconds in which all actors read a version, and step, infer and write a round."""
    of_tile = d.round_steps * (parts.step_cpu + parts.infer) + _writing(d, parts, constants)
    return d.tiles * of_tile + d.actors * parts.fetch


def _fan_out(d: Deployment, sizes: Sizes, constants: Mapping[str, float]) -> float:
    """Return the seconds until all nodes have a version: it is announced to all, and then all read it at once."""
    received = hints(d)[1] * constants["hint_seconds"]
    if d.client is None or not d.apart:
        return received
    bits = max(1 / constants["node_bits_per_second"], d.nodes / constants["store_bits_per_second"])
    return received + constants["request_seconds"] + 8 * sizes.version_read_bytes * bits


def _round_trips(d: Deployment) -> int:
    """Return the sequential round trips to the store in a round: a version and a shard are stored, a shard is read."""
    return 0 if d.client is None else 3 if d.apart else 1


def _ends(d: Deployment, parts: PartSeconds, constants: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of a stage outside its rounds."""
    cores = _cores(parts, constants)
    crowd = d.node_actors / min(cores, d.node_processes)
    refs = d.tiles * d.rounds_per_stage
    starts = constants["stage_seconds"] + constants["member_seconds"] * d.members
    parse = max(1.0, d.node_processes / cores) * constants["read_ref_seconds"]
    commit = (constants["commit_ref_seconds"] + parse) * refs
    if d.client:
        commit += _STAGE_ROUND_TRIPS * constants["request_seconds"]
        commit += 8 * d.caches * commit_bytes(d) / constants["store_bits_per_second"]
    return {"scheduler": starts + max(1.0, crowd) * _begin_seconds(d, constants), "commit": commit}


def _begin_seconds(d: Deployment, constants: Mapping[str, float]) -> float:
    """Return the seconds of an actor's process at a stage's beginning."""
    begins = d.tiles_per_actor * constants["begin_seconds"]
    if d.client:
        begins += begin_requests(d) * _request_cpu_seconds(d, constants)
    return begins


def _concurrent(
    d: Deployment, sizes: Sizes, requests: Mapping[str, float], constants: Mapping[str, float]
) -> dict[str, float]:
    """Return the seconds of a stage that run concurrently with acting and learning."""
    if d.client is None:
        return {"object store requests": 0.0, "bandwidth": 0.0}
    reads = requests["get"] + requests["head"]
    writes = sum(requests.values()) - reads
    of_node = d.rounds_per_stage * d.node_actors * d.tiles_per_actor * (sizes.shard_bytes + sizes.state_bytes)
    of_learner = d.rounds_per_stage * d.tiles / d.learners * sizes.shard_bytes if d.apart else 0.0
    return {
        "object store requests": max(reads / constants["reads_per_second"], writes / constants["writes_per_second"]),
        "bandwidth": 8
        * max(
            max(of_node, of_learner) / constants["node_bits_per_second"],
            (written_bytes(d, sizes) + read_bytes(d, sizes)) / constants["store_bits_per_second"],
        ),
    }


def _prefect_seconds(d: Deployment, stage_seconds: float, constants: Mapping[str, float]) -> float:
    records = constants["log_record_seconds"] * d.members
    return prefect_calls(stage_seconds, constants) * constants["prefect_call_seconds"] + records


def _request_cpu_seconds(d: Deployment, constants: Mapping[str, float]) -> float:
    return constants["obstore_request_seconds" if d.client == "s3+obstore" else "s3fs_request_seconds"]

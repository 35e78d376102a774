"""`penstock scale`: what so many actors and learners would reach, and what holds them up first. A pure function.

Every part of the system gets the seconds that it alone needs for a stage. Parts that take turns add up, parts that run
beside each other don't; the part with the most seconds is the first bottleneck. Imports no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.capacity_counts import (
    StageSeconds,
    begin_requests,
    commit_bytes,
    hints,
    node_reads,
    prefect_calls,
    read_bytes,
    scheduler_messages,
    store_requests,
    written_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tasks.capacity_counts import Deployment
    from tasks.cost import Sizes
    from tasks.round_time import PartSeconds

_WRITER_REQUESTS = 3
"""Of a tile's round: a shard and a state are written, an older state is removed."""
_STAGE_ROUND_TRIPS = 12
"""To the store, one after the other: a stage's beginning, its checkpoint, its commit."""

REMEDIES = {
    "stepping": "nothing holds the actors up: more actors give more steps",
    "inference": "a smaller network, larger tiles (environment.envs_per_tile), --snapshot-dtype bfloat16",
    "shard writing": "larger shards: more environments a tile, more steps a round",
    "learner": "more learners, a GPU, fewer epochs, larger minibatches",
    "learner input": "fewer and larger shards (environment.envs_per_tile, schedule.round_steps), more learners, "
    "--store s3+obstore://",
    "scheduler": "more rounds a stage (schedule.rounds_per_stage), more environments an actor and fewer actors",
    "object store requests": "fewer and larger shards, --store s3+obstore://, a store that takes more",
    "bandwidth": "columns stored smaller (shards.compression, shards.stacked), more learners, faster networks",
    "commit": "fewer and larger shards: a commit names each, and every member parses it",
    "snapshot fan-out": "schedule.lag 1, --snapshot-dtype bfloat16 or int8, more actors a node",
    "Prefect": "more rounds a stage; Prefect's server on Postgres",
}
"""The parts of the system, and what to do about each when it is the first bottleneck."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of one deployment, in the long run."""

    deployment: Deployment
    round_seconds: float
    stage_seconds: float
    parts: dict[str, float]
    """Seconds that each part needs for a stage, by the names of `REMEDIES`."""
    requests: dict[str, float]
    """Of a stage, to the store, by kind."""
    written_bytes: float
    """Of a stage."""
    read_bytes: float
    """Of a stage."""
    messages: float
    """Of a stage, that reach the Dask scheduler or leave it."""
    calls: float
    """Of a stage, to Prefect's server."""
    cache_hits: float
    """Of a node's reads of snapshots, the share that does not go to the store."""

    @property
    def steps_per_second(self) -> float:
        """Environment steps of all actors."""
        return self.deployment.round_rows * self.deployment.rounds_per_stage / self.stage_seconds

    @property
    def bottleneck(self) -> str:
        """The part that needs most."""
        return max(self.parts, key=lambda name: self.parts[name])

    def per_second(self, of_stage: float) -> float:
        """Of something that a stage has so many of."""
        return of_stage / self.stage_seconds


def predict(deployment: Deployment, sizes: Sizes, parts: PartSeconds, constants: Mapping[str, float]) -> Prediction:
    """What a deployment reaches.

    Args:
        deployment: who is where.
        sizes: of what its loop moves.
        parts: what the parts of a round took, tried alone.
        constants: of `tasks.capacity_constants`, by name.
    """
    d, rounds = deployment, deployment.rounds_per_stage
    acting, learning = _acting(d, parts, constants), _learning(d, sizes, parts, constants)
    act, learn, fan_out = sum(acting.values()), sum(learning.values()), _fan_out(d, sizes, constants)
    told = 2 * constants["hint_latency_seconds"] + _round_trips(d) * constants["request_seconds"]
    ends = _ends(d, constants)
    if d.lag == 0:
        round_seconds, wait = act + learn + fan_out + told, learn + fan_out
    else:
        round_seconds = max(act, learn, fan_out, _shared(d, parts, learn, constants)) + told / (d.lag + 1)
        wait = round_seconds - act
    alone = rounds * round_seconds + sum(ends.values())
    # Who looks at the lease, or into storage while waiting, holds nobody up: a busy store answers them later.
    needed = store_requests(d, sizes, StageSeconds(0.0, 0.0, 0.0))
    beside = _beside(d, sizes, needed, constants)
    beside["Prefect"] = _prefect_seconds(d, alone, constants)
    round_seconds = max(round_seconds, beside["object store requests"] / rounds, beside["bandwidth"] / rounds)
    stage_seconds = max(rounds * round_seconds + sum(ends.values()), beside["Prefect"])
    found = {name: rounds * seconds for name, seconds in (*acting.items(), *learning.items())}
    reads, downloads = node_reads(d)
    return Prediction(
        deployment=d,
        round_seconds=round_seconds,
        stage_seconds=stage_seconds,
        parts=found | {"snapshot fan-out": rounds * fan_out} | ends | beside,
        requests=store_requests(d, sizes, StageSeconds(stage_seconds, wait, round_seconds)),
        written_bytes=written_bytes(d, sizes),
        read_bytes=read_bytes(d, sizes),
        messages=scheduler_messages(d, stage_seconds),
        calls=prefect_calls(stage_seconds, constants),
        cache_hits=1.0 - downloads / reads,
    )


def actor_cpu_seconds(deployment: Deployment, parts: PartSeconds, constants: Mapping[str, float]) -> float:
    """Of processors, for a stage: what all actors' processes take together."""
    d, rounds = deployment, deployment.rounds_per_stage
    begins = d.actors * _begin_seconds(d, constants)
    begins += d.act_processes * d.tiles * rounds * constants["read_ref_seconds"]
    told = hints(d)[1] * constants["hint_seconds"]
    return begins + rounds * (d.tiles * _tile_cpu_seconds(d, parts, constants) + told)


def learner_cpu_seconds(
    deployment: Deployment, sizes: Sizes, parts: PartSeconds, constants: Mapping[str, float]
) -> float:
    """Of processors, for a stage: what all learners' processes take together."""
    d, rounds = deployment, deployment.rounds_per_stage
    read = d.tiles * rounds * constants["read_ref_seconds"]
    return d.learners * (rounds * sum(_learning(d, sizes, parts, constants).values()) + read)


def _acting(d: Deployment, parts: PartSeconds, constants: Mapping[str, float]) -> dict[str, float]:
    """Seconds of a round: of an actor by itself, of all on a node's cores, or of all in a process, whichever is most.

    Stepping leaves the interpreter to others; inference and writing hold it, or as good as.
    """
    infer, write = d.round_steps * parts.infer, _writing(d, parts, constants)
    cores = d.node_actors / constants["cores_per_node"]
    queue = d.node_actors / d.node_processes
    most = max(
        (d.round_steps * parts.step, infer, write),
        (cores * d.round_steps * parts.step_cpu, cores * infer, cores * write),
        (0.0, queue * infer, queue * write),
        key=sum,
    )
    return {
        name: d.tiles_per_actor * seconds
        for name, seconds in zip(("stepping", "inference", "shard writing"), most, strict=True)
    }


def _writing(d: Deployment, parts: PartSeconds, constants: Mapping[str, float]) -> float:
    return parts.write + (0.0 if d.client is None else _WRITER_REQUESTS * _request_cpu_seconds(d, constants))


def _learning(d: Deployment, sizes: Sizes, parts: PartSeconds, constants: Mapping[str, float]) -> dict[str, float]:
    """Seconds of a round: shards are taken in, and learned."""
    tiles = d.tiles / d.learners
    fetch = _request_cpu_seconds(d, constants) if d.client and d.apart else 0.0
    update = parts.update + parts.update_row * d.round_rows / d.learners
    if d.learners > 1:
        gradients = 2 * sizes.gradient_bytes * 8 / constants["node_bits_per_second"]
        update += (sizes.updates + 1) * parts.collective * math.log2(d.learners) + gradients
    return {"learner": update, "learner input": tiles * (parts.take + fetch) + hints(d)[0] * constants["hint_seconds"]}


def _shared(d: Deployment, parts: PartSeconds, learn: float, constants: Mapping[str, float]) -> float:
    """Of a round, where one node does everything: what acting and learning together need of its cores."""
    if d.apart:
        return 0.0
    return (d.tiles * _tile_cpu_seconds(d, parts, constants) + d.learners * learn) / constants["cores_per_node"]


def _tile_cpu_seconds(d: Deployment, parts: PartSeconds, constants: Mapping[str, float]) -> float:
    """Of a processor, for a round of a tile: what it steps, infers and writes."""
    return d.round_steps * (parts.step_cpu + parts.infer) + _writing(d, parts, constants)


def _fan_out(d: Deployment, sizes: Sizes, constants: Mapping[str, float]) -> float:
    """Seconds until all nodes have a version: all are told, and then all ask at once."""
    told = hints(d)[1] * constants["hint_seconds"]
    if d.client is None or not d.apart:
        return told
    bits = max(1 / constants["node_bits_per_second"], d.nodes / constants["store_bits_per_second"])
    return told + constants["request_seconds"] + 8 * sizes.snapshot_bytes * bits


def _round_trips(d: Deployment) -> int:
    """To the store, one after the other in a round: a version is stored; a shard is, and is read elsewhere."""
    return 0 if d.client is None else 3 if d.apart else 1


def _ends(d: Deployment, constants: Mapping[str, float]) -> dict[str, float]:
    """Seconds of a stage beside its rounds."""
    crowd = d.node_actors / min(constants["cores_per_node"], d.node_processes)
    refs = d.tiles * d.rounds_per_stage
    starts = constants["stage_seconds"] + constants["member_seconds"] * d.members
    parse = max(1.0, d.node_processes / constants["cores_per_node"]) * constants["read_ref_seconds"]
    commit = (constants["commit_ref_seconds"] + parse) * refs
    if d.client:
        commit += _STAGE_ROUND_TRIPS * constants["request_seconds"]
        commit += 8 * d.caches * commit_bytes(d) / constants["store_bits_per_second"]
    return {"scheduler": starts + max(1.0, crowd) * _begin_seconds(d, constants), "commit": commit}


def _begin_seconds(d: Deployment, constants: Mapping[str, float]) -> float:
    """Of an actor's process, at a stage's beginning."""
    begins = d.tiles_per_actor * constants["begin_seconds"]
    if d.client:
        begins += begin_requests(d) * _request_cpu_seconds(d, constants)
    return begins


def _beside(
    d: Deployment, sizes: Sizes, requests: Mapping[str, float], constants: Mapping[str, float]
) -> dict[str, float]:
    """Seconds of a stage, of what goes on beside acting and learning."""
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

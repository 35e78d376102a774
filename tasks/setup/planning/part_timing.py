"""Times the parts of a round on this machine, one by one, for a calibration."""

from __future__ import annotations

import os
import socket
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import HashStore, ProcessGroupGloo  # type: ignore[attr-defined]

from penstock.storage.errors import ConfigError
from penstock.storage.refs import ShardRef, parse_shard_name
from penstock.tasks.data.input.pipeline import ShardPipeline
from penstock.tasks.model.algorithms.contract import window_spec
from penstock.tasks.roles.acting.shard_writer import RoundWriter
from penstock.tasks.roles.acting.tile import RoundBuffers, TileActor
from penstock.tasks.roles.acting.torch_tile import DeviceParams, TorchTileActor
from penstock.tasks.roles.learning.shard_feed import learned_columns
from penstock.tasks.roles.reducing.reduction import LocalReduction
from penstock.tasks.roles.stepping.protocol import StepFrame
from penstock.tasks.roles.stepping.sockets import Link
from penstock.tasks.seeds import Purpose, environment_seeds
from penstock.tasks.setup.planning.dry_run import NullMembership, learn_once, training_rows
from penstock.tasks.setup.planning.round_time import PartSeconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.tasks.roles.acting.tile import ActedRound
    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.setup.planning.traffic import Sizes
    from penstock.tasks.specs import Batch, State

_TRIES = 3
_LONG_SECONDS = 1.0
_PINGS, _SUMS, _TAKEN = 200, 30, 32


def seconds_of(
    assignment: Assignment, context: RunContext, state: State, sizes: Sizes, device: torch.device
) -> PartSeconds:
    """Return the shortest of a few times of each part; other load on the machine only adds to them."""
    torch.set_num_threads(1)
    buffers = RoundBuffers(context, 0)
    actor = TileActor(context, 0)
    actor.start()
    acted = [actor.act_round(0, state.params, buffers)]
    acting = _best(lambda: acted.append(actor.act_round(0, state.params, buffers)))
    actor.close()
    stepping, stepping_cpu = _stepping(context, buffers)
    steps = context.config.schedule.round_steps
    torch.set_num_threads(context.config.distribution.torch_threads)
    batch = training_rows(context, state, acted[-1])
    update, update_row = _learning(context, state, batch)
    return PartSeconds(
        step=stepping / steps,
        step_cpu=stepping_cpu / steps,
        infer=max(0.0, acting - stepping) / steps,
        write=_best(lambda: _write(assignment, context, acted[-1])),
        take=_take(context, state),
        torch_round=_torch_round(context, state, buffers, device),
        update=update,
        update_row=update_row,
        message=_ping(context) / 2,
        collective=_sum(sizes.gradient_bytes // max(1, sizes.updates)),
        cores=len(os.sched_getaffinity(0)),
    )


def _best(work: Callable[[], Any], tries: int = _TRIES) -> float:
    """Return the seconds of the fastest of a few tries; of one try, if it takes long."""
    taken = []
    for _ in range(tries):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
        if taken[-1] > _LONG_SECONDS:
            break
    return min(taken)


def _stepping(context: RunContext, buffers: RoundBuffers) -> tuple[float, float]:
    """Step a round's environments with recorded actions; return wall seconds and CPU seconds."""
    pool = context.make_pool(context.config.environment.envs_per_tile)
    pool.reset_ids(environment_seeds(context.config.seed, Purpose.ENVIRONMENT, env_ids=context.envs_of(0)))
    actions = [action.copy() for action in buffers.action_rows]
    columns = [buffers.arrays[name] for name in ("observation", "reward", "terminated", "truncated", "episode_id")]

    def step() -> None:
        pool.begin_round(*columns)
        for t, action in enumerate(actions):
            pool.step_round(t, action)
        pool.end_round()
        pool.save()

    step()
    seconds = _best(step)
    began = time.thread_time()
    step()
    busy = time.thread_time() - began
    pool.close()
    return seconds, min(seconds, busy)


def _torch_round(context: RunContext, state: State, buffers: RoundBuffers, device: torch.device) -> float | None:
    """Return the seconds of a round in tensors; None if the environment can't be stepped so on this device."""
    try:
        actor = TorchTileActor(context, 0, device)
    except ConfigError:
        return None
    params = DeviceParams(device).load(state.params)
    actor.start()
    actor.act_round(0, params, buffers)
    seconds = _best(lambda: actor.act_round(0, params, buffers))
    actor.close()
    return seconds


def _write(assignment: Assignment, context: RunContext, acted: ActedRound) -> None:
    writer = RoundWriter(assignment, context, NullMembership(), {}, {})  # type: ignore[arg-type]
    writer.buffers(_Tile(acted.tile))  # type: ignore[arg-type]
    writer.submit(acted)
    writer.close()


def _take(context: RunContext, state: State) -> float:
    """Return the seconds to read a stored shard through the learner's pipeline and make training rows of it."""
    name = context.run.store.list("shards/")[0]  # several rounds were stored; any of them will do
    shard = ShardRef(name, parse_shard_name(name).digest, 0, round=0, tile=0, rows=0)
    params = {} if window_spec(context.algorithm) else state.params
    specs, columns = context.columns, learned_columns(context)

    @torch.no_grad()
    def take() -> None:
        with ShardPipeline([shard] * _TAKEN, context.run.store, expected=specs, columns=columns) as pipeline:
            for _ in range(_TAKEN):
                loaded = pipeline.take()
                context.algorithm.post(params, loaded.trajectory)
                loaded.release()

    take()
    return _best(take) / _TAKEN


class _Tile:
    """Stands for the tile actor: names the tile whose buffers a writer returns."""

    def __init__(self, tile: int) -> None:
        self.tile = tile


def _learning(context: RunContext, state: State, batch: Batch) -> tuple[float, float]:
    """Return the constant seconds of a round's learning, and those per row: a line through two sizes."""
    tiles = context.config.environment.tiles
    rows = len(next(iter(batch.values())))
    half = {name: column[: rows // 2] for name, column in batch.items()}
    few, many = ([batch] * (tiles // 2), [batch] * tiles) if tiles > 1 else ([half], [batch])
    counts = [sum(len(next(iter(part.values()))) for part in parts) for parts in (few, many)]
    learn_once(context, state, few, LocalReduction(context.algorithm))
    less, more = (
        _best(lambda parts=parts: learn_once(context, state, parts, LocalReduction(context.algorithm)))  # type: ignore[misc]
        for parts in (few, many)
    )
    of_row = max(0.0, more - less) / max(1, counts[1] - counts[0])
    return max(0.0, more - of_row * counts[1]), of_row


def _ping(context: RunContext) -> float:
    """Return the seconds of a round trip between two threads: actions one way, a step's frame back."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = Link(socket.create_connection(server.getsockname()), "env server")
        far = Link(server.accept()[0], "actor")
    down, up = bytearray(StepFrame(context).action.nbytes), bytes(StepFrame(context).whole)

    def answer() -> None:
        for _ in range(_PINGS):
            far.receive_into(memoryview(down))
            far.send(up)

    thread = threading.Thread(target=answer, name="ping")
    thread.start()
    message, received = bytes(down), memoryview(bytearray(up))
    started = time.perf_counter()
    for _ in range(_PINGS):
        near.send(message)
        near.receive_into(received)
    seconds = (time.perf_counter() - started) / _PINGS
    thread.join()
    near.close()
    far.close()
    return seconds


def _sum(nbytes: int) -> float:
    """Return the seconds of a gradient's all-reduce between two members, here two threads."""
    store, taken = HashStore(), [0.0, 0.0]

    def member(rank: int) -> None:
        group: Any = ProcessGroupGloo(store, rank, 2, timedelta(seconds=60))
        tensor = torch.zeros(max(1, nbytes // 4))
        group.allreduce([tensor]).wait()
        started = time.perf_counter()
        for _ in range(_SUMS):
            group.allreduce([tensor]).wait()
        taken[rank] = (time.perf_counter() - started) / _SUMS

    threads = [threading.Thread(target=member, args=(rank,), name=f"sum-{rank}") for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(taken)

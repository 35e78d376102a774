"""What the parts of a round take on this machine, tried one by one; for `tasks.calibration`."""

from __future__ import annotations

import os
import socket
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import HashStore, ProcessGroupGloo  # type: ignore[attr-defined]

from storage.refs import ShardRef, parse_shard_name
from tasks.algorithm import window_spec
from tasks.feed import learned_columns
from tasks.links import Link
from tasks.pipeline import ShardPipeline
from tasks.reduce import LocalReduction
from tasks.round_time import PartSeconds
from tasks.step_frames import StepFrame
from tasks.streams import Purpose, environment_seeds
from tasks.tile import RoundBuffers, TileActor
from tasks.torch_environments import torch_environment_ids
from tasks.torch_tile import DeviceParams, TorchTileActor
from tasks.trial_rounds import Nobody, learn_once, training_rows
from tasks.writer import RoundWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from tasks.assignment import Assignment
    from tasks.context import RunContext
    from tasks.cost import Sizes
    from tasks.specs import Batch, State
    from tasks.tile import ActedRound

_TRIES = 3
_LONG_SECONDS = 1.0
_PINGS, _SUMS, _TAKEN = 200, 30, 32


def seconds_of(
    assignment: Assignment, context: RunContext, state: State, sizes: Sizes, device: torch.device
) -> PartSeconds:
    """Try each part a few times; the best counts, since whatever else the machine does only adds to it."""
    torch.set_num_threads(1)
    buffers = RoundBuffers(context, 0)
    actor = TileActor(context, 0)
    actor.start()
    acted = [actor.act_round(0, state.params, buffers)]
    acting = _best(lambda: acted.append(actor.act_round(0, state.params, buffers)))
    actor.close()
    stepping, stepping_cpu = _stepping(context, buffers)
    steps = context.config.schedule.round_steps
    torch.set_num_threads(context.config.placement.torch_threads)
    batch = training_rows(context, state, acted[-1])
    update, update_row = _learning(context, state, batch)
    in_torch = None
    if context.config.environment.id in torch_environment_ids():
        in_torch = _torch_round(context, state, buffers, device)
    return PartSeconds(
        step=stepping / steps,
        step_cpu=stepping_cpu / steps,
        infer=max(0.0, acting - stepping) / steps,
        write=_best(lambda: _write(assignment, context, acted[-1])),
        take=_take(context, state),
        torch_round=in_torch,
        update=update,
        update_row=update_row,
        message=_ping(context) / 2,
        collective=_sum(sizes.gradient_bytes // max(1, sizes.updates)),
        cores=len(os.sched_getaffinity(0)),
    )


def _best(work: Callable[[], Any], tries: int = _TRIES) -> float:
    """Seconds of the quickest of a few tries; of one, if that takes long."""
    taken = []
    for _ in range(tries):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
        if taken[-1] > _LONG_SECONDS:
            break
    return min(taken)


def _stepping(context: RunContext, buffers: RoundBuffers) -> tuple[float, float]:
    """The round's environments alone, with actions that were taken before: seconds, and those of the processor."""
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


def _torch_round(context: RunContext, state: State, buffers: RoundBuffers, device: torch.device) -> float:
    actor, params = TorchTileActor(context, 0, device), DeviceParams(device).load(state.params)
    actor.start()
    actor.act_round(0, params, buffers)
    seconds = _best(lambda: actor.act_round(0, params, buffers))
    actor.close()
    return seconds


def _write(assignment: Assignment, context: RunContext, acted: ActedRound) -> None:
    writer = RoundWriter(assignment, context, Nobody(), {}, {})  # type: ignore[arg-type]
    writer.buffers(_Tile(acted.tile))  # type: ignore[arg-type]
    writer.submit(acted)
    writer.close()


def _take(context: RunContext, state: State) -> float:
    """A stored shard through the learner's pipeline, until it is training rows."""
    name = context.run.store.list("shards/")[0]  # rounds were written again and again, and differ
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
    """Whose buffers a writer takes back."""

    def __init__(self, tile: int) -> None:
        self.tile = tile


def _learning(context: RunContext, state: State, batch: Batch) -> tuple[float, float]:
    """Seconds of a round's learning that do not depend on its rows, and for each row: a line through two sizes."""
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
    """Actions down and a step's frame up, between two threads."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = Link(socket.create_connection(server.getsockname()), "who steps")
        far = Link(server.accept()[0], "who acts")
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
    """A gradient's sum between two members, here two threads."""
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

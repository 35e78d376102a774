"""Times the parts of a round on this machine, one by one, for a calibration."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import HashStore, ProcessGroupGloo  # type: ignore[attr-defined]

from penstock.storage.digest import digest
from penstock.storage.errors import ConfigError
from penstock.storage.refs import ShardRef, SnapshotRef, parse_shard_name, snapshot_name
from penstock.tasks.data.input.pipeline import ShardPipeline
from penstock.tasks.data.snapshots.exchange import load_snapshot
from penstock.tasks.data.snapshots.handed_versions import encode_version
from penstock.tasks.data.snapshots.opponents import make_trial_pool
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
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from penstock.tasks.model.algorithms.contract import Loss
    from penstock.tasks.roles.acting.tile import ActedRound
    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.setup.planning.traffic import Sizes
    from penstock.tasks.specs import Batch, State

_TRIES = 3
_LONG_SECONDS, _SHORT_SECONDS = 1.0, 1e-3
_PINGS, _SUMS, _TAKEN = 200, 30, 32
_PRODUCTS, _PRODUCT_SIZE = 20, 384
_SCHEDULED = Path("/proc/thread-self/schedstat")


def seconds_of(
    assignment: Assignment, context: RunContext, state: State, sizes: Sizes, device: torch.device
) -> PartSeconds:
    """Return the shortest of a few times of each part; other load on the machine only adds to them."""
    torch.set_num_threads(1)
    buffers = RoundBuffers(context, 0)
    actor = TileActor(context, 0, make_trial_pool(context, 0, state.params))
    actor.start()
    acted = [actor.act_round(0, state.params, buffers)]
    acting = _best(lambda: acted.append(actor.act_round(0, state.params, buffers)))
    actor.close()
    stepping, stepping_cpu = _stepping(context, buffers)
    steps = context.config.schedule.round_steps
    torch.set_num_threads(context.config.distribution.torch_threads)
    batch = training_rows(context, state, acted[-1])
    learned = _learning(context, state, batch, undisturbed_seconds)
    with _on_one_core():
        busy = _learning(context, state, batch, time.thread_time)
    collective, collective_cpu = _sum(sizes.gradient_bytes // max(1, sizes.updates))
    return PartSeconds(
        step=stepping / steps,
        step_cpu=stepping_cpu / steps,
        infer=max(0.0, acting - stepping) / steps,
        write=_best(lambda: _write(assignment, context, acted[-1])),
        take=_take(context, state),
        fetch=_fetch(context, state),
        torch_round=_torch_round(context, state, buffers, device),
        update=learned.update,
        update_row=learned.update_row,
        update_cpu=busy.update,
        update_row_cpu=busy.update_row,
        optimizer=min(learned.optimizer, busy.optimizer),
        message=_ping(context) / 2,
        collective=collective,
        collective_cpu=collective_cpu,
        cores=len(os.sched_getaffinity(0)),
        busy_core_speed=_busy_core_speed(len(os.sched_getaffinity(0))),
    )


def undisturbed_seconds() -> float:
    """Return a clock's seconds, without those in which this thread was ready to run and its cores were given to others.

    Linux counts the latter; elsewhere they are part of it. What waits for another thread of this process that has no
    core still seems longer.
    """
    after, waited = 0.0, 0
    for _ in range(_TRIES):
        before = time.perf_counter()
        try:
            waited = int(_SCHEDULED.read_text(encoding="ascii").split()[1])
        except (OSError, IndexError):
            waited = 0
        after = time.perf_counter()
        if after - before < _SHORT_SECONDS:  # else the core may have been given away between the two readings
            break
    return after - waited / 1e9


def _best(work: Callable[[], Any], clock: Callable[[], float] = undisturbed_seconds) -> float:
    """Return the seconds of the fastest of a few tries; of one try, if it takes long."""
    taken = []
    for _ in range(_TRIES):
        started = clock()
        work()
        taken.append(clock() - started)
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
    def take(shards: int) -> None:
        with ShardPipeline([shard] * shards, context.run.store, expected=specs, columns=columns) as pipeline:
            for _ in range(shards):
                loaded = pipeline.take()
                context.algorithm.post(params, loaded.trajectory)
                loaded.release()

    # As many as take a second: a pipeline's start takes some milliseconds, and some shards a tenth of a second each.
    first = _best(lambda: take(1))
    shards = max(1, min(_TAKEN, int(_LONG_SECONDS / first)))
    return _best(lambda: take(shards)) / shards


def _fetch(context: RunContext, state: State) -> float:
    """Return the seconds to read a stored version through the node's cache and make parameters of it."""
    content = encode_version(
        state.params, context.algorithm.actor_groups, context.config.distribution.snapshot_dtype, 0
    )
    name = digest(content)
    ref = SnapshotRef(snapshot_name(0, name), name, len(content), 0)
    context.run.store.write(ref.name, [content])

    def fetch() -> None:
        for _ in range(_TAKEN):
            load_snapshot(context.cache.get_buffer(context.run.store, ref), ref)

    fetch()
    return _best(fetch) / _TAKEN


class _Tile:
    """Stands for the tile actor: names the tile whose buffers a writer returns."""

    def __init__(self, tile: int) -> None:
        self.tile = tile


@dataclass(frozen=True, slots=True)
class _Learned:
    """Seconds of a round's learning."""

    update: float
    update_row: float
    optimizer: float


class _TimedReduction(LocalReduction):
    """Reduces for one learner, and times the optimizer's steps."""

    def __init__(self, context: RunContext) -> None:
        super().__init__(context.algorithm)
        self.seconds = 0.0

    def update(self, state: State, loss: Loss, gradient: Tensor) -> State:
        """Take the step."""
        started = time.thread_time()
        state = super().update(state, loss, gradient)
        self.seconds += time.thread_time() - started
        return state

    def after_minibatch(self, state: State) -> State:
        """Call the algorithm, which may change all parameters."""
        started = time.thread_time()
        state = super().after_minibatch(state)
        self.seconds += time.thread_time() - started
        return state


def _learning(context: RunContext, state: State, batch: Batch, clock: Callable[[], float]) -> _Learned:
    """Return the seconds of a round's learning: a line through two sizes, whose constant part has the optimizer's.

    On a noisy machine the line alone may say that nothing is constant; but the optimizer's steps are.
    """
    tiles = context.config.environment.tiles
    rows = len(next(iter(batch.values())))
    half = {name: column[: rows // 2] for name, column in batch.items()}
    few, many = ([batch] * (tiles // 2), [batch] * tiles) if tiles > 1 else ([half], [batch])
    counts = [sum(len(next(iter(part.values()))) for part in parts) for parts in (few, many)]
    steps: list[float] = []

    def learn(parts: list[Batch]) -> None:
        reduction = _TimedReduction(context)
        learn_once(context, state, parts, reduction)
        steps.append(reduction.seconds)

    learn(few)
    steps.clear()
    less, more = (_best(lambda parts=parts: learn(parts), clock) for parts in (few, many))  # type: ignore[misc]
    optimizer = min(steps)
    of_row = max(0.0, more - less) / max(1, counts[1] - counts[0])
    constant = max(more - of_row * counts[1], optimizer)
    return _Learned(constant, max(0.0, more - constant) / max(1, counts[1]), optimizer)


@contextmanager
def _on_one_core() -> Iterator[None]:
    """Let this thread compute on one of its cores alone, where learning takes no second thread."""
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    os.sched_setaffinity(0, {min(cores)})
    torch.set_num_threads(1)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)


def _busy_core_speed(cores: int) -> float:
    """Return the speed of a core while all compute, as a share of its speed alone: of matrix products in threads.

    All cores together are never slower than one, unless other programs use them meanwhile.
    """
    alone, together = (min(_products(threads) for _ in range(_TRIES)) for threads in (1, cores))
    return min(1.0, max(1 / cores, alone / together))


def _products(threads: int) -> float:
    """Multiply matrices, as often in each thread as in another; return the seconds of the slowest."""
    seconds = []

    def multiply() -> None:
        began = undisturbed_seconds()
        torch.set_num_threads(1)  # it is set for each thread
        left = torch.ones(_PRODUCT_SIZE, _PRODUCT_SIZE)
        right, product = torch.ones_like(left), torch.empty_like(left)
        for _ in range(_PRODUCTS):
            torch.mm(left, right, out=product)
        seconds.append(undisturbed_seconds() - began)

    working = [threading.Thread(target=multiply, name=f"product-{number}") for number in range(threads)]
    for thread in working:
        thread.start()
    for thread in working:
        thread.join()
    return max(seconds)


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


def _sum(nbytes: int) -> tuple[float, float]:
    """Return the seconds of a gradient's all-reduce between two members, here threads, and the CPU seconds of each."""
    store, taken, busy = HashStore(), [0.0, 0.0], [0.0, 0.0]

    def member(rank: int) -> None:
        group: Any = ProcessGroupGloo(store, rank, 2, timedelta(seconds=60))
        tensor = torch.zeros(max(1, nbytes // 4))
        group.allreduce([tensor]).wait()
        started, began = time.perf_counter(), time.process_time()
        for _ in range(_SUMS):
            group.allreduce([tensor]).wait()
        taken[rank] = (time.perf_counter() - started) / _SUMS
        busy[rank] = (time.process_time() - began) / _SUMS  # of both: they begin and end together

    threads = [threading.Thread(target=member, args=(rank,), name=f"sum-{rank}") for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(taken), max(busy) / 2

"""The entry points of Dask tasks on a worker: the only module of the workers' side that the flow imports.

It imports torch only when a task runs. The flow process never needs it, which saves seconds of start and 200 MB.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import logging
import signal
import time
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from distributed import Reschedule, get_worker

from penstock.storage.errors import GangError, PenstockError
from penstock.tasks.runtime import shutdown
from penstock.tasks.runtime.assignment import Assignment
from penstock.tasks.runtime.results import MemberResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from distributed import Worker

    from penstock.storage.refs import SnapshotRef
    from penstock.tasks.runtime.results import ComponentResult

# Parameters of `mallopt`, from glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGEST_MMAP_THRESHOLD_BYTES = 32 << 20
_KEPT_BYTES = 64 << 20


def keep_freed_memory() -> None:
    """Keep freed memory for reuse, up to 64 MiB a heap, whatever the process's environment variables set.

    Does nothing if the allocator is not glibc's.
    """
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    set_option(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD_BYTES)
    set_option(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def forget_metrics(worker: Worker) -> None:
    """Remove a worker's sums of Dask's metrics for spans whose tasks have ended, of which each stage has its own.

    Runs in the worker's event loop. Dask keeps them as long as the worker lives and reads none of them again, since
    heartbeats send others.
    """
    spans = {task.span_id for task in worker.state.tasks.values()}
    for sums in (worker.digests_total, worker.digests_max):
        for name in list(sums):
            if isinstance(name, tuple) and name[0] == "execute" and name[1] not in spans:
                del sums[name]


def run_member(assignment: Mapping[str, Any]) -> MemberResult:
    """Run one member of a gang to the end."""
    context_module = importlib.import_module("penstock.tasks.runtime.run_context")
    source_module = importlib.import_module("penstock.tasks.model.algorithms.source_digest")
    member_module = importlib.import_module("penstock.tasks.roles.worker.member")
    membership_module = importlib.import_module("penstock.tasks.runtime.membership")
    usage_module = importlib.import_module("penstock.tasks.runtime.usage")
    keep_freed_memory()
    worker = get_worker()
    worker.loop.add_callback(forget_metrics, worker)
    parsed = Assignment.from_json(assignment)
    context = context_module.load_context(parsed)
    meter = usage_module.UsageMeter(parsed.member, context.store_calls)
    with (
        member_module.Member(parsed, context) as member,
        membership_module.Membership(parsed, context.run.store, context.policy, member.advertise) as membership,
    ):
        started = time.perf_counter()
        played: tuple[ComponentResult, ...] = member.play(membership)
        task_seconds = time.perf_counter() - started
    source = source_module.source_digest(type(context.algorithm))
    return MemberResult(parsed.member, source, tuple(_timed(one, task_seconds) for one in played), meter.usage())


def _timed(result: Any, task_seconds: float) -> ComponentResult:
    timed: ComponentResult = replace(result, times=replace(result.times, task_seconds=task_seconds))
    return timed


def run_evaluation(assignment: Mapping[str, Any], snapshot: SnapshotRef, episodes: int, key: int) -> dict[str, float]:
    """Evaluate a snapshot of an assignment's run; raises a GangError soon after the task was cancelled."""
    context_module = importlib.import_module("penstock.tasks.runtime.run_context")
    evaluate_module = importlib.import_module("penstock.tasks.analysis.evaluation")
    membership_module = importlib.import_module("penstock.tasks.runtime.membership")
    worker = get_worker()
    task = worker.get_current_task()

    def check() -> None:
        if shutdown.is_ending(worker):
            raise Reschedule(f"the evaluation of stage {key} leaves its worker, which ends")
        if membership_module.is_cancelled(worker, task):
            raise GangError(f"the evaluation of stage {key} ends: its task was cancelled")

    context = context_module.load_context(Assignment.from_json(assignment))
    given = (context, context.run.store, snapshot, episodes, key)
    result: dict[str, float] = evaluate_module.evaluate_snapshot(*given, check)
    return result


def dask_setup(_: object) -> None:
    """Prepare a worker of a local cluster. Dask calls this in workers that preload this module, before they join.

    Ctrl-C on a terminal reaches all its processes: the flow's process ends its workers, which ignore the signal.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.getLogger("distributed.worker").addFilter(is_unreported)
    # Of an environment's first reset and step, which the run's own process has made, and warned of, before.
    warnings.filterwarnings("ignore", module=r"gymnasium\.utils\.passive_env_checker")


async def warm_up() -> None:
    """Import the modules that a worker of a local cluster needs, while the rest of the system starts."""
    await asyncio.to_thread(_import_all)


def is_unreported(record: logging.LogRecord) -> bool:
    """Return whether Dask's log record says what the flow does not: a filter for `distributed.worker`.

    Dask prints a traceback for every error of a task, and the flow prints Penstock's own errors in one line. Dask also
    prints one per worker if the flow's process, with the scheduler, ends first.
    """
    message = str(record.msg)
    if message.startswith("Failed to communicate with scheduler during heartbeat"):
        return False
    arguments = record.args if isinstance(record.args, tuple) else ()
    raised = tuple(f"{kind.__name__}(" for kind in _with_subclasses(PenstockError))
    return not (message.startswith("Compute Failed") and any(str(one).startswith(raised) for one in arguments))


def _with_subclasses(kind: type[Exception]) -> Iterator[type[Exception]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _with_subclasses(below)


def _import_all() -> None:
    for module in (
        "penstock.tasks.roles.worker.member",
        "penstock.tasks.analysis.evaluation",
        "penstock.tasks.runtime.membership",
    ):
        importlib.import_module(module)

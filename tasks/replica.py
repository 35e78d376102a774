"""Where a Dask task begins on its worker. The only module of the workers' side that the flow imports.

It imports torch when a task runs and not before, because the flow process never needs it: that saves the process that
drives a run seconds of start and 200 MB.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import signal
import time
from typing import Any

from tasks.assignment import Assignment
from tasks.memory import keep_freed_memory


def run_member(assignment: dict[str, Any]) -> dict[str, Any]:
    """Play one member of a gang to the end; what it returns is small JSON."""
    context_module = importlib.import_module("tasks.context")
    source_module = importlib.import_module("tasks.algorithm_source")
    member_module = importlib.import_module("tasks.member")
    membership_module = importlib.import_module("tasks.membership")
    keep_freed_memory()
    parsed = Assignment.from_json(assignment)
    context = context_module.load_context(parsed)
    with (
        member_module.Member(parsed, context) as member,
        membership_module.Membership(parsed, context.run.store, context.policy, member.offer) as membership,
    ):
        started = time.perf_counter()
        halves: dict[str, Any] = member.play(membership)
        task_seconds = time.perf_counter() - started
    source = source_module.source_digest(type(context.algorithm))
    return {"member": parsed.member, "source": source, "task_seconds": task_seconds, "halves": halves}


def run_evaluation(assignment: dict[str, Any], snapshot: dict[str, Any], episodes: int, key: int) -> dict[str, Any]:
    """Evaluate a snapshot of an assignment's run."""
    context_module = importlib.import_module("tasks.context")
    evaluate_module = importlib.import_module("tasks.evaluate")
    refs = importlib.import_module("storage.refs")
    context = context_module.load_context(Assignment.from_json(assignment))
    result: dict[str, Any] = evaluate_module.evaluate_snapshot(
        context, context.run.store, refs.SnapshotRef.from_json(snapshot), episodes, key
    )
    return result


async def warm_up() -> None:
    """Import what a worker of this machine's own cluster will need, while the rest of the system starts.

    Ctrl-C on a terminal reaches every process there: that of the flow ends its workers, which have nothing to say.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.getLogger("distributed.worker").addFilter(_is_no_heartbeat)
    await asyncio.to_thread(_import_all)


def _is_no_heartbeat(record: logging.LogRecord) -> bool:
    """The scheduler is in the flow's process. Where that ends first, Dask would print a traceback for each worker."""
    return not record.getMessage().startswith("Failed to communicate with scheduler during heartbeat")


def _import_all() -> None:
    for module in ("tasks.member", "tasks.evaluate", "tasks.membership"):
        importlib.import_module(module)

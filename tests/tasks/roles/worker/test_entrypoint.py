"""Workers print no traceback of an error that the flow reports in one line, and keep nothing of stages that ended."""

import logging
import signal
import time
import warnings

import pytest
from distributed import Client, Worker, span

from penstock.storage.errors import GangError, LeaseLostError
from penstock.tasks.roles.worker.entrypoint import dask_setup, forget_metrics, is_unreported


def fail(error: Exception) -> None:
    raise error


def test_only_unexpected_errors_print_a_traceback():
    """Dask's own records of failed tasks: one of Penstock's errors is dropped, another error keeps its traceback."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    handler.addFilter(is_unreported)
    log = logging.getLogger("distributed.worker")
    log.addHandler(handler)
    try:
        with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address="127.0.0.1:0") as client:
            for error in (GangError("it left"), LeaseLostError("taken over"), ZeroDivisionError("a mistake")):
                with pytest.raises(type(error)):
                    client.submit(fail, error, pure=False).result(150)
    finally:
        log.removeHandler(handler)
    (printed,) = [record.getMessage() for record in records if "Compute Failed" in record.getMessage()]
    assert "ZeroDivisionError" in printed
    assert "Traceback" in printed


def spans_with_sums(dask_worker: Worker) -> set[str]:
    return {name[1] for name in dask_worker.digests_total if isinstance(name, tuple) and name[0] == "execute"}


def forget(dask_worker: Worker) -> None:
    forget_metrics(dask_worker)


def test_a_worker_keeps_metrics_of_living_spans_alone():
    """Dask itself keeps those of every stage for as long as a worker lives: a run of many stages would grow."""
    with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address="127.0.0.1:0") as client:
        ended = set()
        # Tasks whose keys begin alike are in one span for as long as one of them lives.
        for stage in ("first", "second", "third"):
            with span("stage") as span_id:
                assert client.submit(abs, -1, key=f"{stage}-0", pure=False).result(150) == 1
            ended.add(span_id)
        with span("stage") as living:
            held = client.submit(abs, -7, key="living-0", pure=False)
        assert held.result(150) == 7
        (sums,) = client.run(spans_with_sums).values()
        assert ended | {living} <= sums
        deadline = time.monotonic() + 150
        while ended & sums:  # a task is a worker's until the scheduler has told it to forget it
            assert time.monotonic() < deadline
            client.run(forget)
            (sums,) = client.run(spans_with_sums).values()
        assert living in sums


def test_workers_do_not_repeat_what_gymnasiums_checker_said():
    """It warns of the first reset and step of every environment, which the run's own process has made before."""
    handled, log = signal.getsignal(signal.SIGINT), logging.getLogger("distributed.worker")
    try:
        with warnings.catch_warnings():
            dask_setup(None)
            warnings.warn_explicit("first", UserWarning, "a.py", 1, module="gymnasium.utils.passive_env_checker")
            with pytest.warns(UserWarning, match="other"):
                warnings.warn_explicit("other", UserWarning, "a.py", 2, module="gymnasium.wrappers.common")
    finally:
        log.removeFilter(is_unreported)
        signal.signal(signal.SIGINT, handled)

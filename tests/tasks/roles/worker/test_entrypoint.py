"""Workers print no traceback of an error that the flow reports in one line."""

import logging

import pytest
from distributed import Client

from penstock.storage.errors import GangError, LeaseLostError
from penstock.tasks.roles.worker.entrypoint import is_unreported


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

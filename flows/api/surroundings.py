"""Prepares the process that a run is driven in, and restores it afterwards: it may be a user's notebook.

Driving sets environment variables, Prefect's settings and levels of logs, and starts processes that begin like it.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING

from penstock.storage.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.flows.display.console import Panel

_SET_HERE = ("PREFECT_", "DO_NOT_TRACK", "PYTHONSAFEPATH", "MALLOC_TRIM_", "OMP_", "MKL_", "OPENBLAS_")
"""Beginnings of the names of variables that driving sets: those of Prefect, and those of workers that Dask starts."""
_FLUSH_SECONDS = 5.0

_driving = threading.Lock()


@contextmanager
def only_driver() -> Iterator[None]:
    """Refuse a second run in this process while the first is driven: both would use one panel and one environment.

    Raises:
        ConfigError: another run is driven.
    """
    if not _driving.acquire(blocking=False):
        raise ConfigError(
            "this process drives another run; wait for its end, or drive the second run in a process of its own"
        )
    try:
        yield
    finally:
        _driving.release()


@contextmanager
def kept_environment() -> Iterator[None]:
    """Restore the environment variables that driving sets, and Prefect's settings, which are read from them."""
    before = _set_here()
    try:
        yield
    finally:
        for name in _set_here().keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
        refresh_prefect()


def _set_here() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(_SET_HERE)}


def quieten_prefect() -> None:
    """Set Prefect's settings in the environment unless they are set there; Prefect reads them when it is imported.

    The panel shows what users need; Prefect's own lines stay in its UI. Failures also leave the flow as an exception,
    and are reported once, by the command.
    """
    os.environ.setdefault("DO_NOT_TRACK", "1")
    os.environ.setdefault("PREFECT_LOGGING_EXTRA_LOGGERS", "penstock")
    # Threads outside of the flow log too, such as the lease's: Prefect warns about each of their records otherwise.
    os.environ.setdefault("PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW", "ignore")
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")


def refresh_prefect() -> None:
    """Make Prefect read its settings again, if it was imported before they changed."""
    if "prefect" in sys.modules:
        from prefect.context import refresh_global_settings_context

        refresh_global_settings_context()


def flush_prefect() -> None:
    """Flush Prefect's queues to the server before it is stopped."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    # In a thread of its own: where a thread has an event loop, as a notebook's has, Prefect would wait in that, later.
    with ThreadPoolExecutor(1, thread_name_prefix="flush-prefect") as thread:
        for service in (EventsWorker, APILogWorker):
            thread.submit(service.drain_all, timeout=_FLUSH_SECONDS).result()


@contextmanager
def main_module_kept_out() -> Iterator[None]:
    """Let workers that are started meanwhile not import this program's main module.

    Python imports it in every spawned process, for functions that are defined there, of which workers need none. A
    script that trains at its top level would train again in each of them.
    """
    main = sys.modules["__main__"]
    before = getattr(main, "__spec__", None)
    # Python takes a main module of this name for a package's, which it never imports again.
    main.__spec__ = ModuleSpec("penstock.__main__", None)
    try:
        yield
    finally:
        main.__spec__ = before


@contextmanager
def collection_paused() -> Iterator[None]:
    """Let Python collect no garbage meanwhile: where much is imported, collections take a sixth of the time."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


@contextmanager
def logs_shown(panel: Panel) -> Iterator[None]:
    """Show Penstock's warnings in the panel; silence Dask's log of workers that join and leave, but no errors."""
    levels = dict.fromkeys(
        ("distributed", "distributed.worker", "distributed.nanny", "distributed.core"), logging.ERROR
    )
    # An error of the scheduler is a message that did not reach a dead worker; gangs expect it and continue. An error of
    # a client is a lost scheduler, which the run reports itself.
    levels |= dict.fromkeys(("distributed.scheduler", "distributed.client"), logging.CRITICAL)
    before = {name: logging.getLogger(name).level for name in levels}
    handler = _PanelHandler(panel)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    logging.getLogger("penstock").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("penstock").removeHandler(handler)
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


class _PanelHandler(logging.Handler):
    def __init__(self, panel: Panel) -> None:
        super().__init__(logging.WARNING)
        self._panel = panel

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._panel.warn(record.getMessage())
        except Exception:  # noqa: BLE001  (as any handler: what logs goes on, whatever can't be shown)
            self.handleError(record)

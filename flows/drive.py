"""Driving a run from the command line: everything that takes seconds is started side by side, and shown."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from typing import TYPE_CHECKING, Any

from rich.console import Console

from flows.console import LivePanel, Panel, use_panel
from flows.server import PrefectServer, require_prefect
from tasks.start import check_start

if TYPE_CHECKING:
    from collections.abc import Callable

    from tasks.config import RunConfig
    from tasks.start import IfExists

_FLUSH_SECONDS = 5.0


def drive(config: RunConfig, if_exists: IfExists, *, as_json: bool) -> dict[str, Any]:
    """Run the training flow in this process, on Prefect's server at `PREFECT_API_URL` or on an embedded one.

    Raises:
        PenstockError: anything that keeps the run from its end; its message is for people.
    """
    check_start(config, if_exists)
    quieten_prefect()
    panel: Panel = Panel() if as_json else LivePanel(Console())
    use_panel(panel)
    with contextlib.ExitStack() as stack:
        stack.callback(panel.end)
        server = None
        if "PREFECT_API_URL" not in os.environ:
            panel.note("starting Prefect's server, Dask workers and the rest")
            server = stack.enter_context(PrefectServer())
            os.environ["PREFECT_API_URL"] = server.api_url
        else:
            require_prefect(os.environ["PREFECT_API_URL"])
            panel.note(f"starting Dask workers and the rest; Prefect is at {os.environ['PREFECT_API_URL']}")
        workers = _start_workers(config)
        run_flow = _flow_of(config)
        _quiet()
        _show_warnings(panel)
        if server is not None:
            server.wait_ready()
            panel.note(f"Prefect's UI while this runs: {server.ui_url}")
        workers.join()
        stack.callback(flush_prefect)
        result: dict[str, Any] = run_flow(config, if_exists)
    return result


def quieten_prefect() -> None:
    """Settings of Prefect's in the environment, unless somebody chose others; it reads them when it is imported.

    The panel says what people need; Prefect's own lines stay in its UI. What goes wrong comes out of the flow as an
    exception too, and is said once, by the command.
    """
    os.environ.setdefault("DO_NOT_TRACK", "1")
    os.environ.setdefault("PREFECT_LOGGING_EXTRA_LOGGERS", "flows,tasks,storage")
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")


def _flow_of(config: RunConfig) -> Callable[..., dict[str, Any]]:
    """The flow of a kind of run; takes seconds to import."""
    if config.acts:
        from flows.train import train

        return train
    from flows.replay import replay

    return replay


def flush_prefect() -> None:
    """Hand what Prefect still has in its queues to the server, before that is ended."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for service in (EventsWorker, APILogWorker):
        service.drain_all(timeout=_FLUSH_SECONDS)


def _start_workers(config: RunConfig) -> threading.Thread:
    """Begin to start local workers; what goes wrong comes up when the flow starts them itself."""

    def start() -> None:
        from tasks.cluster import start_configured_cluster

        with contextlib.suppress(Exception):
            start_configured_cluster(config)

    thread = threading.Thread(target=start, name="start-workers", daemon=True)
    thread.start()
    return thread


def _quiet() -> None:
    """Dask says when workers come and go, at length; a person wants to know what fails."""
    for name in ("distributed", "distributed.worker", "distributed.nanny", "distributed.core"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # An error to the scheduler is a message that did not reach a worker that died; gangs expect it and go on. One to a
    # client is a scheduler that is gone, which the run says itself.
    for name in ("distributed.scheduler", "distributed.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


class _PanelHandler(logging.Handler):
    def __init__(self, panel: Panel) -> None:
        super().__init__(logging.WARNING)
        self._panel = panel

    def emit(self, record: logging.LogRecord) -> None:
        self._panel.warn(record.getMessage())


def _show_warnings(panel: Panel) -> None:
    """Warnings of ours are for the person who runs the command."""
    for name in ("flows", "tasks", "storage"):
        logging.getLogger(name).addHandler(_PanelHandler(panel))

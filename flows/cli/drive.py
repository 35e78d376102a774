"""Drives a run from the command line: starts the slow services concurrently, and shows their progress."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from typing import TYPE_CHECKING

from rich.console import Console

from penstock.flows.cli.prefect_server import PrefectServer, require_prefect
from penstock.flows.display.console import LivePanel, Panel, use_panel
from penstock.storage.errors import PenstockError
from penstock.storage.stores.open import without_password
from penstock.tasks.setup.planning.resolve import already_resolved, resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.flows.display.summary import FlowResult
    from penstock.tasks.driver.run import ActiveRun
    from penstock.tasks.setup.config.run import RunConfig
    from penstock.tasks.setup.planning.resolve import IfExists, ResolvedRun

_FLUSH_SECONDS = 5.0
_WATCH_SECONDS = 2.0
_FAILED_REQUESTS = 3
"""Number of failed requests, in a row, after which the server counts as gone."""
_RESTART_SECONDS = 60.0
"""A server that goes away while a run begins is waited for so long: it may be restarted."""


def run_from_cli(
    config: RunConfig, if_exists: IfExists, *, as_json: bool, show: Callable[[FlowResult], None] = lambda _: None
) -> None:
    """Run the training flow in this process, on Prefect's server at `PREFECT_API_URL` or on an embedded one.

    When the run has finished and the server is gone, Prefect's client would keep the process for minutes: it exits with
    status 0 instead, after `show`.

    Args:
        config: all settings.
        if_exists: what to do if the run exists.
        as_json: print nothing but what `show` prints.
        show: called once with the result.

    Raises:
        PenstockError: anything that keeps the run from finishing; its message is for the user.
    """
    resolved = resolve(config, if_exists)
    quieten_prefect()
    panel: Panel = Panel() if as_json else LivePanel(Console())
    use_panel(limited := _LimitedPanel(panel, show))
    with contextlib.ExitStack() as stack:
        stack.callback(panel.end)
        server = None
        if "PREFECT_API_URL" not in os.environ:
            panel.note("starting Prefect's server, Dask workers and the rest")
            server = stack.enter_context(PrefectServer())
            server.direct_here()
        else:
            require_prefect(os.environ["PREFECT_API_URL"])
            shown = without_password(os.environ["PREFECT_API_URL"])
            panel.note(f"starting Dask workers and the rest; Prefect is at {shown}")
        workers = _start_workers(resolved)
        run_flow = _flow_of(config)
        _quiet()
        _show_warnings(panel)
        if server is not None:
            server.wait_ready()
            panel.note(f"Prefect's UI while this runs: {server.sign_in}")
        workers.join()
        stack.callback(flush_prefect)
        with already_resolved(resolved):
            try:
                result = _result_of(run_flow, config, if_exists, limited)
            finally:
                limited.returned.set()
    show(result)


class _LimitedPanel(Panel):
    """Passes all to another panel, and ends the process when the run has finished and Prefect's server is gone."""

    def __init__(self, panel: Panel, show: Callable[[FlowResult], None]) -> None:
        self._show = show
        self.has_begun = False
        """True once the run is driven: Prefect is not needed from then on."""
        self.returned = threading.Event()
        """Set when the flow has returned; its server may be stopped from then on."""
        self._begin = panel.begin
        for name in ("note", "warn", "progress", "stage", "evaluation", "end"):
            setattr(self, name, getattr(panel, name))

    def begin(self, training: ActiveRun) -> None:
        """Note that the run is driven."""
        self.has_begun = True
        self._begin(training)

    def finish(self) -> None:
        """Watch the server from now on."""
        threading.Thread(target=self._watch, name="prefect-watch", daemon=True).start()

    def _watch(self) -> None:
        failures = 0
        while failures < _FAILED_REQUESTS:
            if self.returned.wait(_WATCH_SECONDS):
                return
            try:
                require_prefect(os.environ["PREFECT_API_URL"])
                failures = 0
            except PenstockError:
                failures += 1
        assert self.result is not None
        self.end()
        self.warn("Prefect's server is gone and has no record of the run's end; what is stored is complete")
        self._show(self.result)
        sys.stdout.flush()
        os._exit(0)


def _result_of(
    run_flow: Callable[..., FlowResult], config: RunConfig, if_exists: IfExists, panel: _LimitedPanel
) -> FlowResult:
    deadline = time.monotonic() + _RESTART_SECONDS
    while True:
        try:
            return run_flow(config, if_exists)
        except PenstockError:
            raise
        except Exception as error:
            if panel.result is not None:
                # The run did what was asked; only its record in Prefect is lacking.
                panel.warn(f"Prefect's server did not record the end of this flow run: {error!r}; all is stored")
                return panel.result
            if panel.has_begun or not _is_unreachable(error) or time.monotonic() > deadline:
                raise
        panel.note("Prefect's server does not answer: waiting for it")
        _await_prefect(deadline)


def _is_unreachable(error: BaseException | None) -> bool:
    """Return whether Prefect's client got no answer: its own error has the transport's as its cause."""
    from httpx import TransportError

    while error is not None and not isinstance(error, TransportError):
        error = error.__cause__ or error.__context__
    return error is not None


def _await_prefect(deadline: float) -> None:
    """Wait until the server answers; a PenstockError names it if it does not until the deadline."""
    while True:
        time.sleep(1.0)
        try:
            require_prefect(os.environ["PREFECT_API_URL"])
        except PenstockError:
            if time.monotonic() > deadline:
                raise
        else:
            return


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


def _flow_of(config: RunConfig) -> Callable[..., FlowResult]:
    """Return the flow of a kind of run; importing it takes seconds."""
    if config.has_actors:
        from penstock.flows.train import train

        return train
    from penstock.flows.replay import replay

    return replay


def flush_prefect() -> None:
    """Flush Prefect's queues to the server before it is stopped."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for service in (EventsWorker, APILogWorker):
        service.drain_all(timeout=_FLUSH_SECONDS)


def _start_workers(resolved: ResolvedRun) -> threading.Thread:
    """Start local workers in a thread; where this fails, the flow starts them itself and raises."""

    def start() -> None:
        from penstock.tasks.driver.cluster import start_configured_cluster

        if resolved.policy is not None:
            with contextlib.suppress(Exception):
                start_configured_cluster(resolved.policy, resolved.config.cluster)

    thread = threading.Thread(target=start, name="start-workers", daemon=True)
    thread.start()
    return thread


def _quiet() -> None:
    """Silence Dask's log of workers that join and leave; errors are shown."""
    for name in ("distributed", "distributed.worker", "distributed.nanny", "distributed.core"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # An error of the scheduler is a message that did not reach a dead worker; gangs expect it and continue. An error of
    # a client is a lost scheduler, which the run reports itself.
    for name in ("distributed.scheduler", "distributed.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


class _PanelHandler(logging.Handler):
    def __init__(self, panel: Panel) -> None:
        super().__init__(logging.WARNING)
        self._panel = panel

    def emit(self, record: logging.LogRecord) -> None:
        self._panel.warn(record.getMessage())


def _show_warnings(panel: Panel) -> None:
    """Show Penstock's warnings to the user of the command."""
    logging.getLogger("penstock").addHandler(_PanelHandler(panel))

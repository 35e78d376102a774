"""Drives a run in this process: starts the slow services concurrently, and shows their progress."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from penstock.flows.api.interrupts import interrupts_deferred, interrupts_raised, lost_interrupts_repeated
from penstock.flows.api.prefect_answers import require_prefect
from penstock.flows.api.prefect_server import PrefectServer, require_folders
from penstock.flows.api.surroundings import (
    collection_paused,
    flush_prefect,
    kept_environment,
    logs_shown,
    main_module_kept_out,
    only_driver,
    quieten_prefect,
    refresh_prefect,
)
from penstock.flows.display.console import Panel, use_panel
from penstock.flows.observers.callbacks.delivery import use_callbacks
from penstock.flows.observers.telemetry.endpoint import check_port
from penstock.flows.observers.tracking.open import check_followers
from penstock.flows.support.reachable import require_schedulers, require_shared
from penstock.storage.errors import PenstockError
from penstock.storage.stores.open import without_password
from penstock.tasks.roles.worker.fork_server import start_fork_server
from penstock.tasks.setup.planning.resolve import already_resolved, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.flows.display.summary import FlowResult
    from penstock.flows.observers.callbacks.callback import Callback
    from penstock.flows.support.head_start import HeadStart
    from penstock.storage.runs.run import RunFolder
    from penstock.tasks.driver.run import ActiveRun
    from penstock.tasks.setup.config.run import RunConfig
    from penstock.tasks.setup.planning.resolve import IfExists, ResolvedRun

_SUFFIX_LENGTH = 8
_WATCH_SECONDS = 2.0
_FAILED_REQUESTS = 3
"""Number of failed requests, in a row, after which the server counts as gone."""
_RESTART_SECONDS = 60.0
"""A server that goes away while a run begins is waited for so long: it may be restarted."""


def run_here(
    config: RunConfig,
    if_exists: IfExists,
    panel: Panel,
    *,
    callbacks: Sequence[Callback] = (),
    before_exit: Callable[[FlowResult], None] | None = None,
    before_start: Callable[[], object] = lambda: None,
) -> FlowResult:
    """Run the training flow in this process, on Prefect's server at `PREFECT_API_URL` or on an embedded one.

    On workers of this machine, the first stage works before the flow run begins; see `HeadStart`.

    A KeyboardInterrupt ends the workers and the server, leaves the last commit, and has a note that says how to resume.

    Args:
        config: all settings.
        if_exists: what to do if the run exists.
        panel: shows progress; it is closed at the end.
        callbacks: follow the run, after those that `config` names.
        before_exit: given by a command, which has nothing left to do afterwards. When the run has finished and the
            server is gone, Prefect's client would keep the process for minutes: it calls this with the result and exits
            with status 0 instead. Without it, the process is never ended.
        before_start: called when no mistake was found, before anything starts.

    Raises:
        PenstockError: anything that keeps the run from finishing; its message is for the user.
    """
    require_shared(config.store)
    require_schedulers(config.cluster)
    check_followers(config.cluster)
    check_port(config.cluster)
    with contextlib.ExitStack() as stack:
        stack.callback(panel.end)
        stack.enter_context(only_driver())
        stack.enter_context(lost_interrupts_repeated())
        stack.enter_context(interrupts_raised())
        if (header := config.environment.header) is not None:
            panel.note(f"compiling {Path(header).name}, if this machine has not yet")
        # The run begins before there is a flow run, whose id its name could have; a retry finds it by its settings.
        resolved = resolve(config.with_name(uuid4().hex[:_SUFFIX_LENGTH]), if_exists)
        if "PREFECT_API_URL" not in os.environ:
            require_folders()
        before_start()
        stack.enter_context(kept_environment())
        quieten_prefect()
        limited = _LimitedPanel(panel, before_exit)
        stack.enter_context(use_panel(limited))
        stack.enter_context(main_module_kept_out())
        imports = stack.enter_context(contextlib.ExitStack())
        imports.enter_context(collection_paused())
        server = _prefect_server(stack, panel)
        if _has_local_workers(resolved):
            start_fork_server()
        refresh_prefect()
        workers, cancelled = _worker_starter(resolved)
        stack.callback(_stop_workers, workers, cancelled)
        with interrupts_deferred():
            workers.start()
            head_start = _head_start_of(resolved)
        stack.enter_context(logs_shown(panel))
        with already_resolved(resolved), use_callbacks(callbacks), head_start as begun:
            try:
                begun.begin()
                with interrupts_deferred():
                    run_flow = _flow_of(config)
                imports.close()
                if server is not None:
                    _await_server(server, begun)
                    panel.note(f"Prefect's UI while this runs: {server.sign_in}")
                workers.join()
                stack.callback(flush_prefect)
                return _result_of(run_flow, resolved.config, if_exists, limited)
            except KeyboardInterrupt as stop:
                if training := limited.training or begun.training:
                    _name_run(stop, training.run, config.store)
                raise
            finally:
                limited.returned.set()


def _prefect_server(stack: contextlib.ExitStack, panel: Panel) -> PrefectServer | None:
    """Begin to start an embedded server, which the stack ends; None if there is one at `PREFECT_API_URL`."""
    if "PREFECT_API_URL" not in os.environ:
        panel.note("starting Prefect's server, Dask workers and the rest")
        server = stack.enter_context(PrefectServer())
        server.direct_here()
        return server
    require_prefect(os.environ["PREFECT_API_URL"])
    shown = without_password(os.environ["PREFECT_API_URL"])
    panel.note(f"starting Dask workers and the rest; Prefect is at {shown}")
    return None


def _has_local_workers(resolved: ResolvedRun) -> bool:
    """Return whether a role runs on workers of this machine, as far as the policy is known already."""
    schedulers_of = resolved.config.cluster.schedulers_of
    return resolved.policy is not None and any(schedulers_of(role.name) == (None,) for role in resolved.policy.roles)


def _name_run(stop: KeyboardInterrupt, run: RunFolder, store: str) -> None:
    """Let an interrupt say which run it has stopped, and how to resume it."""
    # For the last line of a command.
    stop.stopped_run = run, store  # type: ignore[attr-defined]
    stop.add_note(
        f"run '{run.name}' is stopped and its last commit is intact; penstock.resume({run.name!r}, "
        f"store={store!r}) resumes from it"
    )


class _LimitedPanel(Panel):
    """Passes all to another panel, and ends the process when the run has finished and Prefect's server is gone."""

    def __init__(self, panel: Panel, before_exit: Callable[[FlowResult], None] | None) -> None:
        self._before_exit = before_exit
        self.training: ActiveRun | None = None
        """The run, once it is driven: Prefect is not needed from then on."""
        self.returned = threading.Event()
        """Set when the flow has returned; its server may be stopped from then on."""
        self._begin = panel.begin
        for name in ("note", "warn", "progress", "stage", "evaluation", "end"):
            setattr(self, name, getattr(panel, name))

    def begin(self, training: ActiveRun) -> None:
        """Note that the run is driven."""
        self.training = training
        self._begin(training)

    def finish(self) -> None:
        """Watch the server from now on, if the process may be ended."""
        if self._before_exit is not None:
            threading.Thread(target=self._watch, args=(self._before_exit,), name="prefect-watch", daemon=True).start()

    def _watch(self, before_exit: Callable[[FlowResult], None]) -> None:
        failures = 0
        while failures < _FAILED_REQUESTS:
            if self.returned.wait(_WATCH_SECONDS):
                return
            try:
                require_prefect(os.environ["PREFECT_API_URL"], patience_seconds=0.0)
                failures = 0
            except PenstockError:
                failures += 1
        assert self.result is not None
        self.end()
        self.warn("Prefect's server is gone and has no record of the run's end; what is stored is complete")
        before_exit(self.result)
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
            if panel.training is not None or not _is_unreachable(error) or time.monotonic() > deadline:
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
            require_prefect(os.environ["PREFECT_API_URL"], patience_seconds=0.0)
        except PenstockError:
            if time.monotonic() > deadline:
                raise
        else:
            return


def _head_start_of(resolved: ResolvedRun) -> HeadStart:
    from penstock.flows.support.head_start import HeadStart

    return HeadStart(resolved)


def _await_server(server: PrefectServer, begun: HeadStart) -> None:
    """Wait for the embedded server; its error says what has become of a run that has begun."""
    try:
        server.wait_ready()
    except PenstockError as error:
        if begun.training is None:
            raise
        run = begun.training.run
        raise PenstockError(
            f"{error}. Run '{run.name}' has begun, and what it has stored is kept: `{run.command('resume')}` "
            f"continues it"
        ) from error


def _flow_of(config: RunConfig) -> Callable[..., FlowResult]:
    """Return the flow of a kind of run; importing it, and Prefect with it, takes a second."""
    if config.has_actors:
        from penstock.flows.train import train

        return train
    from penstock.flows.replay import replay

    return replay


def _worker_starter(resolved: ResolvedRun) -> tuple[threading.Thread, threading.Event]:
    """Return a thread that starts local workers unless the event is set; where it fails, the flow tries and raises."""
    cancelled = threading.Event()

    def start() -> None:
        from penstock.tasks.driver.cluster import start_configured_cluster

        if resolved.policy is not None and not cancelled.is_set():
            with contextlib.suppress(Exception):
                start_configured_cluster(resolved.policy, resolved.config.cluster)

    return threading.Thread(target=start, name="start-workers", daemon=True), cancelled


def _stop_workers(starting: threading.Thread, cancelled: threading.Event) -> None:
    """Stop workers that no flow has used, because it failed before or was stopped."""
    from penstock.tasks.driver.cluster import stop_local_clusters

    cancelled.set()
    with contextlib.suppress(RuntimeError):  # interrupted at its start: it will see that it is cancelled
        starting.join()
    stop_local_clusters()

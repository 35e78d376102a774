"""Import what `penstock` imports, and fork commands from this process.

The process reads orders from an inherited socket and ends when that is closed. It runs no Python thread, no event loop
and nothing of Penstock, so that a fork has imported modules and no other state.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import selectors
import socket
import sys
import threading
from pathlib import Path
from typing import Any

PENSTOCK = Path(sys.executable).with_name("penstock")
MODULES = (
    "fastapi.encoders",
    "penstock.flows.api.drive",
    "penstock.flows.cli.main",
    "penstock.flows.cli.runs",
    "penstock.flows.settings.options",
    "penstock.flows.replay",
    "penstock.flows.display.summary",
    "penstock.flows.train",
    "prefect.flow_engine",
    "prefect.task_engine",
    "penstock.storage.stores.local",
    "penstock.tasks.setup.planning.auto_policy",
    "penstock.tasks.driver.cluster",
    "penstock.tasks.analysis.evaluation",
    "penstock.tasks.runtime.run_context",
    "penstock.tasks.analysis.evaluation",
    "torch",
    "tornado.platform.asyncio",
    "typer._adapters",
)
ORDER_BYTES = 1 << 17
last_settings: dict[str, str] = {}
"""Prefect's environment variables when its settings were last read."""
statuses: list[int] = []
"""The exit status of the command that has ended in this process."""


def main() -> None:
    """Serve orders, and run the command in each forked process."""
    atexit.register(leave)  # the first that is registered is the last that is called
    # As for a start script: modules next to this file must not be importable.
    sys.path[0] = str(PENSTOCK.parent)
    # Prefect sets up its log when it is imported.
    importlib.import_module("penstock.flows.api.surroundings").quieten_prefect()
    for name in MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    order = serve(socket.socket(fileno=int(sys.argv[1])))
    if order is not None:
        run_command(order)


def serve(control: socket.socket) -> dict[str, Any] | None:
    """Fork for every order and report each exit status; in a forked process, return the order."""
    with control, selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is control:
                    order, descriptors, *_ = socket.recv_fds(control, ORDER_BYTES, 3)
                    if not order:
                        return None
                    out, err, status = descriptors
                    order = json.loads(order)
                    refresh_settings(order["environment"])
                    if threading.active_count() > 1:
                        raise RuntimeError(f"a process with threads must not be forked: {threading.enumerate()}")
                    pid = os.fork()
                    if pid == 0:
                        for other in list(selector.get_map().values()):
                            if other.fileobj is not control:
                                os.close(other.fd)
                                os.close(other.data[1])
                        os.close(status)
                        prepare(order, out, err)
                        return order
                    os.close(out)
                    os.close(err)
                    report(status, pid)
                    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, status))
                else:
                    pid, status = key.data
                    report(status, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    os.close(status)


def report(pipe: int, number: int) -> None:
    """Write a line to a test, which may have closed the pipe."""
    with contextlib.suppress(BrokenPipeError):
        os.write(pipe, f"{number}\n".encode())


def refresh_settings(environment: dict[str, str]) -> None:
    """Read Prefect's settings if they differ from the previous command's; that takes a third of a CPU second."""
    found = {name: value for name, value in environment.items() if name.startswith("PREFECT_")}
    if found != last_settings:
        last_settings.clear()
        last_settings.update(found)
        for name in [name for name in os.environ if name.startswith("PREFECT_")]:
            del os.environ[name]
        os.environ.update(found)
        read_settings()


def read_settings() -> None:
    importlib.import_module("penstock.flows.api.surroundings").quieten_prefect()
    importlib.import_module("prefect.context").refresh_global_settings_context()


def prepare(order: dict[str, Any], out: int, err: int) -> None:
    """Give a forked process its session, standard files, environment and folder."""
    os.setsid()
    for source, target in ((out, 1), (err, 2)):
        os.dup2(source, target)
        os.close(source)
    before = python_path()
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.path[1:] = [*python_path(), *(folder for folder in sys.path[1:] if folder not in before)]
    if order["cwd"] is not None:
        os.chdir(order["cwd"])


def python_path() -> list[str]:
    return [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]


def run_command(order: dict[str, Any]) -> None:
    """Run `penstock`, after reading again what was read at import."""
    sys.argv = [str(PENSTOCK), *order["arguments"]]
    # Workers that it spawns begin with its main module, as they do with the start script.
    sys.modules["__main__"].__file__ = str(PENSTOCK)
    importlib.import_module("numpy").random.seed()
    if order["cwd"] is None:
        importlib.import_module("penstock.flows.api.surroundings").quieten_prefect()
    else:
        read_settings()  # also from files in that folder
    try:
        importlib.import_module("penstock.flows.cli").command()
    except SystemExit as end:
        statuses.extend([end.code] if isinstance(end.code, int) else [])
        raise


def leave() -> None:
    """End a command's process: to free what its parent has imported copies that first, in a third of a CPU second."""
    for status in statuses:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()

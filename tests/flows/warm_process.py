"""The program of a process that has imported what `penstock` imports, and forks commands from itself.

It reads orders from the socket that it inherits, and ends when that is closed. It runs no thread of Python's, no event
loop and nothing of Penstock: what a fork begins with is modules alone.
"""

from __future__ import annotations

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
    "flows.cli",
    "flows.following",
    "flows.inspection",
    "flows.overrides",
    "flows.replay",
    "flows.summary",
    "flows.train",
    "prefect.flow_engine",
    "prefect.task_engine",
    "storage.local_store",
    "tasks.auto_policy",
    "tasks.cluster",
    "tasks.evaluate",
    "tasks.context",
    "tasks.evaluations",
    "torch",
    "tornado.platform.asyncio",
    "typer._adapters",
)
ORDER_BYTES = 1 << 17
settled: dict[str, str] = {}
"""What is in the environment for Prefect, as its settings were read last."""


def main() -> None:
    """Serve, and be the command in every process that is forked."""
    # As for a start script: what lies beside this file must not be found by import.
    sys.path[0] = str(PENSTOCK.parent)
    # Prefect sets up its log when it is imported.
    importlib.import_module("flows.drive").quieten_prefect()
    for name in MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    order = serve(socket.socket(fileno=int(sys.argv[1])))
    if order is not None:
        become(order)


def serve(control: socket.socket) -> dict[str, Any] | None:
    """Fork for every order and tell how each of those processes ends; returns in them, with what they are to do."""
    with control, selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is control:
                    order, descriptors, *_ = socket.recv_fds(control, ORDER_BYTES, 3)
                    if not order:
                        return None
                    out, err, told = descriptors
                    order = json.loads(order)
                    settle(order["environment"])
                    if threading.active_count() > 1:
                        raise RuntimeError(f"nothing can be forked beside threads: {threading.enumerate()}")
                    pid = os.fork()
                    if pid == 0:
                        for other in list(selector.get_map().values()):
                            if other.fileobj is not control:
                                os.close(other.fd)
                                os.close(other.data[1])
                        os.close(told)
                        prepare(order, out, err)
                        return order
                    os.close(out)
                    os.close(err)
                    tell(told, pid)
                    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, told))
                else:
                    pid, told = key.data
                    tell(told, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    os.close(told)


def tell(told: int, number: int) -> None:
    """A line to a test, which may have lost interest."""
    with contextlib.suppress(BrokenPipeError):
        os.write(told, f"{number}\n".encode())


def settle(environment: dict[str, str]) -> None:
    """Read Prefect's settings where they are not those of the command before; that takes a third of a CPU second."""
    found = {name: value for name, value in environment.items() if name.startswith("PREFECT_")}
    if found != settled:
        settled.clear()
        settled.update(found)
        for name in [name for name in os.environ if name.startswith("PREFECT_")]:
            del os.environ[name]
        os.environ.update(found)
        read_settings()


def read_settings() -> None:
    importlib.import_module("flows.drive").quieten_prefect()
    importlib.import_module("prefect.context").refresh_global_settings_context()


def prepare(order: dict[str, Any], out: int, err: int) -> None:
    """Make a forked process one that was started with these arguments, environment, folder and files."""
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


def become(order: dict[str, Any]) -> None:
    """Be `penstock`: what was settled while modules were imported is settled again."""
    sys.argv = [str(PENSTOCK), *order["arguments"]]
    # Workers that it spawns begin with its main module, as they do with the start script.
    sys.modules["__main__"].__file__ = str(PENSTOCK)
    importlib.import_module("numpy").random.seed()
    if order["cwd"] is None:
        importlib.import_module("flows.drive").quieten_prefect()
    else:
        read_settings()  # also from files in that folder
    importlib.import_module("flows.cli").main()


if __name__ == "__main__":
    main()

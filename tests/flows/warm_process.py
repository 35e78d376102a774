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

PENSTOCK = Path(sys.executable).with_name("penstock")
MODULES = (
    "flows.cli",
    "flows.inspection",
    "flows.overrides",
    "flows.replay",
    "flows.summary",
    "flows.train",
    "tasks.auto_policy",
    "tasks.cluster",
    "tasks.evaluate",
    "tasks.context",
    "torch",
)
ORDER_BYTES = 1 << 17


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
    arguments = serve(socket.socket(fileno=int(sys.argv[1])))
    if arguments is not None:
        become(arguments)


def serve(control: socket.socket) -> list[str] | None:
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
                    if threading.active_count() > 1:
                        raise RuntimeError(f"nothing can be forked beside threads: {threading.enumerate()}")
                    pid = os.fork()
                    if pid == 0:
                        for other in list(selector.get_map().values()):
                            if other.fileobj is not control:
                                os.close(other.fd)
                                os.close(other.data[1])
                        os.close(told)
                        return prepare(json.loads(order), out, err)
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


def prepare(order: dict[str, object], out: int, err: int) -> list[str]:
    """Make a forked process one that was started with these arguments, environment, folder and files."""
    os.setsid()
    for source, target in ((out, 1), (err, 2)):
        os.dup2(source, target)
        os.close(source)
    os.environ.clear()
    os.environ.update(order["environment"])
    if order["cwd"] is not None:
        os.chdir(order["cwd"])
    return order["arguments"]


def become(arguments: list[str]) -> None:
    """Be `penstock`: what was settled while modules were imported is settled again."""
    sys.argv = [str(PENSTOCK), *arguments]
    # Workers that it spawns begin with its main module, as they do with the start script.
    sys.modules["__main__"].__file__ = str(PENSTOCK)
    importlib.import_module("numpy").random.seed()
    importlib.import_module("flows.drive").quieten_prefect()
    importlib.import_module("prefect.context").refresh_global_settings_context()
    importlib.import_module("flows.cli").main()


if __name__ == "__main__":
    main()

"""Runs Prefect's server as the child of a process, and ends with it: `python -P -m penstock.flows.api.serve_prefect`.

Arguments: the parent's process id, and the number of a socket that is bound to the server's address. It does what
`prefect server start` does, without importing Prefect's command line.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib
import itertools
import os
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

STACKS_SIGNAL = signal.SIGUSR1
"""Makes the server write what its threads are doing to standard error, even where no Python code can run."""
_PR_SET_PDEATHSIG = 1
_START_FAILED = 3
_COLLECT_SECONDS = 1.0
_FULL_COLLECTIONS = 10
_NICENESS = 2
"""A thread with it gets two thirds of the time of one with which it shares a core. With more, a run's first step would
be sooner and its first commit later, as that waits for this server."""


def main() -> None:
    """Serve until the process is told to end; do nothing if the parent has ended already."""
    # Here, and not between fork and exec: threads of a notebook may hold locks that a fork keeps for ever.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    parent, listener = map(int, sys.argv[1:])
    if os.getppid() != parent:
        return
    faulthandler.register(STACKS_SIGNAL)
    # A run's first stage does not wait for this server, so it imports after others. Only the thread that imports does:
    # niceness is a thread's, and a user may not lower it again.
    with ThreadPoolExecutor(1, "import", initializer=os.nice, initargs=(_NICENESS,)) as importing:
        app = importing.submit(_make_app).result()
    threading.Thread(target=_collect_garbage, name="garbage", daemon=True).start()
    settings: Any = importlib.import_module("prefect.settings").get_current_settings().server
    uvicorn: Any = importlib.import_module("uvicorn")
    config = uvicorn.Config(
        app,
        timeout_keep_alive=settings.api.keepalive_timeout,
        log_level=settings.logging_level.lower(),
    )
    server = uvicorn.Server(config)
    server.run(sockets=[socket.socket(fileno=listener)])
    if not server.started:
        sys.exit(_START_FAILED)


def _make_app() -> Any:
    # Collections take a fifth of the import's time, and find nothing. Making the app collects too.
    gc.disable()
    server = importlib.import_module("prefect.server.api.server")
    gc.freeze()
    app = server.create_app(final=True)
    gc.freeze()
    return app


def _collect_garbage() -> None:
    """Collect garbage every second, in a thread that nothing waits for, as automatic collection stays off.

    A request that was cut off leaves a cursor behind. To finish it, a collection needs the mutex of its SQLite
    connection, which that connection's thread holds while it waits, up to a minute, for the database's lock. If the
    collection runs in the thread of the event loop, whose next step would free that lock, the server stands still.
    """
    for number in itertools.count(1):
        time.sleep(_COLLECT_SECONDS)
        gc.collect(2 if number % _FULL_COLLECTIONS == 0 else 1)


if __name__ == "__main__":
    main()

"""Runs Prefect's server as the child of a process, and ends with it: `python -P -m penstock.flows.api.serve_prefect`.

Arguments: the parent's process id, the host and the port. It does what `prefect server start` does, without importing
Prefect's command line.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import signal
import sys
import threading
from typing import Any

_PR_SET_PDEATHSIG = 1
_NICENESS = 10
"""A thread with it gets a tenth of the time of those with which it shares a core."""
_PATIENT_SECONDS = 3.0
"""As long as a run's first step takes on a machine that is not busy."""
_MODULES = (
    "prefect",
    "sqlalchemy.orm",
    "docket",
    "prefect.server.schemas",
    "prefect.server.database",
    "prefect.server.models",
    "prefect.server.api.server",
)
"""The server, last, and what of it imports for long."""


def main() -> None:
    """Serve until the process is told to end; do nothing if the parent has ended already."""
    # Here, and not between fork and exec: threads of a notebook may hold locks that a fork keeps for ever.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    parent, host, port = sys.argv[1:]
    if os.getppid() != int(parent):
        return
    # A fifth of the time that the import takes is spent on collections, which find nothing.
    gc.disable()
    _import_patiently()
    gc.freeze()  # making the app collects
    app = importlib.import_module(_MODULES[-1]).create_app(final=True)
    gc.freeze()
    gc.enable()
    settings: Any = importlib.import_module("prefect.settings").get_current_settings().server
    importlib.import_module("uvicorn").run(
        app,
        host=host,
        port=int(port),
        timeout_keep_alive=settings.api.keepalive_timeout,
        log_level=settings.logging_level.lower(),
    )


def _import_patiently() -> None:
    """Import the modules, and let other processes go first for some seconds: a run's first stage needs no server.

    Niceness is a thread's, and a user may not lower it again: so one thread is nice, and this one imports the rest.
    """
    is_over = threading.Event()

    def import_nicely() -> None:
        os.nice(_NICENESS)
        for module in _MODULES:
            if not is_over.is_set():
                importlib.import_module(module)

    thread = threading.Thread(target=import_nicely, name="import")
    thread.start()
    thread.join(_PATIENT_SECONDS)
    is_over.set()
    thread.join()
    for module in _MODULES:
        importlib.import_module(module)


if __name__ == "__main__":
    main()

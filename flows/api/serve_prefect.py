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
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastapi import FastAPI

_PR_SET_PDEATHSIG = 1
_PATIENT = 10
"""Niceness of a thread that gets a tenth of the time of those with which it shares a core."""


def main() -> None:
    """Serve until the process is told to end; do nothing if the parent has ended already."""
    # Here, and not between fork and exec: threads of a notebook may hold locks that a fork keeps for ever.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    parent, host, port = sys.argv[1:]
    if os.getppid() != int(parent):
        return
    # The run's first stage does not wait for this server, which imports for seconds. Only the thread that imports lets
    # others go first: niceness is a thread's, and a user may not lower it again.
    with ThreadPoolExecutor(1, "import", initializer=os.nice, initargs=(_PATIENT,)) as importing:
        app = importing.submit(_make_app).result()
    settings: Any = importlib.import_module("prefect.settings").get_current_settings().server
    importlib.import_module("uvicorn").run(
        app,
        host=host,
        port=int(port),
        timeout_keep_alive=settings.api.keepalive_timeout,
        log_level=settings.logging_level.lower(),
    )


def _make_app() -> FastAPI:
    # A fifth of the time that the import takes is spent on collections, which find nothing. Making the app collects.
    gc.disable()
    server = importlib.import_module("prefect.server.api.server")
    gc.freeze()
    app: FastAPI = server.create_app(final=True)
    gc.freeze()
    gc.enable()
    return app


if __name__ == "__main__":
    main()

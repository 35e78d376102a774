"""The process from which workers on this machine are forked: it has imported all that they run.

Importing takes two CPU seconds, which each worker would need otherwise, and again after each loss. Dask is not imported
here, so that the process can start before this one has imported it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing import forkserver
from typing import Any

_PRELOADED = "penstock.tasks.roles.worker.preloaded"
_ENVIRONMENT = {
    # Dask's own defaults for its workers (`distributed.nanny.pre-spawn-environ`), which libraries read when they load.
    "MALLOC_TRIM_THRESHOLD_": "65536",
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
}


def start_fork_server() -> None:
    """Start the fork server of this process unless it is running. It imports no module from the working directory."""
    multiprocessing.get_context("forkserver").set_forkserver_preload([_PRELOADED])
    # No variable is removed afterwards: another thread may be copying the environment.
    before = os.environ.get("PYTHONSAFEPATH", "")
    os.environ.update(_ENVIRONMENT)
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        forkserver.ensure_running()
    finally:
        os.environ["PYTHONSAFEPATH"] = before


def stop_fork_server() -> None:
    """Stop the fork server of this process, if it runs, also while it imports; no worker of its may run any more."""
    server: Any = forkserver._forkserver  # noqa: SLF001  (there is no public way)
    if server._forkserver_pid is not None:  # noqa: SLF001
        os.kill(server._forkserver_pid, signal.SIGKILL)  # noqa: SLF001
        server._stop()  # noqa: SLF001

"""Runs Prefect's server as the child of a process, and ends with it: `python -P -m penstock.flows.api.serve_prefect`.

Arguments: the parent's process id, then those of `prefect server start`.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve until the process is told to end; do nothing if the parent has ended already."""
    # Here, and not between fork and exec: threads of a notebook may hold locks that a fork keeps for ever.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    parent, *arguments = sys.argv[1:]
    if os.getppid() != int(parent):
        return
    # A fifth of the time that the import takes is spent on collections, which find nothing.
    gc.disable()
    importlib.import_module("prefect.server.api.server")
    gc.freeze()
    gc.enable()
    sys.argv = ["prefect", "server", "start", *arguments]
    runpy.run_module("prefect", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

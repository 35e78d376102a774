"""A point of a sweep, in a process of its own, which gets its settings as a line on standard input.

So each has its own flow run, its own workers and its own memory. It leaves when its input ends: when the sweep is gone.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

from flows.drive import drive, quieten_prefect
from storage.errors import PenstockError
from tasks.config import build_config


def main() -> None:
    """Train the run, or go on with it; an error that Penstock raises on purpose is one line."""
    quieten_prefect()
    from prefect import tags

    order = json.loads(sys.stdin.readline())
    threading.Thread(target=_leave_with_sweep, name="leave-with-sweep", daemon=True).start()
    try:
        with tags(order["sweep"]):
            drive(build_config(order["config"]), "resume", as_json=True)
    except PenstockError as error:
        sys.exit(f"error: {error}")


def _leave_with_sweep() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()

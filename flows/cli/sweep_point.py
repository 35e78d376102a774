"""Trains one point of a sweep in its own process, which reads its settings as one line of standard input.

Each point has its own flow run, workers and memory. The process ends when its input ends: when the sweep is gone.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

from penstock.flows.cli.drive import quieten_prefect, run_from_cli
from penstock.storage.errors import PenstockError
from penstock.tasks.setup.config.loading import build_config


def main() -> None:
    """Train or resume the run; an error that Penstock raises on purpose is one line."""
    quieten_prefect()
    from prefect import tags

    order = json.loads(sys.stdin.readline())
    threading.Thread(target=_leave_with_sweep, name="leave-with-sweep", daemon=True).start()
    try:
        with tags(order["sweep"]):
            run_from_cli(build_config(order["config"]), "resume", as_json=True)
    except PenstockError as error:
        sys.exit(f"error: {error}")


def _leave_with_sweep() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()

"""Trains one point of a sweep in its own process, which reads its settings as one line of standard input.

Each point has its own flow run, workers and memory. The process ends when its input ends: when the sweep is gone.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

from penstock.flows.api.drive import run_here
from penstock.flows.api.surroundings import quieten_prefect
from penstock.flows.display.console import Panel
from penstock.flows.sweeps.processes import DIVERGED_STATUS
from penstock.storage.errors import DivergedError, PenstockError, RunFinishedError
from penstock.tasks.setup.config.loading import build_config

if TYPE_CHECKING:
    from penstock.storage.runs.commit_schema import Commit


def main() -> None:
    """Train or resume the run; an error that Penstock raises on purpose is one line."""
    quieten_prefect()
    from prefect import tags

    from penstock.flows.support.execution import leave_when

    order = json.loads(sys.stdin.readline())
    limit = _Limit(order["stages"], waits=order["waits"])
    threading.Thread(target=limit.follow, name="follow-sweep", daemon=True).start()
    try:
        with tags(order["sweep"]), leave_when(limit.is_reached):
            run_here(build_config(order["config"]), "resume", Panel(), before_exit=lambda _: None)
    except RunFinishedError:
        return  # since the sweep looked, by another sweep or a command
    except DivergedError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201  (the sweep reads it)
        sys.exit(DIVERGED_STATUS)
    except PenstockError as error:
        sys.exit(f"error: {error}")


class _Limit:
    """The number of stages at which the run is left; further lines of standard input replace it.

    Args:
        stages: the first limit; None trains to the end.
        waits: at the limit, wait for a line with another one; 0 leaves.
    """

    def __init__(self, stages: int | None, *, waits: bool) -> None:
        self._stages = stages
        self._waits = waits
        self._changed = threading.Condition()

    def is_reached(self, commit: Commit) -> bool:
        """Return whether the run is to be left after a commit; waits for the sweep's word if it was told to."""
        with self._changed:
            if self._waits:
                self._changed.wait_for(lambda: not self._stages or commit.stage + 1 < self._stages)
            return self._stages is not None and commit.stage + 1 >= self._stages

    def follow(self) -> None:
        """Read limits until the input ends, then end this process."""
        for line in sys.stdin:
            with self._changed:
                self._stages = int(line)
                self._changed.notify_all()
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()

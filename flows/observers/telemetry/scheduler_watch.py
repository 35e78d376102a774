"""Polls the Dask schedulers of a run for their load, in a thread of its own: a scheduler that hangs delays nothing."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

from penstock.tasks.driver.worker_slots import read_load

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.tasks.driver.cluster import Clusters
    from penstock.tasks.driver.worker_slots import SchedulerLoad

_POLL_SECONDS = 5.0
_END_SECONDS = 2.0


class SchedulerWatch:
    """Polls every 5 seconds while its context lasts. Its end waits for a poll in progress, 2 seconds at most.

    Args:
        clusters: of the run.
        note: called with a scheduler's address and its load, which is None if it did not answer.
    """

    def __init__(self, clusters: Clusters, note: Callable[[str, SchedulerLoad | None], None]) -> None:
        self._clusters, self._note = clusters, note
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="scheduler-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join(_END_SECONDS)

    def _poll(self) -> None:
        while not self._ending.is_set():
            for cluster in self._clusters.every:
                load: SchedulerLoad | None = None
                try:
                    load = cluster.client.run_on_scheduler(read_load)
                except Exception:  # noqa: BLE001  (Dask raises many kinds; the drive itself reports a lost scheduler)
                    load = None
                if not self._ending.is_set():
                    self._note(cluster.address, load)
            self._ending.wait(_POLL_SECONDS)

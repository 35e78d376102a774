"""Makes Dask forget gangs that have ended: its client and scheduler keep facts about each for as long as they live.

A run of many stages would make both grow without bound. The client keeps the handler of a topic that it has left, and
with it the gang; the scheduler keeps a topic's events, and for its dashboard a span with its groups of tasks.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distributed.metrics import time

if TYPE_CHECKING:
    from distributed import Scheduler

    from penstock.tasks.driver.cluster import Clusters

logger = logging.getLogger(__name__)

SPAN = "penstock"
"""Name of the spans in which the tasks of members and evaluations are submitted."""
_KEPT_SECONDS = 120.0
"""Workers still send a span's metrics with their heartbeats, for some seconds after its end."""


@dataclass(slots=True)
class EndedGangs:
    """Forgets each gang of a run when the next one has ended: its last messages have arrived by then."""

    _newest: str = ""

    def add(self, clusters: Clusters, topic: str) -> None:
        """Note a gang that listens no more, and forget the one before. Where a cluster was lost, nothing is left.

        Args:
            clusters: those of the run.
            topic: the gang's topic.
        """
        before, self._newest = self._newest, topic
        if not before:
            return
        for cluster in clusters.every:
            # Neither has a public way to do this. Where a version keeps them elsewhere, they only stay.
            getattr(cluster.client, "_event_handlers", {}).pop(before, None)
            try:
                cluster.client.run_on_scheduler(forget, topic=before)
            except Exception as error:  # noqa: BLE001  (the cluster was just lost, and what it kept with it)
                logger.debug("could not forget topic=%s address=%s error=%s", before, cluster.address, error)


def forget(dask_scheduler: Scheduler, topic: str, kept_seconds: float = _KEPT_SECONDS) -> None:
    """Remove a topic with its events, and the spans of gangs that ended long enough ago.

    Runs in the scheduler's process, between its events.
    """
    getattr(getattr(dask_scheduler, "_broker", None), "_topics", {}).pop(topic, None)
    spans: Any = dask_scheduler.extensions.get("spans")
    for span in list(getattr(spans, "root_spans", ())):
        if span.name == (SPAN,) and not span.children and span.done and span.stop <= time() - kept_seconds:
            del spans.spans[span.id]
            spans.root_spans.remove(span)
            spans.spans_search_by_name[span.name].remove(span)
            for tag in span.name:
                spans.spans_search_by_tag[tag].remove(span)

"""Records when a member worked and waited in a stage, for the timeline of a report; no decision depends on it."""

from __future__ import annotations

import time

from penstock.storage.runs.timings import EdgeCount, MemberSpans

_MOST_SPANS = 200
_MOST_REPLICAS = 16
_LEAST_SECONDS = 0.001


class Spans:
    """Records the first 200 spans of a member's stage, of a role's first 16 members: timings stay small on any cluster.

    Args:
        replica: of the member in its role.
    """

    def __init__(self, replica: int) -> None:
        self._left = _MOST_SPANS if replica < _MOST_REPLICAS else 0
        self._began, self._clock = time.time(), time.perf_counter()
        self._found: dict[str, list[float]] = {}

    def add(self, kind: str, seconds: float) -> None:
        """Record a span that has just ended; one under a millisecond is left out."""
        if self._left and seconds >= _LEAST_SECONDS:
            self._left -= 1
            start = time.perf_counter() - self._clock - seconds
            self._found.setdefault(kind, []).extend((round(start, 3), round(seconds, 3)))

    def spans(self) -> MemberSpans:
        """Return the spans so far."""
        return MemberSpans(began_at=round(self._began, 3), **{kind: tuple(s) for kind, s in self._found.items()})


class EdgeTally:
    """Counts bytes and messages by edge, such as `learn -> sync`, at the sender. For one thread."""

    def __init__(self) -> None:
        self._edges: dict[str, EdgeCount] = {}

    def add(self, edge: str, nbytes: int, rounds: int = 1) -> None:
        """Count messages, by default one."""
        before = self._edges.get(edge, EdgeCount(0, 0))
        self._edges[edge] = EdgeCount(before.bytes + nbytes, before.rounds + rounds)

    def counts(self) -> dict[str, EdgeCount]:
        """Return the counts by edge."""
        return dict(self._edges)

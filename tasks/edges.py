"""What a process has sent over an edge of the loop."""

from __future__ import annotations


class EdgeTally:
    """Bytes and messages by edge, `learn -> sync`, counted where they leave. For one thread."""

    def __init__(self) -> None:
        self._edges: dict[str, dict[str, int]] = {}

    def add(self, edge: str, nbytes: int, rounds: int = 1) -> None:
        """Count messages, by default one."""
        counts = self._edges.setdefault(edge, {"bytes": 0, "rounds": 0})
        counts["bytes"] += nbytes
        counts["rounds"] += rounds

    def to_json(self) -> dict[str, dict[str, int]]:
        """`bytes` and `rounds` by edge."""
        return {edge: dict(counts) for edge, counts in self._edges.items()}

"""Faults of a schedule: their kinds, the steps at which they happen, and how long their consequences can last."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

KINDS_OF_FOLDER = (
    "kill before",
    "kill after",
    "kill host",
    "power cut",
    "pause",
    "clock jump",
    "error",
    "slow",
    "part",
)
"""Faults on a local disk, on which a process's own file operations don't get lost."""
KINDS_OF_SERVICE = (*KINDS_OF_FOLDER, "lost answer", "late", "echo")
"""Faults with an object store, whose requests travel."""
ONLY_WRITES = {"part", "lost answer", "late", "echo"}
"""Faults that make no difference to an operation that reads."""

_NEVER = 10**12
LONGEST_PAUSE_SECONDS = 90.0
LONGEST_DELAY_SECONDS = 300.0
"""A request may land so much later."""


@dataclass(slots=True)
class FaultPlan:
    """Faults that wait for a step at which they can happen, in order of their step."""

    planned: list[tuple[int, str]] = field(default_factory=list)
    happened: int = 0
    next_step: int = 0
    """No fault happens before this step."""
    last_effect_at: float = 0.0
    """Virtual time of the last consequence that is known so far."""

    @classmethod
    def draw(cls, rng: Random, kinds: tuple[str, ...], count: int, steps: int) -> FaultPlan:
        """Draw faults among the first so many steps."""
        return cls(sorted((rng.randrange(steps), rng.choice(kinds)) for _ in range(count)))

    def next_at(self, step: int, *, writes: bool) -> str:
        """Return the kind of the fault that happens at this step; empty if none does."""
        for index, (at, kind) in enumerate(self.planned):
            if at > step:
                self.next_step = at if index == 0 else step
                return ""
            if writes or kind not in ONLY_WRITES:
                del self.planned[index]
                self.happened += 1
                return kind
        self.next_step = step if self.planned else _NEVER
        return ""

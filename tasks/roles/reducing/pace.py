"""Decides who may go on when learners take steps independently: nobody gets far ahead of the slowest.

That is stale synchronous parallel (Ho et al. 2013): a learner begins a minibatch with parameters that have all steps of
minibatches that are `max_staleness + 1` or more before it, of every learner, and perhaps newer ones.

A learner's minibatch is sent in one part if all losses are independent, otherwise in a part for each loss, because the
step of one affects the gradient of the next. The server answers every part. Replies follow from the order of arrivals
and the bound alone, so the order of arrivals is all that has to be recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.storage.runs.timings import StalenessCounts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.tasks.model.algorithms.contract import Algorithm, Loss


def parts_of(algorithm: Algorithm) -> tuple[tuple[Loss, ...], ...]:
    """Return the losses of a minibatch whose gradients a learner sends together, in order."""
    losses = tuple(algorithm.losses)
    if all(loss.independent for loss in losses):
        return (losses,)
    return tuple((loss,) for loss in losses)


class Pace:
    """Follows the learners of one round.

    Args:
        learners: their number.
        minibatches: of the round.
        parts: of a minibatch.
        bound: minibatches that a learner may be ahead of the slowest when it begins one.
    """

    def __init__(self, learners: int, minibatches: int, parts: int, bound: int) -> None:
        self._minibatches, self._parts, self._bound = minibatches, parts, bound
        self._sent = [0] * learners
        self._waiting: set[int] = set()
        self.total = learners * minibatches * parts
        """Arrivals of the round."""

    def lead(self, learner: int) -> int:
        """Return by how many minibatches a learner is ahead of the slowest."""
        return self._sent[learner] // self._parts - min(self._sent) // self._parts

    def has_more(self, learner: int) -> bool:
        """Return whether a learner has minibatches left."""
        return self._sent[learner] < self._minibatches * self._parts

    def part_of(self, learner: int) -> int:
        """Return which part of a minibatch a learner sends next.

        Raises:
            ValueError: it can't send any: it waits for a reply, has sent all, or there is no such learner.
        """
        if not 0 <= learner < len(self._sent):
            raise ValueError(f"there is no learner {learner} among {len(self._sent)}")
        if not self.has_more(learner):
            raise ValueError(f"learner {learner} has sent all of its {self._minibatches} minibatches")
        if learner in self._waiting:
            raise ValueError(f"learner {learner} is {self.lead(learner)} minibatches ahead, with {self._bound} allowed")
        return self._sent[learner] % self._parts

    def arrive(self, learner: int) -> list[int]:
        """Count an arrival that `part_of` allows; returns the learners that now get a reply, in order.

        The reply to a round's last minibatch waits for all learners: it has what all of them end the round with.
        """
        self._sent[learner] += 1
        if self._sent[learner] % self._parts:
            return [learner]
        self._waiting.add(learner)
        if not any(self.has_more(one) for one in range(len(self._sent))):
            return sorted(self._waiting)
        released = [one for one in sorted(self._waiting) if self.has_more(one) and self.lead(one) <= self._bound]
        self._waiting -= {*released}
        return released


def check_order(pace: Pace, arrivals: Sequence[int]) -> None:
    """Check that a round can have an order of arrivals; a `pace` that has not begun is used up.

    Raises:
        ValueError: it can't; says why.
    """
    if len(arrivals) != pace.total:
        raise ValueError(f"it has {len(arrivals)} arrivals, expected {pace.total}")
    for number, learner in enumerate(arrivals):
        try:
            pace.part_of(learner)
        except ValueError as error:
            raise ValueError(f"arrival {number} is impossible: {error}") from error
        pace.arrive(learner)


@dataclass(slots=True)
class StalenessTally:
    """Counts how stale the gradients of a stage were."""

    minibatches: int = 0
    lead_sum: int = 0
    greatest_lead: int = 0
    delay_sum: int = 0
    greatest_delay: int = 0

    def add(self, lead: int, delay: int) -> None:
        """Count a learner's minibatch.

        Args:
            lead: minibatches that the learner was ahead of the slowest when it began.
            delay: minibatches of other learners that were applied since then.
        """
        self.minibatches += 1
        self.lead_sum += lead
        self.delay_sum += delay
        self.greatest_lead = max(self.greatest_lead, lead)
        self.greatest_delay = max(self.greatest_delay, delay)

    def counts(self) -> StalenessCounts:
        """Return the stage's counts."""
        minibatches = max(1, self.minibatches)
        return StalenessCounts(
            minibatches=self.minibatches,
            greatest_lead=self.greatest_lead,
            mean_lead=self.lead_sum / minibatches,
            greatest_delay=self.greatest_delay,
            mean_delay=self.delay_sum / minibatches,
        )

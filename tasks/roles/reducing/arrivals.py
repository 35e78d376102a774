"""The server's side of learners that take steps independently: it applies gradients one after the other, as they come.

A learner sends nothing before it has a reply, so each has at most one arrival that waits.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from penstock.tasks.roles.reducing.pace import parts_of
from penstock.tasks.roles.reducing.reduction import served_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from penstock.tasks.model.algorithms.contract import Algorithm
    from penstock.tasks.roles.reducing.gradient_links import LearnerLinks
    from penstock.tasks.roles.reducing.pace import Pace, StalenessTally
    from penstock.tasks.runtime.metrics import EdgeTally
    from penstock.tasks.specs import State


@dataclass(frozen=True, slots=True)
class Arrival:
    """A learner's gradients of one part of a minibatch."""

    rows: int
    """Rows of the minibatch that the learner has; with none, its gradients are zero and no step is taken."""
    gradients: list[Tensor]


class ArrivalServer:
    """Serves the rounds of a stage.

    Args:
        algorithm: of the run.
        links: of all learners.
        edges: counts what is sent.
        tally: counts how stale gradients were.
    """

    def __init__(self, algorithm: Algorithm, links: LearnerLinks, edges: EdgeTally, tally: StalenessTally) -> None:
        self._algorithm, self._links = algorithm, links
        self._edges, self._tally = edges, tally
        self._parts = parts_of(algorithm)

    def serve(self, state: State, pace: Pace, order: Sequence[int] | None) -> tuple[State, tuple[int, ...]]:
        """Take all steps of a round.

        Args:
            state: before the round.
            pace: of the round; used up.
            order: the learners whose gradients are applied, first to last, which `check_order` allows; None: whichever
                arrives first.

        Returns:
            The state after the round, and the order.

        Raises:
            MemberLostError: a learner was lost.
        """
        taken: list[int] = []
        begun, applied = [(0, 0)] * len(self._links), 0
        expected, arrived = set(range(len(self._links))), deque(order or ())
        while len(taken) < pace.total:
            if not arrived:
                arrived.extend(self._links.wait_any(expected))
            learner = arrived.popleft()
            expected.remove(learner)
            part = pace.part_of(learner)
            state = self._apply(state, part, self._receive(learner, part, state))
            taken.append(learner)
            is_whole = part == len(self._parts) - 1
            if is_whole:
                lead, before = begun[learner]
                self._tally.add(lead, applied - before)
                applied += 1
            released = pace.arrive(learner)
            for one in released:
                self._reply(one, state, part, is_whole=is_whole)
                if is_whole:
                    begun[one] = pace.lead(one), applied
            expected.update(one for one in released if pace.has_more(one))
        return state, tuple(taken)

    def _receive(self, learner: int, part: int, state: State) -> Arrival:
        like = [state.params[loss.group].flat for loss in self._parts[part]]
        rows, *gradients = self._links.receive(learner, [torch.zeros(1, dtype=torch.int64), *like])
        return Arrival(int(rows.item()), gradients)

    def _apply(self, state: State, part: int, arrival: Arrival) -> State:
        if not arrival.rows:
            return state
        for loss, gradient in zip(self._parts[part], arrival.gradients, strict=True):
            state = self._algorithm.update(state, loss, gradient)
        return self._algorithm.after_minibatch(state) if part == len(self._parts) - 1 else state

    def _reply(self, learner: int, state: State, part: int, *, is_whole: bool) -> None:
        if is_whole:
            values = served_values(self._algorithm, state)
        else:
            values = [state.params[loss.group].flat for loss in self._parts[part]]
        self._links.send(learner, values)
        self._edges.add("sync -> learn", sum(value.nbytes for value in values), len(values))

"""The server's side of learners that take steps independently: it applies gradients one after the other, as they come.

One thread receives from each learner, because a gloo receive from anyone does not notice that a member was lost. A
learner sends nothing before it has a reply, so each has at most one arrival that waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING

import torch

from penstock.tasks.roles.reducing.pace import parts_of
from penstock.tasks.roles.reducing.reduction import served_values

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor, Future

    from torch import Tensor

    from penstock.tasks.model.algorithms.contract import Algorithm
    from penstock.tasks.roles.reducing.pace import Pace, StalenessTally
    from penstock.tasks.runtime.metrics import EdgeTally
    from penstock.tasks.runtime.process_group import Group
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
        group: all learners, by their numbers, and the server as the last.
        threads: one for each learner; one that waits ends when its learner sends, or is lost.
        edges: counts what is sent.
        tally: counts how stale gradients were.
    """

    def __init__(
        self, algorithm: Algorithm, group: Group, threads: Executor, edges: EdgeTally, tally: StalenessTally
    ) -> None:
        self._algorithm, self._group, self._threads = algorithm, group, threads
        self._edges, self._tally = edges, tally
        self._learners = group.size - 1
        self._parts = parts_of(algorithm)
        self._arrived: SimpleQueue[int] = SimpleQueue()
        self._expected: dict[int, Future[Arrival]] = {}

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
        begun, applied = [(0, 0)] * self._learners, 0
        self._arrived = SimpleQueue()
        if pace.total:
            self._expect(range(self._learners), state, pace)
        while len(taken) < pace.total:
            learner = self._arrived.get() if order is None else order[len(taken)]
            part = pace.part_of(learner)
            arrival = self._expected.pop(learner).result()
            state = self._apply(state, part, arrival)
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
            self._expect([one for one in released if pace.has_more(one)], state, pace)
        return state, tuple(taken)

    def _expect(self, learners: Sequence[int], state: State, pace: Pace) -> None:
        for learner in learners:
            losses = self._parts[pace.part_of(learner)]
            like = [state.params[loss.group].flat for loss in losses]
            self._expected[learner] = self._threads.submit(self._receive, learner, like)

    def _receive(self, learner: int, like: list[Tensor]) -> Arrival:
        try:
            rows = self._group.receive(learner, torch.zeros(1, dtype=torch.int64))
            return Arrival(int(rows.item()), [self._group.receive(learner, value) for value in like])
        finally:
            # Also when it was lost: whoever waits for any arrival then finds the error.
            self._arrived.put(learner)

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
        for value in values:
            self._group.send(learner, value)
        self._edges.add("sync -> learn", sum(value.nbytes for value in values), len(values))

"""A parameter server's rounds with `max_staleness`: each follows its stored order, or stores the one that it found.

The order is stored, durable, before the version after the round can be published. So a killed stage may be learned
again from its commit: rounds of which something may have been published repeat their order, and the others are free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from penstock.storage.errors import CorruptObjectError, StageMismatchError
from penstock.storage.runs.continuing.arrival_orders import ArrivalOrder, store_order, stored_orders
from penstock.tasks.roles.learning.round_update import plan_round
from penstock.tasks.roles.reducing.arrivals import ArrivalServer
from penstock.tasks.roles.reducing.pace import Pace, StalenessTally, check_order, parts_of
from penstock.tasks.roles.reducing.reduction import copy_round_state

if TYPE_CHECKING:
    from penstock.storage.runs.timings import StalenessCounts
    from penstock.tasks.roles.learning.window import RoundWindow
    from penstock.tasks.roles.reducing.gradient_links import LearnerLinks
    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.metrics import EdgeTally
    from penstock.tasks.runtime.process_group import Group
    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.specs import State

_GIVEN_UP = "This attempt is given up and the stage starts again"


class StaleRounds:
    """Serves the rounds of a stage.

    Args:
        assignment: of the server.
        context: of the run.
        links: of all learners.
        max_staleness: minibatches that a learner may be ahead of the slowest.
    """

    def __init__(self, assignment: Assignment, context: RunContext, links: LearnerLinks, max_staleness: int) -> None:
        self._context, self._links, self._bound = context, links, max_staleness
        self._store = context.run.store
        self._stage, self._attempt = assignment.stage, assignment.attempt
        self._made = stored_orders(self._store, self._stage, self._attempt)
        self._tally = StalenessTally()

    def counts(self) -> StalenessCounts:
        """Return how stale gradients were so far."""
        return self._tally.counts()

    @torch.no_grad()
    def serve(self, state: State, round_: int, group: Group, window: RoundWindow, edges: EdgeTally) -> State:
        """Take a round's steps, over the rows of a window that has the round; returns the state, and counts `edges`.

        Raises:
            MemberLostError: a learner was lost.
            StageMismatchError: the stored order is damaged or impossible, or another server stored one meanwhile.
        """
        algorithm = self._context.algorithm
        minibatches = sum(1 for _ in plan_round(self._context, round_, window))

        def pace() -> Pace:
            return Pace(len(self._links), minibatches, len(parts_of(algorithm)), self._bound)

        order = self._stored(round_, pace())
        server = ArrivalServer(algorithm, self._links, edges, self._tally)
        state, arrivals = server.serve(state, pace(), order)
        if order is None and arrivals:
            self._keep(ArrivalOrder(round_, arrivals))
        copy_round_state(algorithm, state, group)
        return state

    def _stored(self, round_: int, pace: Pace) -> tuple[int, ...] | None:
        name = self._made.get(round_)
        if name is None:
            return None
        try:
            arrivals = ArrivalOrder.decode(self._store.read(name), name).arrivals
            check_order(pace, arrivals)
        except CorruptObjectError as error:
            raise StageMismatchError(f"{error}. {_GIVEN_UP}") from error
        except ValueError as error:
            raise StageMismatchError(
                f"'{name}' can't be the order of round {round_} with {len(self._links)} learners: {error}. {_GIVEN_UP}"
            ) from error
        return arrivals

    def _keep(self, order: ArrivalOrder) -> None:
        try:
            kept = store_order(self._store, self._stage, self._attempt, order)
        except CorruptObjectError as error:
            raise StageMismatchError(f"{error}. {_GIVEN_UP}") from error
        if kept != order:
            raise StageMismatchError(
                f"stage {self._stage}: another server stored an order of round {order.round} while this one served it, "
                f"and only the first counts. {_GIVEN_UP}"
            )

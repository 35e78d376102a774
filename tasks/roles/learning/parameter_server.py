"""The parameter server: takes the optimizer's steps for learners that send it gradients, and publishes versions.

It makes the same plan as the learners, over as many rows, so it knows the minibatches of a round. With
`max_staleness` it takes each learner's steps as they come (`stale_rounds`), otherwise all learners' together.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch

from penstock.storage.runs.timings import ServerTimes
from penstock.tasks.model.algorithms.contract import due_losses, round_limit
from penstock.tasks.roles.learning.minibatches import take_share
from penstock.tasks.roles.learning.round_update import plan_round
from penstock.tasks.roles.learning.stage_state import Publisher, begin_stage, parameters_digest
from penstock.tasks.roles.learning.stale_rounds import StaleRounds
from penstock.tasks.roles.learning.window import RoundWindow
from penstock.tasks.roles.reducing.reduction import (
    SERVER_GROUP,
    awaited_from_first,
    copy_round_state,
    learner_names,
    server_name,
    told_from_first,
    untrained_values,
)
from penstock.tasks.runtime.metrics import EdgeTally
from penstock.tasks.runtime.process_group import Group
from penstock.tasks.runtime.results import ServerResult

if TYPE_CHECKING:
    from penstock.tasks.roles.reducing.gradient_links import GradientListener
    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.membership import Membership
    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.specs import State


def serve(
    assignment: Assignment, context: RunContext, membership: Membership, listener: GradientListener | None
) -> ServerResult:
    """Run a parameter server for all rounds of a stage.

    Args:
        assignment: of the server.
        context: of the run.
        membership: in the stage's gang.
        listener: for learners that take steps independently; None with `max_staleness` unset.

    Raises:
        MemberLostError: a learner was lost.
        StageMismatchError: learning again gave another snapshot than the one that is published; or as
            `StaleRounds.serve`.
        CorruptObjectError: the checkpoint was damaged.
    """
    stage = begin_stage(assignment, context, membership)
    state = stage.state
    started = time.perf_counter()
    names = [*learner_names(assignment, context), server_name(context)]
    rounds, edges = context.rounds_of(assignment.stage), EdgeTally()
    max_staleness, stale = context.config.distribution.max_staleness, None
    with ExitStack() as stack:
        publisher = stack.enter_context(Publisher(stage))
        group = stack.enter_context(Group(SERVER_GROUP, len(names) - 1, names, membership, assignment, None))
        if listener is not None and max_staleness is not None:
            links = stack.enter_context(listener.accept(membership.check))
            stale = StaleRounds(assignment, context, links, max_staleness)
        for round_ in rounds:
            membership.check()
            if stage.window:
                stage.window.begin_round()
            # The learners alone know how many rows `post` makes of a round's steps.
            rows = awaited_from_first(group)
            window = stage.window or RoundWindow.of_round(rows, round_)
            if stale is None:
                state = serve_round(context, state, round_, group, window, edges)
            else:
                state = stale.serve(state, round_, group, window, edges)
            publisher.publish(round_ + 1, state)
        publisher.keep(state)
        publisher.count(edges)
    serve_seconds = time.perf_counter() - started
    membership.log.info(
        "served rounds=%d..%d serve_seconds=%.3f device=%s", rounds[0], rounds[-1], serve_seconds, stage.device
    )
    times = ServerTimes(
        member=assignment.member,
        serve_seconds=serve_seconds,
        publish_seconds=publisher.seconds,
        edges=edges.counts(),
        staleness=stale.counts() if stale else None,
    )
    return ServerResult(parameters_digest(state), publisher.result(), times)


@torch.no_grad()
def serve_round(
    context: RunContext, state: State, round_: int, group: Group, window: RoundWindow, edges: EdgeTally
) -> State:
    """Take a round's steps, over the rows of a window that has the round; returns the state, and counts `edges`."""
    # Learners come first in the group: the server's rank is their number.
    algorithm, server = context.algorithm, group.size - 1
    limit = round_limit(algorithm)
    shares = take_share(plan_round(context, round_, window), range(0), window.round_rows)
    for minibatch, share in enumerate(shares, 1):
        for loss in due_losses(algorithm, algorithm.losses, state):
            gradient = group.sum_at(server, torch.zeros_like(state.params[loss.group].flat))
            state = algorithm.update(state, loss, gradient)
            group.copy_from(server, state.params[loss.group].flat)
            edges.add("sync -> learn", server * state.params[loss.group].flat.nbytes, server)
        state = algorithm.after_minibatch(state)
        for value in untrained_values(algorithm, state):
            group.copy_from(server, value)
            edges.add("sync -> learn", server * value.nbytes, server)
        if window.prioritised:
            window.update(share.rows, group.sum(torch.zeros(len(share.rows), dtype=torch.float64)))
        if limit and minibatch % limit.every == 0 and told_from_first(group):
            break
    copy_round_state(algorithm, state, group)
    return state

"""The parameter server: takes the optimizer's steps for learners that send it gradients, and publishes versions.

It makes the same plan as the learners, so it knows how many minibatches a round has without being told.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from tasks.edges import EdgeTally
from tasks.groups import Group
from tasks.learn import plan_round, prepare_device
from tasks.minibatches import take_share
from tasks.reduce import SERVER_GROUP, copy_round_state, learner_names, server_name, untrained_values
from tasks.sync import Sync, begin_stage, parameters_digest

if TYPE_CHECKING:
    from tasks.assignment import Assignment
    from tasks.context import RunContext
    from tasks.membership import Membership
    from tasks.specs import State
    from tasks.window import RoundWindow


def serve(assignment: Assignment, context: RunContext, membership: Membership) -> dict[str, Any]:
    """Serve all rounds of a stage.

    Returns:
        The server's part of the commit (`snapshots`, `checkpoint`, `version`), `parameters` (a digest of what learners
        must have, too), and for `timings/`: `serve_seconds`, `publish_seconds`, `edges` (bytes
        and messages to learners and actors).

    Raises:
        MemberLostError: a learner was lost.
        StageMismatchError: learning again gave another snapshot than the one that is published.
        CorruptObjectError: the checkpoint was damaged.
    """
    device = prepare_device(assignment.device, context.config.placement.torch_threads)
    begun = begin_stage(assignment, context, device)
    state = begun.state
    started = time.perf_counter()
    names = [*learner_names(assignment, context), server_name(context)]
    rounds, edges = context.rounds_of(assignment.stage), EdgeTally()
    with (
        Sync(assignment, context, membership, state, begun.published) as sync,
        Group(SERVER_GROUP, len(names) - 1, names, membership, assignment, None) as group,
    ):
        for round_ in rounds:
            membership.check()
            begun.window.begin_round()
            state = serve_round(context, state, round_, group, begun.window, edges)
            sync.publish(round_ + 1, state)
        sync.keep(state, begun.window)
        sync.count(edges)
    serve_seconds = time.perf_counter() - started
    membership.log.info(
        "served rounds=%d..%d serve_seconds=%.3f device=%s", rounds[0], rounds[-1], serve_seconds, device
    )
    return {
        **sync.part(),
        "parameters": parameters_digest(state),
        "serve_seconds": serve_seconds,
        "edges": edges.to_json(),
    }


@torch.no_grad()
def serve_round(
    context: RunContext, state: State, round_: int, group: Group, window: RoundWindow, edges: EdgeTally
) -> State:
    """Take a round's steps, over the rows of a window that has the round; the state after it, with `edges` counted."""
    # Learners come first in the group: the server's rank is their number.
    algorithm, server = context.algorithm, group.size - 1
    for share in take_share(plan_round(context, round_, window), range(0), window.round_rows):
        for loss in algorithm.losses:
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
    copy_round_state(algorithm, state, group)
    return state

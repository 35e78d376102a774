"""How gradients of several learners become one: not at all, by adding them up everywhere, or at a server.

Learner r of N owns contiguous tiles. Every learner makes the same plan over the rows of all tiles, and takes those
rows of a minibatch that are its own; losses are divided by the size of the whole minibatch, so that parts add up.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import torch

from storage.errors import SpecMismatchError
from tasks.algorithm import FollowsRounds
from tasks.edges import EdgeTally
from tasks.groups import Group
from tasks.placement import tiles_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from tasks.algorithm import Algorithm, Loss
    from tasks.assignment import Assignment
    from tasks.context import RunContext
    from tasks.groups import MeetingPoint
    from tasks.membership import Membership
    from tasks.specs import State

SERVER_GROUP = "server"
_LEARNER_GROUP = "learners"


class Reduction(Protocol):
    """What learners have to say to each other. All call everything in the same order."""

    edges: EdgeTally
    """What this learner has sent."""

    def assign(self, rows: range, rows_in_all: int) -> None:
        """Say which of the next round's rows are this learner's, where rounds are not alike."""

    def share_of(self, rows: int) -> tuple[range, int]:
        """Global ids of this learner's training rows of a round, and how many all learners have."""

    def stats(self, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Global sums, of this learner's; of any shape, float64 on the host."""

    def update(self, state: State, loss: Loss, gradient: Tensor) -> State:
        """The optimizer's step for the gradient of a whole minibatch, of which this is this learner's part."""

    def after_minibatch(self, state: State) -> State:
        """What follows all losses of a minibatch."""

    def row_values(self, own: Tensor) -> Tensor:
        """A value for each row of a minibatch, of those that learners have: zeros where another has the row."""

    def after_round(self, state: State, stats: Mapping[str, Tensor]) -> State:
        """What follows all minibatches of a round, by its global sums."""


class LocalReduction:
    """One learner has everything."""

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm
        self.edges = EdgeTally()

    def assign(self, rows: range, rows_in_all: int) -> None:
        """Needless: all are."""

    def share_of(self, rows: int) -> tuple[range, int]:
        """All rows."""
        return range(rows), rows

    def stats(self, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sums themselves."""
        return {name: value.double().cpu() for name, value in sums.items()}

    def update(self, state: State, loss: Loss, gradient: Tensor) -> State:
        """The step."""
        return self._algorithm.update(state, loss, gradient)

    def after_minibatch(self, state: State) -> State:
        """What the algorithm does."""
        return self._algorithm.after_minibatch(state)

    def row_values(self, own: Tensor) -> Tensor:
        """All are its own."""
        return own

    def after_round(self, state: State, stats: Mapping[str, Tensor]) -> State:
        """What the algorithm does, if anything: every learner does it, with the same bytes."""
        return self._algorithm.after_round(state, stats) if isinstance(self._algorithm, FollowsRounds) else state


class SummedReduction(LocalReduction):
    """Gradients are added up between all learners, and each takes the step: all have the same bytes afterwards."""

    def __init__(self, algorithm: Algorithm, group: Group, rows: range, rows_in_all: int) -> None:
        """Args: the algorithm, all learners, and which of the round's rows are this one's."""
        super().__init__(algorithm)
        self._group = group
        self._rows = rows
        self._rows_in_all = rows_in_all

    def assign(self, rows: range, rows_in_all: int) -> None:
        """Instead of those of the own tiles."""
        self._rows, self._rows_in_all = rows, rows_in_all

    def share_of(self, rows: int) -> tuple[range, int]:
        """Rows of the own tiles; every tile has as many, of one step each or of several.

        Raises:
            SpecMismatchError: `post` left rows out or added some, so that nobody could number them alone.
        """
        steps, left_out = divmod(len(self._rows), rows) if rows else (0, 1)
        if left_out or self._rows.start % steps or self._rows_in_all % steps:
            raise SpecMismatchError(
                f"post made {rows} training rows of {len(self._rows)} stored ones; several learners need a row a step "
                f"of each environment, or for every so many steps. Run this algorithm with one learner"
            )
        return range(self._rows.start // steps, self._rows.stop // steps), self._rows_in_all // steps

    def stats(self, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Added up in float64, all in one message."""
        if not sums:
            return {}
        own = super().stats(sums)
        packed = torch.cat([value.reshape(-1) for value in own.values()])
        self._count("learn -> learn", packed)
        flat = self._group.sum(packed)
        parts = flat.split([value.numel() for value in own.values()])
        return {name: part.view(value.shape) for (name, value), part in zip(own.items(), parts, strict=True)}

    def update(self, state: State, loss: Loss, gradient: Tensor) -> State:
        """The step for the sum."""
        self._count("learn -> sync", gradient)
        return super().update(state, loss, self._group.sum(gradient))

    def row_values(self, own: Tensor) -> Tensor:
        """Zeros change nothing of what they are added to."""
        self._count("learn -> learn", own)
        return self._group.sum(own)

    def _count(self, edge: str, tensor: Tensor) -> None:
        if self._group.size > 1:
            self.edges.add(edge, tensor.nbytes)


class ServerReduction(SummedReduction):
    """Gradients go to a server that takes the steps, and parameters come back."""

    def __init__(self, algorithm: Algorithm, group: Group, server: Group, rows: range, rows_in_all: int) -> None:
        """Args: the algorithm, all learners, all of them with the server as the last, and this one's rows."""
        super().__init__(algorithm, group, rows, rows_in_all)
        self._server = server

    def update(self, state: State, loss: Loss, gradient: Tensor) -> State:
        """The gradient goes up, the group's vector comes down."""
        server = self._server.size - 1
        self.edges.add("learn -> sync", gradient.nbytes)
        self._server.sum_at(server, gradient)
        flat = state.params[loss.group].flat
        flat.copy_(self._server.copy_from(server, flat))
        return state

    def after_minibatch(self, state: State) -> State:
        """Targets come down, and parameters that no loss is for."""
        for value in untrained_values(self._algorithm, state):
            value.copy_(self._server.copy_from(self._server.size - 1, value))
        return state

    def row_values(self, own: Tensor) -> Tensor:
        """The server hears them too."""
        self.edges.add("learn -> sync", own.nbytes)
        return self._server.sum(own)

    def after_round(self, state: State, stats: Mapping[str, Tensor]) -> State:
        """The first learner's result goes up."""
        state = super().after_round(state, stats)
        copied = copy_round_state(self._algorithm, state, self._server)
        if copied and not self._rows.start:
            others = self._server.size - 1
            self.edges.add("learn -> sync", others * sum(value.nbytes for value in copied), others * len(copied))
        return state


def untrained_values(algorithm: Algorithm, state: State) -> list[Tensor]:
    """What `after_minibatch` and `after_round` may change, and no optimizer does, in an order that all agree on."""
    learned = {loss.group for loss in algorithm.losses}
    rest = [state.params[name].flat for name in sorted(state.params.keys() - learned)]
    return [*rest, *(state.targets[name] for name in sorted(state.targets))]


@torch.no_grad()
def copy_round_state(algorithm: Algorithm, state: State, server: Group) -> list[Tensor]:
    """Copy what `after_round` may have changed from the first learner to a whole server group, in place."""
    values = untrained_values(algorithm, state) if isinstance(algorithm, FollowsRounds) else []
    for value in values:
        value.copy_(server.copy_from(0, value))
    return values


@contextmanager
def reducing(
    assignment: Assignment, context: RunContext, membership: Membership, meeting: MeetingPoint | None
) -> Iterator[Reduction]:
    """A learner's reduction under its run's policy; the groups end with it.

    Raises:
        MemberLostError: the others did not come, or one was lost.
    """
    kind, learners = context.policy.reduce, assignment.replicas
    if kind == "local":
        yield LocalReduction(context.algorithm)
        return
    tiles = tiles_of(assignment.replica, learners, context.config.environment.tiles)
    tile_rows = context.config.schedule.round_steps * context.config.environment.envs_per_tile
    rows, rows_in_all = range(tiles.start * tile_rows, tiles.stop * tile_rows), context.round_rows
    names = learner_names(assignment, context)
    with Group(_LEARNER_GROUP, assignment.replica, names, membership, assignment, meeting) as group:
        if kind == "allreduce":
            yield SummedReduction(context.algorithm, group, rows, rows_in_all)
            return
        everybody = [*names, server_name(context)]
        with Group(SERVER_GROUP, assignment.replica, everybody, membership, assignment, meeting) as server:
            yield ServerReduction(context.algorithm, group, server, rows, rows_in_all)


def learner_names(assignment: Assignment, context: RunContext) -> list[str]:
    """Members that compute gradients, by rank."""
    role = context.policy.role_of("learn")
    replicas = assignment.replicas if assignment.role == role.name else role.replicas
    return [f"{role.name}-{replica}" for replica in range(replicas)]


def server_name(context: RunContext) -> str:
    """The member that holds `sync`."""
    return f"{context.policy.role_of('sync').name}-0"

"""Reduces gradients of several learners: not at all (one learner), by an all-reduce, or at a parameter server.

Learner r of N owns contiguous tiles. Every learner makes the same plan over the rows of all tiles, and takes those
rows of a minibatch that are its own; losses are divided by the size of the whole minibatch, so that parts add up.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import torch

from penstock.storage.errors import SpecMismatchError
from penstock.tasks.model.algorithms.contract import FollowsRounds, due_losses
from penstock.tasks.roles.reducing.gradient_links import connect_to_server
from penstock.tasks.roles.reducing.pace import parts_of
from penstock.tasks.runtime.metrics import EdgeTally
from penstock.tasks.runtime.process_group import Group
from penstock.tasks.setup.distribution.gpus import GPUS, backend_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from penstock.tasks.model.algorithms.contract import Algorithm, Loss, RoundLimit
    from penstock.tasks.roles.reducing.gradient_links import TensorLink
    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.membership import Membership
    from penstock.tasks.runtime.process_group import Rendezvous
    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.specs import State

SERVER_GROUP = "server"
_LEARNER_GROUP = "learners"


class Reduction(Protocol):
    """Communication between learners. All learners make the same calls in the same order."""

    edges: EdgeTally
    """Bytes and messages that this learner has sent."""

    def assign(self, rows: range, rows_in_all: int) -> None:
        """Set this learner's stored rows of the next round, and the number of rows of all learners."""

    def share_of(self, rows: int) -> tuple[range, int]:
        """Return this learner's training rows among those of a round, and the number of rows of all learners."""

    def stats(self, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return sums over all learners, of any shape, float64 on the host."""

    def losses_of(self, losses: tuple[Loss, ...], state: State) -> tuple[Loss, ...]:
        """Return the losses that this learner takes part in during the minibatch that begins, in order."""

    def loss_rows(self, rows: int, own: int) -> int:
        """Begin a minibatch; returns by how many rows its losses are divided, given all rows and this learner's."""

    def update(self, state: State, loss: Loss, gradient: Tensor) -> State:
        """Take the optimizer's step for a whole minibatch, given this learner's part of its gradient."""

    def after_minibatch(self, state: State) -> State:
        """Apply the algorithm's changes after all losses of a minibatch."""

    def row_values(self, own: Tensor) -> Tensor:
        """Return a value for each row of a minibatch, given this learner's values and zeros for other rows."""

    def is_beyond(self, limit: RoundLimit, values: Tensor | None) -> bool:
        """Return whether a round ends here, given the limited row output of this learner's rows; None without rows."""

    def after_round(self, state: State, stats: Mapping[str, Tensor]) -> State:
        """Apply the algorithm's changes after all minibatches of a round, from its global sums."""


class LocalReduction:
    """The reduction of a single learner."""

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm
        self.edges = EdgeTally()

    def assign(self, rows: range, rows_in_all: int) -> None:
        """Do nothing: one learner has all rows."""

    def share_of(self, rows: int) -> tuple[range, int]:
        """Return all rows."""
        return range(rows), rows

    def stats(self, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the sums themselves."""
        return {name: value.double().cpu() for name, value in sums.items()}

    def losses_of(self, losses: tuple[Loss, ...], state: State) -> tuple[Loss, ...]:
        """Return all losses that are due."""
        return due_losses(self._algorithm, losses, state)

    def loss_rows(self, rows: int, own: int) -> int:  # noqa: ARG002  (a learner that steps alone divides by its own)
        """Return all rows, so that the learners' gradients add up."""
        return rows

    def update(self, state: State, loss: Loss, gradient: Tensor) -> State:
        """Take the step."""
        return self._algorithm.update(state, loss, gradient)

    def after_minibatch(self, state: State) -> State:
        """Call the algorithm."""
        return self._algorithm.after_minibatch(state)

    def row_values(self, own: Tensor) -> Tensor:
        """Return the values: all are its own."""
        return own

    def is_beyond(self, limit: RoundLimit, values: Tensor | None) -> bool:
        """Compare the mean over all learners' rows: the same answer for each of them."""
        given = torch.zeros(0) if values is None else values
        count = torch.tensor(float(len(given)), dtype=torch.float64)
        total = self.stats({"count": count, "sum": given.double().sum().cpu()})
        return bool(total["sum"] > limit.most * total["count"])

    def after_round(self, state: State, stats: Mapping[str, Tensor]) -> State:
        """Call the algorithm, if it follows rounds: every learner does, with the same bytes."""
        return self._algorithm.after_round(state, stats) if isinstance(self._algorithm, FollowsRounds) else state


class SummedReduction(LocalReduction):
    """Sums gradients over all learners, each of which takes the step: all have the same bytes afterwards."""

    def __init__(self, algorithm: Algorithm, group: Group) -> None:
        """Args: the algorithm, and the group of all learners."""
        super().__init__(algorithm)
        self._group = group
        self._rows, self._rows_in_all = range(0), 0

    def assign(self, rows: range, rows_in_all: int) -> None:
        """Set the rows by which `share_of` numbers this learner's training rows."""
        self._rows, self._rows_in_all = rows, rows_in_all

    def share_of(self, rows: int) -> tuple[range, int]:
        """Return the rows of this learner's tiles; every tile has equally many, of one step each or of several.

        Raises:
            SpecMismatchError: `post` left rows out or added some, so a learner can't number them alone.
        """
        steps, left_out = divmod(len(self._rows), rows) if rows else (0, 1)
        if left_out or self._rows.start % steps or self._rows_in_all % steps:
            raise SpecMismatchError(
                f"post made {rows} training rows of {len(self._rows)} stored ones; several learners need one row per "
                f"step of each environment, or one per fixed number of steps. Run this algorithm with one learner"
            )
        return range(self._rows.start // steps, self._rows.stop // steps), self._rows_in_all // steps

    def stats(self, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return sums in float64, with one message for all."""
        if not sums:
            return {}
        own = super().stats(sums)
        packed = torch.cat([value.reshape(-1) for value in own.values()])
        self._count("learn -> learn", packed)
        flat = self._group.sum(packed)
        parts = flat.split([value.numel() for value in own.values()])
        return {name: part.view(value.shape) for (name, value), part in zip(own.items(), parts, strict=True)}

    def update(self, state: State, loss: Loss, gradient: Tensor) -> State:
        """Take the step for the sum."""
        self._count("learn -> sync", gradient)
        return super().update(state, loss, self._group.sum(gradient))

    def row_values(self, own: Tensor) -> Tensor:
        """Return the sum: every row has one learner's value, and zeros of the others."""
        self._count("learn -> learn", own)
        return self._group.sum(own)

    def _count(self, edge: str, tensor: Tensor) -> None:
        if self._group.size > 1:
            self.edges.add(edge, tensor.nbytes)


class ServerReduction(SummedReduction):
    """Sends gradients to a server that takes the steps, and gets parameters back."""

    def __init__(self, algorithm: Algorithm, group: Group, server: Group) -> None:
        """Args: the algorithm, the group of all learners, and that of all learners with the server as the last."""
        super().__init__(algorithm, group)
        self._server = server

    def share_of(self, rows: int) -> tuple[range, int]:
        """Return this learner's rows; the first learner tells the server the rows of all, by which it plans."""
        own, in_all = super().share_of(rows)
        self._count_told()
        awaited_from_first(self._server, in_all)
        return own, in_all

    def update(self, state: State, loss: Loss, gradient: Tensor) -> State:
        """Send the gradient, and receive the group's parameters."""
        server = self._server.size - 1
        self.edges.add("learn -> sync", gradient.nbytes)
        self._server.sum_at(server, gradient)
        flat = state.params[loss.group].flat
        flat.copy_(self._server.copy_from(server, flat))
        return state

    def after_minibatch(self, state: State) -> State:
        """Receive targets, and parameters that no loss trains."""
        for value in untrained_values(self._algorithm, state):
            value.copy_(self._server.copy_from(self._server.size - 1, value))
        return state

    def row_values(self, own: Tensor) -> Tensor:
        """Return the sum; the server gets it, too."""
        self.edges.add("learn -> sync", own.nbytes)
        return self._server.sum(own)

    def is_beyond(self, limit: RoundLimit, values: Tensor | None) -> bool:
        """Compare as the other learners do; the first of them tells the server."""
        found = super().is_beyond(limit, values)
        self._count_told()
        told_from_first(self._server, found)
        return found

    def after_round(self, state: State, stats: Mapping[str, Tensor]) -> State:
        """Send the first learner's result to the server."""
        state = super().after_round(state, stats)
        copied = copy_round_state(self._algorithm, state, self._server)
        if copied and not self._rows.start:
            others = self._server.size - 1
            self.edges.add("learn -> sync", others * sum(value.nbytes for value in copied), others * len(copied))
        return state

    def _count_told(self) -> None:
        """Count a number that the first learner sends to all others."""
        if not self._rows.start:
            others = self._server.size - 1
            self.edges.add("learn -> sync", 8 * others, others)


class StaleReduction(ServerReduction):
    """Sends gradients to a server that applies each learner's as a step of its own, whatever the others do meanwhile.

    `pace` says who waits for whom. The learners still make the same calls: each ends a round with the same parameters.
    """

    def __init__(
        self, algorithm: Algorithm, group: Group, server: Group, link: TensorLink, patience_seconds: float
    ) -> None:
        """Args: as `ServerReduction`, the link to the server, and how long a reply may take."""
        super().__init__(algorithm, group, server)
        self._link, self._patience_seconds = link, patience_seconds
        self._losses = len(algorithm.losses)
        self._together = len(parts_of(algorithm)) == 1
        self._own = 0
        self._gradients: list[Tensor] = []
        self._next_loss = 0

    def losses_of(self, losses: tuple[Loss, ...], state: State) -> tuple[Loss, ...]:  # noqa: ARG002
        """Return all losses: the server counts on each of them, whichever minibatch the other learners are in."""
        return losses

    def loss_rows(self, rows: int, own: int) -> int:  # noqa: ARG002  (the others' rows are in other steps)
        """Return this learner's rows: its gradient is a mean over them."""
        self._own = own
        return own

    def update(self, state: State, loss: Loss, gradient: Tensor) -> State:
        """Send the gradient; parameters return after the minibatch, or at once if the next gradient depends on them."""
        self._next_loss = (self._next_loss + 1) % self._losses
        # The next loss may reuse its memory.
        self._gradients.append(gradient.clone() if self._next_loss and self._together else gradient)
        if not self._next_loss or not self._together:
            self._send([torch.tensor([self._own]), *self._gradients])
            self._gradients = []
        if self._next_loss and not self._together:
            self._receive([state.params[loss.group].flat])
        return state

    def after_minibatch(self, state: State) -> State:
        """Receive everything that a server's steps change."""
        self._receive(served_values(self._algorithm, state))
        return state

    def _send(self, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            self.edges.add("learn -> sync", tensor.nbytes)
        self._link.send(tensors)

    def _receive(self, values: list[Tensor]) -> None:
        for value, sent in zip(values, self._link.receive(values, self._patience_seconds), strict=True):
            value.copy_(sent)


def awaited_from_first(server: Group, number: int = 0) -> int:
    """Return the number that the first learner has, to a whole server group, once that learner has acted."""
    return int(server.await_from(0, torch.tensor([number])).item())


def told_from_first(server: Group, number: int = 0) -> int:
    """Return the number that the first learner has, to a whole server group."""
    return int(server.copy_from(0, torch.tensor([number])).item())


def served_values(algorithm: Algorithm, state: State) -> list[Tensor]:
    """Return the tensors that optimizer's steps and `after_minibatch` change, in a fixed order."""
    learned = sorted({loss.group for loss in algorithm.losses})
    return [*(state.params[name].flat for name in learned), *untrained_values(algorithm, state)]


def untrained_values(algorithm: Algorithm, state: State) -> list[Tensor]:
    """Return the tensors that `after_minibatch` and `after_round` may change, and no optimizer, in a fixed order."""
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
    assignment: Assignment, context: RunContext, membership: Membership, rendezvous: Rendezvous | None
) -> Iterator[Reduction]:
    """Yield a learner's reduction under its run's policy; its groups end with the context.

    Raises:
        MemberLostError: the others did not connect, or one was lost.
    """
    kind, names = context.policy.reduce, learner_names(assignment, context)
    if kind == "local" or (kind == "allreduce" and len(names) == 1):
        yield LocalReduction(context.algorithm)
        return
    gpus = membership.advertisements(GPUS)
    with Group(
        _LEARNER_GROUP, assignment.replica, names, membership, assignment, rendezvous, backend_of(names, gpus)
    ) as group:
        if kind == "allreduce":
            yield SummedReduction(context.algorithm, group)
            return
        everyone = [*names, server_name(context)]
        with Group(SERVER_GROUP, assignment.replica, everyone, membership, assignment, rendezvous) as server:
            max_staleness = context.config.distribution.max_staleness
            if max_staleness is None:
                yield ServerReduction(context.algorithm, group, server)
                return
            # A reply may wait for the slowest learner to take so many minibatches.
            patience_seconds = (max_staleness + 2) * assignment.gang_seconds
            with connect_to_server(everyone[-1], assignment, membership, patience_seconds) as link:
                yield StaleReduction(context.algorithm, group, server, link, patience_seconds)


def learner_names(assignment: Assignment, context: RunContext) -> list[str]:
    """Return the members that compute gradients, by rank."""
    role = context.policy.role_of("learn")
    replicas = assignment.replicas if assignment.role == role.name else role.replicas
    return [f"{role.name}-{replica}" for replica in range(replicas)]


def server_name(context: RunContext) -> str:
    """Return the member that holds `sync`."""
    return f"{context.policy.role_of('sync').name}-0"

"""Learners that own agents: each trains the parameters of its agents, over all rows, and sends them to the others.

The loss of one agent reads no parameters of another, so learners have nothing to add up: after a round all have the
bytes of one learner that trained everything. Sums and `post` are computed by each of them, from the same rows.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from penstock.storage.errors import SpecMismatchError
from penstock.tasks.roles.reducing.reduction import LocalReduction, learner_names
from penstock.tasks.runtime.process_group import Group
from penstock.tasks.setup.distribution.dataflow import agents_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch import Tensor

    from penstock.tasks.model.algorithms.contract import Algorithm, Loss
    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.membership import Membership
    from penstock.tasks.runtime.process_group import Rendezvous
    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.specs import State

_GROUP = "owners"


class AgentsReduction(LocalReduction):
    """The reduction of a learner that owns some agents; the learners' ranks are those of their agents' lists."""

    def __init__(self, algorithm: Algorithm, group: Group, rank: int, agents: Sequence[Sequence[int]]) -> None:
        """Find the owner of each loss.

        Args:
            algorithm: its losses name their agents.
            group: of all learners.
            rank: of this one.
            agents: of each learner, by rank.

        Raises:
            SpecMismatchError: a loss trains parameters of agents that no single learner owns.
        """
        super().__init__(algorithm)
        self._group = group
        self._rank = rank
        self._owners = {loss.name: _owner_of(loss, agents) for loss in algorithm.losses}

    def losses_of(self, losses: tuple[Loss, ...], state: State) -> tuple[Loss, ...]:
        """Return the losses of this learner's agents that are due."""
        own = tuple(loss for loss in losses if self._owners[loss.name] == self._rank)
        return super().losses_of(own, state)

    def after_round(self, state: State, stats: Mapping[str, Tensor]) -> State:
        """Copy what every learner has trained to the others, a message each, and then do what one learner does."""
        for owner in range(self._group.size):
            groups = [loss.group for loss in self._algorithm.losses if self._owners[loss.name] == owner]
            values = trained_values(state, groups)
            packed = self._group.copy_from(owner, _packed(values))
            if owner == self._rank:
                others = self._group.size - 1
                self.edges.add("learn -> learn", others * packed.nbytes, others)
            else:
                _unpack(packed, values)
        return super().after_round(state, stats)


@contextmanager
def owning(
    assignment: Assignment, context: RunContext, membership: Membership, rendezvous: Rendezvous | None
) -> Iterator[AgentsReduction]:
    """Yield the reduction of a learner that owns agents; its group ends with the context.

    Raises:
        MemberLostError: the others did not connect, or one was lost.
        SpecMismatchError: as `AgentsReduction`.
    """
    role, names = context.policy.role_of("learn"), learner_names(assignment, context)
    agents = [agents_of(role, replica, context.environment.agents) for replica in range(len(names))]
    with Group(_GROUP, assignment.replica, names, membership, assignment, rendezvous) as group:
        yield AgentsReduction(context.algorithm, group, assignment.replica, agents)


def trained_values(state: State, groups: Iterable[str]) -> list[Tensor]:
    """Return the parameters of groups, and the state of their optimizers, in a fixed order."""
    values = []
    for group in dict.fromkeys(groups):
        optimizer = state.optimizer.get(group, {})
        values += [state.params[group].flat, *(optimizer[name] for name in sorted(optimizer))]
    return values


def _owner_of(loss: Loss, agents: Sequence[Sequence[int]]) -> int:
    for rank, own in enumerate(agents):
        if loss.agents and {*loss.agents} <= {*own}:
            return rank
    raise SpecMismatchError(
        f"the loss '{loss.name}' trains parameters of the agents {loss.agents and list(loss.agents)}, and the learners "
        f"own {[list(own) for own in agents]}; expected a loss whose agents have one learner. Choose a policy whose "
        f"learners train all parameters together, such as single_learner_coarse"
    )


def _packed(values: list[Tensor]) -> Tensor:
    """Return the bytes of tensors, one after another, on the host."""
    return torch.cat([value.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for value in values])


def _unpack(packed: Tensor, values: list[Tensor]) -> None:
    for value, part in zip(values, packed.split([value.nbytes for value in values]), strict=True):
        # A copy is aligned as the type needs it; a part of the bytes may not be.
        value.copy_(part.clone().view(value.dtype).view(value.shape))

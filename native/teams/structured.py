"""Structured actions of agents, each of its own structure, as one array with an agent axis.

An agent's row begins with the vector of its action, as `adapters.structured_actions` describes it; zeros follow, up to
the longest vector of the team.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Dict

from penstock.native.adapters.structured_actions import ActionVectors, UnsupportedActionError
from penstock.native.teams.masks import AgentMask, sizes_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gymnasium.spaces import Space
    from numpy.typing import NDArray

    from penstock.native.interface import ActionFormat


class TeamSpace(Dict):
    """The actions of a team: those of each agent by its name.

    Attributes:
        agents: their names in the order of the agent axis, whatever order a Dict keeps.
    """

    def __init__(self, spaces: Mapping[str, Space[Any]]) -> None:
        super().__init__(dict(spaces))
        self.agents = tuple(spaces)


class TeamVectors:
    """The vectors of a team's actions.

    Raises:
        ValueError: No vector can hold the actions of an agent; the message names both.
    """

    def __init__(self, spaces: TeamSpace) -> None:
        self._vectors = {name: _vectors_of(name, spaces[name]) for name in spaces.agents}
        each = list(self._vectors.values())
        self.low = np.zeros((len(each), max(one.count for one in each)))
        """The smallest value of each number, `[agents, numbers]`."""
        self.high = np.zeros(self.low.shape)
        self._is_choice = np.ones(self.low.shape, np.bool_)
        sizes = []
        for row, one in enumerate(each):
            self.low[row, : one.count], self.high[row, : one.count] = one.low, one.high
            sizes.append(sizes_of(one.format["leaves"]))
            self._is_choice[row, : one.count] = np.array(sizes[-1]) > 0
        width = 1 + max(sum(size or 1 for size in own) for own in sizes)
        self.masks = [AgentMask.of_structured(own, width) for own in sizes]
        """Each agent's part of a mask."""
        self.format: ActionFormat = {
            "kind": "structured",
            "dtype": "float32",
            "shape": self.low.shape,
            "n": width,
            "agents": [{"name": name, "leaves": one.format["leaves"]} for name, one in self._vectors.items()],
        }

    def decode(self, rows: NDArray[Any]) -> dict[str, Any]:
        """Return each agent's action of `[agents, numbers]`; of `[B, agents, numbers]` those of B, as `batch_space`."""
        return {name: one.decode(rows[..., row, : one.count]) for row, (name, one) in enumerate(self._vectors.items())}

    def encode(self, actions: Mapping[str, Any]) -> NDArray[np.float32]:
        """Return the rows `[agents, numbers]` of all agents' actions; of a batch, as above, `[B, agents, numbers]`."""
        rows = [one.encode(actions[name]) for name, one in self._vectors.items()]
        found = np.zeros((*rows[0].shape[:-1], *self.low.shape), np.float32)
        for row, vector in enumerate(rows):
            found[..., row, : vector.shape[-1]] = vector
        return found

    def check(self, rows: NDArray[Any]) -> None:
        """Refuse rows `[B, agents, numbers]` of which a choice is none, a number not finite, or what follows not 0.

        Raises:
            ValueError: names the environment, the agent and the number.
        """
        is_place = (rows >= 0) & (rows <= self.high) & (rows == np.floor(rows))
        right = np.where(self._is_choice, is_place, np.isfinite(rows))
        if right.all():
            return
        environment, row, number = np.argwhere(~right)[0].tolist()
        name, one = list(self._vectors.items())[row]
        if number >= one.count:
            expected = f"0, since {name} has {one.count} numbers"
        elif self._is_choice[row, number]:
            expected = f"a whole number from 0 to {self.high[row, number]:g}"
        else:
            expected = "a finite number"
        raise ValueError(
            f"action of {name} of environment {environment}: number {number} of its vector is "
            f"{rows[environment, row, number]}, expected {expected}"
        )


def team_action(space: TeamSpace, stored: NDArray[Any]) -> dict[str, Any]:
    """Return each agent's own action, by its name, for what rounds and shards hold: `[agents, numbers]`, or a batch."""
    return TeamVectors(space).decode(stored)


def _vectors_of(name: str, space: Space[Any]) -> ActionVectors:
    try:
        return ActionVectors(space)
    except UnsupportedActionError as error:
        raise UnsupportedActionError(f"{name}: {error}") from None

"""Masks of a team: for each agent, which of its choices its next action may have, in one row of a fixed length.

Of an agent with one choice, the row is 0 or 1 for each. Of an agent with a structured action it has, for each number of
its vector, as many as that number has choices, or one for a number of a Box, and at its end whether the agent is there.
A row begins with the agent's own, and zeros follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.native.interface import ActionLeafFormat, EnvironmentSpec


@dataclass(frozen=True, slots=True)
class AgentMask:
    """One agent's row `[n]`, bool. All zeros say that it has left."""

    free: NDArray[np.bool_]
    """The row that forbids nothing."""
    waiting: NDArray[np.bool_]
    """The row of an agent whose action is not taken: choice 0 alone, and no number."""
    choices: tuple[range, ...]
    """The places of each number that is a choice."""

    @classmethod
    def of_choice(cls, count: int, width: int) -> AgentMask:
        """Return that of one choice among `count`."""
        places = np.arange(width)
        return cls(places < count, places < 1, (range(count),))

    @classmethod
    def of_structured(cls, sizes: Sequence[int], width: int) -> AgentMask:
        """Return that of a vector of such `sizes`: the choices of each number, or 0 for one of a Box."""
        free, waiting, choices, first = np.zeros(width, np.bool_), np.zeros(width, np.bool_), list[range](), 0
        for size in sizes:
            if size:
                choices.append(range(first, first + size))
                waiting[first] = True
            first += size or 1
        free[:first] = True
        free[-1] = waiting[-1] = True
        return cls(free, waiting, tuple(choices))

    def given(self, name: str, mask: Any) -> NDArray[np.bool_]:
        """Return the row of a mask that an environment gives: 0 or 1 for each choice of each number, in order.

        Raises:
            ValueError: It has another length, or leaves a number without a choice; the message has the agent's name.
        """
        count = sum(map(len, self.choices))
        if np.shape(mask) != (count,):
            raise ValueError(f"the mask of {name} is {mask!r}, expected {count} numbers, not all of them 0")
        row, bits = self.free.copy(), np.asarray(mask) != 0
        row[[place for each in self.choices for place in each]] = bits
        if any(not row[each.start : each.stop].any() for each in self.choices):
            many = f": one at least of each of its {len(self.choices)} choices" if len(self.choices) > 1 else ""
            raise ValueError(f"the mask of {name} is {mask!r}, expected {count} numbers, not all of them 0{many}")
        return row


def sizes_of(leaves: Sequence[ActionLeafFormat]) -> list[int]:
    """Return for each number of a structured action's vector its choices, or 0 for a number of a Box."""
    return [size for leaf in leaves for size in leaf.get("sizes") or [0] * prod(leaf["shape"])]


def permitted(environment: EnvironmentSpec, observation: NDArray[Any], action: NDArray[Any]) -> NDArray[Any]:
    """Return actions `[B, ...]` with others in place of choices that the masks in `observation` forbid, 0 for none.

    Of several agents, or of one; of an environment without masks, the actions as they are.
    """
    described = environment["action"]
    if "behind_mask" not in environment["observation"]:
        return action
    agents, width = environment["agents"] or 1, described["n"]
    masks = observation[:, : agents * width].reshape(-1, agents, width) != 0
    found = np.array(action).reshape(len(masks), agents, -1)
    of_each = [sizes_of(one["leaves"]) for one in described["agents"]] if "agents" in described else [[width]] * agents
    for row, agent in np.ndindex(*masks.shape[:2]):
        first = 0
        for number, size in enumerate(of_each[agent]):
            allowed = np.flatnonzero(masks[row, agent, first : first + (size or 1)])
            value = found[row, agent, number]
            if size and value not in allowed:
                found[row, agent, number] = allowed[int(value) % len(allowed)] if len(allowed) else 0
            elif not size and not len(allowed):
                found[row, agent, number] = 0
            first += size or 1
    return found.reshape(np.shape(action))

"""A small team with PettingZoo's interface whose agents have structured observations, and what each is paid for.

In each step a guide sees a picture with a bright band, and is paid for the band's number; a pilot has no picture, and
is paid for its shift. All see a shift and two numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Space
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.conversions import parallel_to_aec

if TYPE_CHECKING:
    from collections.abc import Mapping

CHOICES, SIDE, STEPS = 3, 6, 6
CAMERA = Box(0, 255, (SIDE, SIDE, 3), np.uint8)


class Seeing(ParallelEnv[str, Any, Any]):
    """The agents that `members` names, separated by commas; those called `pilot...` have no camera.

    Args:
        members: Names of agents.
        masked: Observations have a mask, which forbids a wrong choice.
        leaving: The first agent leaves after two steps.
        other: Of a pilot, the leaf `shift` is a number.
        pictures: Agents observe the camera alone, in no dictionary.
    """

    metadata: Mapping[str, Any] = {"name": "seeing_team", "is_parallelizable": True}
    render_mode = None

    def __init__(
        self,
        members: str = "guide,other_guide,pilot",
        *,
        masked: bool = False,
        leaving: bool = False,
        other: bool = False,
        pictures: bool = False,
    ) -> None:
        self.possible_agents = members.split(",")
        self.agents: list[str] = []
        self._masked, self._leaving, self._other, self._pictures = masked, leaving, other, pictures
        self._random = np.random.default_rng(0)
        self._right: dict[str, int] = {}
        self._forbidden: dict[str, int] = {}
        self._steps = 0

    def observation_space(self, agent: str) -> Space[Any]:
        """Return a dictionary of leaves."""
        if self._pictures:
            return CAMERA
        is_pilot = agent.startswith("pilot")
        spaces: dict[str, Space[Any]] = {
            "shift": Box(0, 1, (2,), np.float32) if self._other and is_pilot else Discrete(CHOICES, start=1),
            "arm": Dict(position=Box(-1.0, 1.0, (2,), np.float32)),
        }
        if not is_pilot:
            spaces["camera"] = CAMERA
        if self._masked:
            spaces["action_mask"] = Box(0, 1, (CHOICES,), np.int8)
        return Dict(spaces)

    def action_space(self, agent: str) -> Space[Any]:
        """Return a choice."""
        return Discrete(CHOICES)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self.agents, self._steps = list(self.possible_agents), 0
        return self._next(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Pay every agent for its choice."""
        acted = list(self.agents)
        for agent in acted:
            if self._masked and actions[agent] == self._forbidden[agent]:
                raise ValueError(f"{agent} chose {actions[agent]}, which its mask forbids")
        reward = {agent: float(actions[agent] == self._right[agent]) for agent in acted}
        self._steps += 1
        over = self._steps >= STEPS
        gone = {
            agent: self._leaving and agent == self.possible_agents[0] and self._steps >= STEPS // 3 for agent in acted
        }
        self.agents = [] if over else [agent for agent in acted if not gone[agent]]
        return self._next(acted), reward, gone, dict.fromkeys(acted, over), {agent: {} for agent in acted}

    def close(self) -> None:
        """Do nothing."""

    def _next(self, agents: list[str]) -> dict[str, Any]:
        drawn = {agent: self._draw(agent) for agent in self.possible_agents}
        return {agent: drawn[agent] for agent in agents}

    def _draw(self, agent: str) -> Any:
        draw = self._random
        band, shift = (int(number) for number in draw.integers(0, CHOICES, 2))
        camera, position = draw.integers(0, 100, CAMERA.shape, dtype=np.uint8), draw.uniform(-1, 1, 2)
        camera[:, band * SIDE // CHOICES : (band + 1) * SIDE // CHOICES] += 150
        seen: dict[str, Any] = {"shift": shift + 1, "arm": {"position": position.astype(np.float32)}, "camera": camera}
        if agent.startswith("pilot"):
            del seen["camera"]
            if self._other:
                seen["shift"] = np.zeros(2, np.float32)
        self._right[agent] = shift if agent.startswith("pilot") else band
        self._forbidden[agent] = (self._right[agent] + 1) % CHOICES
        if self._masked:
            seen["action_mask"] = (np.arange(CHOICES) != self._forbidden[agent]).astype(np.int8)
        return camera if self._pictures else seen


def turns(members: str = "guide,pilot") -> AECEnv[str, Any, Any]:
    """Make such a team, whose agents act one after the other."""
    return parallel_to_aec(Seeing(members))


SEEING = f"pettingzoo/{__name__}:Seeing"
SEEING_TURNS = f"pettingzoo/{__name__}:turns"

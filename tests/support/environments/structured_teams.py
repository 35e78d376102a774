"""Small teams with PettingZoo's interface, whose agents have structured actions that differ from agent to agent.

Each step shows every agent two numbers and pays it for an action that fits them. The best reward of each is 1. A team
refuses any action that the agent's space does not contain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Text, Tuple
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.conversions import parallel_to_aec

STEPS = 6
ARM = Dict(gear=Discrete(3, start=2), arm=Tuple([Box(np.float64(-4), np.float64(6), (2,), np.float64), MultiBinary(2)]))
SPACES: dict[str, Space[Any]] = {
    "left": ARM,
    "right": ARM,
    "flags": MultiDiscrete([3, 2], start=[0, -1]),
    "speed": Box(-1.0, 1.0, (1,), np.float32),
    "turn": Discrete(3, start=1),
}
"""Actions of the agents, in the order in which a team has them."""
CHOICES = {"left": 3 + 2 + 2, "right": 3 + 2 + 2, "flags": 3 + 2, "speed": 0, "turn": 3}
"""Numbers of a mask that the environment gives."""

Rewarded = Callable[[Any, Any, Any], Any]


def _arm(action: Any, up: Any, share: Any) -> Any:
    numbers, bits = action["arm"]
    off = np.abs((numbers + 4.0) / 10.0 - share).mean()
    return ((action["gear"] == 2 + up.sum()) + (bits == up).mean() - off) / 2.0


REWARDS: dict[str, Rewarded] = {
    "left": _arm,
    "right": _arm,
    "flags": lambda action, up, _: (action == [up.sum(), up[0] - 1]).mean(),
    "speed": lambda action, _, share: 1.0 - np.abs((action[0] + 1.0) / 2.0 - share[0]),
    "turn": lambda action, up, _: float(action == 1 + up.sum()),
}


class Team(ParallelEnv[str, Any, Any]):
    """The agents that `members` names, separated by commas.

    Args:
        members: Names of `SPACES`.
        leaving: The first agent leaves after two steps.
        masked: Observations are dictionaries with a mask, which forbids gear 2 (choice 0) in `left` and `right`.
        said: What agents observe besides has a text.
    """

    metadata: Mapping[str, Any] = {"name": "structured_team", "is_parallelizable": True}
    render_mode = None

    def __init__(
        self, members: str = ",".join(SPACES), *, leaving: bool = False, masked: bool = False, said: bool = False
    ) -> None:
        self.possible_agents = members.split(",")
        self.agents: list[str] = []
        self._leaving, self._masked, self._said = leaving, masked, said
        self._random = np.random.default_rng(0)
        self._cues: dict[str, Any] = {}
        self._steps = 0

    def observation_space(self, agent: str) -> Space[Any]:
        """Return two numbers, or a dictionary with them."""
        seen = Box(-1.0, 1.0, (2,), np.float32)
        if self._said:
            return Dict(cue=seen, radio=Dict(said=Text(5)))
        if self._masked and CHOICES[agent]:
            return Dict(observation=seen, action_mask=Box(0, 1, (CHOICES[agent],), np.int8))
        return seen

    def action_space(self, agent: str) -> Space[Any]:
        """Return the agent's own actions."""
        return SPACES[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self.agents, self._steps = list(self.possible_agents), 0
        return self._next(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Pay every agent for its action."""
        acted, reward = list(self.agents), {}
        for agent in acted:
            action, cue = actions[agent], self._cues[agent]
            if not SPACES[agent].contains(action):
                raise ValueError(f"{agent} took {action!r}, which is not in {SPACES[agent]}")
            if self._masked and agent in ("left", "right") and action["gear"] == 2:
                raise ValueError(f"{agent} took gear 2, which its mask forbids")
            reward[agent] = float(REWARDS[agent](action, cue > 0, (cue.astype(float) + 1.0) / 2.0))
        self._steps += 1
        over = self._steps >= STEPS
        first = self.possible_agents[0]
        gone = {agent: self._leaving and agent == first and self._steps >= 2 for agent in acted}
        self.agents = [] if over else [agent for agent in acted if not gone[agent]]
        return self._next(acted), reward, gone, dict.fromkeys(acted, over), {agent: {} for agent in acted}

    def close(self) -> None:
        """Do nothing."""

    def _next(self, agents: list[str]) -> dict[str, Any]:
        drawn = {agent: self._random.uniform(-1.0, 1.0, 2).astype(np.float32) for agent in self.possible_agents}
        self._cues = drawn
        return {agent: self._seen(agent, drawn[agent]) for agent in agents}

    def _seen(self, agent: str, cue: Any) -> Any:
        if self._said:
            return {"cue": cue, "radio": {"said": "up"}}
        if self._masked and CHOICES[agent]:
            mask = np.ones(CHOICES[agent], np.int8)
            if agent in ("left", "right"):
                mask[4] = 0  # the bits of `arm` are before `gear`
            return {"observation": cue, "action_mask": mask}
        return cue


def turns(members: str = ",".join(SPACES)) -> AECEnv[str, Any, Any]:
    """Make the same team, whose agents act one after the other."""
    return parallel_to_aec(Team(members))


def other_thing() -> object:
    """Make something that is no environment."""
    return object()


TEAM = f"pettingzoo/{__name__}:Team"
TURNS = f"pettingzoo/{__name__}:turns"

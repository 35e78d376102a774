"""A team of PettingZoo's interface whose second agent dies, and whose episode may end by a limit or a victory."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete


class Mortals:
    """Agents observe the step, and get a reward of 1 for each. Steps that never come are 0."""

    metadata: dict[str, Any] = {"name": "mortals_v0"}  # noqa: RUF012  (PettingZoo's interface)
    possible_agents = ("first", "second")

    def __init__(self, dies_at: int = 2, ends_at: int = 0, wins_at: int = 0) -> None:
        self.agents: list[str] = []
        self._dies_at, self._ends_at, self._wins_at = dies_at, ends_at, wins_at

    def observation_space(self, _: str) -> Box:
        return Box(-10.0, 10.0, (1,), np.float32)

    def action_space(self, _: str) -> Discrete:
        return Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self._step = list(self.possible_agents), 0
        return self._observed(), {name: {} for name in self.agents}

    def step(self, _: Any) -> Any:
        self._step += 1
        there = self.agents
        ended = dict.fromkeys(there, self._step == self._wins_at)
        ended |= {"second": True} if "second" in there and self._step == self._dies_at else {}
        cut = dict.fromkeys(there, self._step == self._ends_at)
        observed = self._observed()
        self.agents = [name for name in there if not ended[name] and not cut[name]]
        return observed, dict.fromkeys(there, 1.0), ended, cut, {name: {} for name in there}

    def close(self) -> None:
        pass

    def _observed(self) -> dict[str, Any]:
        return {name: np.array([self._step], np.float32) for name in self.agents}


def mortals(dies_at: int = 2, ends_at: int = 0, wins_at: int = 0) -> Mortals:
    return Mortals(dies_at, ends_at, wins_at)


MORTALS = f"pettingzoo/{__name__}:mortals"

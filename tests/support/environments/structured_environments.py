"""Small environments of Gymnasium with structured actions: each step shows two numbers and rewards what fits them.

The best return is `BEST`; an environment refuses any action that its space does not contain.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

STEPS = 8
SPACES: dict[str, Space[Any]] = {
    "MultiDiscrete": MultiDiscrete([3, 2, 5], start=[0, -1, 2]),
    "MultiBinary": MultiBinary((2, 2)),
    "Integers": Box(0, 255, (2,), np.uint8),
    "Hybrid": Dict(
        gear=Discrete(3, start=2),
        arm=Tuple([Box(np.float64(-4), np.float64(6), (2,), np.float64), MultiBinary(2)]),
    ),
    "Pair": Tuple([Discrete(3), Box(0, 10, (1,), np.int32)]),
}
BEST = {"MultiDiscrete": 3.0, "MultiBinary": 1.0, "Integers": 0.0, "Hybrid": 2.0, "Pair": 1.0}
"""The largest reward of a step."""


class Fitting(gymnasium.Env[Any, Any]):
    """Shows two numbers from -1 to 1, other ones in each step."""

    observation_space = Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.action_space = SPACES[kind]
        self._cue, self._steps = np.zeros(2, np.float32), 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed, options=options)
        self._steps = 0
        return self._next(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Reward an action that fits what was shown."""
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        reward = float(self._reward(action, self._cue > 0, (self._cue.astype(float) + 1.0) / 2.0))
        self._steps += 1
        return self._next(), reward, False, self._steps == STEPS, {}

    def _next(self) -> Any:
        self._cue = self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)
        return self._cue

    def _reward(self, action: Any, up: Any, share: Any) -> Any:
        if self.kind == "MultiDiscrete":
            return (action == [up.sum(), up[0] - 1, 2 + 4 * up[1]]).sum()
        if self.kind == "MultiBinary":
            return (action == [up, ~up]).mean()
        if self.kind == "Integers":
            return -np.abs(action.astype(float) / 255.0 - share).mean()
        if self.kind == "Pair":
            return (action[0] == up.sum()) - np.abs(action[1][0] / 10.0 - share[0])
        numbers, choices = action["arm"]
        off = np.abs((numbers + 4.0) / 10.0 - share).mean()
        return (action["gear"] == 2 + up.sum()) + (choices == up).mean() - off


class Scene(Fitting):
    """Shows the same two numbers as an image, a choice and a nested pair, and takes the actions of `Hybrid`."""

    observation_space = Dict(
        image=Box(0, 255, (8, 8, 1), np.uint8),
        up=Discrete(3),
        rest=Tuple([Box(-1.0, 1.0, (2,), np.float64), Dict(bits=MultiBinary(2))]),
    )

    def __init__(self) -> None:
        super().__init__("Hybrid")

    def _next(self) -> Any:
        cue = super()._next()
        up = cue > 0
        image = np.full((8, 8, 1), 255 * up[0], np.uint8)
        return {"image": image, "up": int(up.sum()), "rest": (cue.astype(float), {"bits": up.astype(np.int8)})}


SCENE = "test/Scene-v0"


def registered_id(kind: str) -> str:
    """Return the id of one of `SPACES`, which a process can make that has imported this module."""
    return f"test/Fitting{kind}-v0"


def environment_id(kind: str) -> str:
    """Return the same with this module, which any process can make where it can be imported."""
    return f"{__name__}:{registered_id(kind)}"


for _kind in SPACES:
    gymnasium.register(registered_id(_kind), Fitting, kwargs={"kind": _kind})
gymnasium.register(SCENE, Scene)

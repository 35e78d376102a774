"""An environment with an image, a vector, a choice and a nested tuple, whose reward needs the image and the choice."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

ID = "test/Explorer-v0"
MASKED = "test/MaskedExplorer-v0"
"""The same with `masked="info"`."""
CHOICES = 3


class Explorer(gymnasium.Env[Any, Any]):
    """Shows the right action by a bright band of the image, shifted by a choice. Episodes have 8 steps.

    With `masked` = "info" or "observation", one wrong choice is forbidden in each step, and said so there.
    """

    def __init__(self, masked: str = "", precise: bool = False, side: int = 9, flat: bool = False) -> None:
        self.masked, self.side, self.flat = masked, side, flat
        spaces: dict[str, Any] = {
            "camera": Box(0, 255, (side, side, 3), np.uint8),
            "arm": Dict({"position": Box(-np.inf, np.inf, (2,), np.float64 if precise else np.float32)}),
            "shift": Discrete(CHOICES, start=1),
            "goal": Tuple((MultiDiscrete([2, 3]), Tuple((MultiBinary(4), Box(0, 1000, (), np.int32))))),
        }
        if flat:
            spaces = {"observation": Box(-1, 1, (3,), np.float32)}
        if masked == "observation":
            spaces["action_mask"] = MultiBinary(CHOICES)
        self.observation_space = Dict(spaces) if len(spaces) > 1 else spaces["observation"]
        self.action_space = Discrete(CHOICES)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if not self.mask[action]:
            raise ValueError(f"choice {action} is forbidden")
        reward = float(action == self.right)
        observation, info = self._observe()
        return observation, reward, self.steps % 8 == 0, False, info

    def _observe(self) -> tuple[Any, dict[str, Any]]:
        draw = self.np_random
        self.right, shift = int(draw.integers(CHOICES)), int(draw.integers(CHOICES))
        self.mask = np.ones(CHOICES, np.int8)
        if self.masked:
            self.mask[(self.right + 1) % CHOICES] = 0
        camera = draw.integers(0, 100, (self.side, self.side, 3), dtype=np.uint8)
        third = self.side // CHOICES
        band = (self.right + shift) % CHOICES
        camera[:, band * third : (band + 1) * third] += 150
        info = {"action_mask": self.mask.copy()} if self.masked == "info" else {}
        own = {"action_mask": self.mask.copy()} if self.masked == "observation" else {}
        if self.flat:
            seen = (np.arange(3) == self.right).astype(np.float32)
            return ({"observation": seen, **own} if own else seen), info
        position = draw.normal(size=2).astype(self.observation_space["arm"]["position"].dtype)
        pair = draw.integers(0, [2, 3])
        goal = (pair, (draw.integers(0, 2, 4, dtype=np.int8), np.array(self.steps, np.int32)))
        return {"camera": camera, "arm": {"position": position}, "shift": shift + 1, "goal": goal, **own}, info


if ID not in gymnasium.registry:
    gymnasium.register(ID, Explorer)
if MASKED not in gymnasium.registry:
    gymnasium.register(MASKED, Explorer, kwargs={"masked": "info"})

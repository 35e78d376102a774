"""A pool that can draw itself. It records the latest actions in each step, a cost that other pools avoid."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.native import _core
from penstock.native.pool.attributes import get_attribute
from penstock.native.pool.pool import Pool
from penstock.native.pool.rendering import Renderer, checked_render_mode, draws_itself


class RenderingPool(Pool):
    """A pool with `render`; all environments share one renderer, so there are arrays only and no windows."""

    def __init__(self, *args: Any, render_mode: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if render_mode == "human":
            raise ValueError(
                "a pool draws into arrays: make it with render_mode='rgb_array' and, for a window, wrap it in "
                "gymnasium.wrappers.vector.HumanRendering"
            )
        described = _core.describe(self.environment["id"])
        self.render_mode = checked_render_mode(described, render_mode, "rgb_array")
        self._draws_itself = draws_itself(described)
        self.spec = self._make_spec()
        self._renderer: Renderer | None = None
        self._actions: Any = None

    def step(self, actions: Any) -> Any:
        """Step as `Pool.step` does, and record the actions."""
        result = super().step(actions)
        self._actions = np.array(actions)
        return result

    def render(self) -> tuple[Any, ...]:
        """Return one frame for each environment, as SyncVectorEnv gives them: uint8 [height, width, 3], or depths."""
        if self._draws_itself:
            return tuple(self.picture(row) for row in range(self.num_envs))
        states = get_attribute(self, "state")
        if self._renderer is None:
            self._renderer = Renderer(self.environment["id"], str(self.render_mode), self.resources)
        frames = []
        for row, elapsed_steps in enumerate(get_attribute(self, "elapsed_steps")):
            config = {name: values[row].item() for name, values in self.config.items()}
            action = self._actions[row] if elapsed_steps > 0 and self._actions is not None else None
            frames.append(self._renderer.draw(states[row], config, action, row))
        return tuple(frames)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the renderer, then as `Pool.close_extras`."""
        if self._renderer is not None:
            self._renderer.close()
        super().close_extras(**kwargs)

    def __getstate__(self) -> dict[str, object]:
        """Return the pool's state; the copy makes its own renderer when it draws."""
        return {**super().__getstate__(), "_renderer": None}

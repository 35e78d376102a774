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
        self._received: Any = None

    def step(self, actions: Any) -> Any:
        """Step as `Pool.step` does, and record the actions."""
        result = super().step(actions)
        self._record(actions, slice(None))
        return result

    def step_rows(self, actions: Any, environments: Any) -> Any:
        """Step as `Pool.step_rows` does, and record the actions."""
        result = super().step_rows(actions, environments)
        self._record(actions, np.asarray(environments))
        return result

    def step_round(self, t: int, action: Any) -> None:
        """Step as `Pool.step_round` does, and record the actions."""
        super().step_round(t, action)
        self._record(action, slice(None))

    def send(self, actions: Any, env_ids: Any = None) -> None:
        """Send as `Pool.send` does, and record the actions."""
        rows = self._received if env_ids is None else np.asarray(env_ids)
        super().send(actions, env_ids)
        self._record(actions, slice(None) if rows is None else rows)

    def recv(self) -> Any:
        """Receive as `Pool.recv` does, and remember the environments that `send` means by default."""
        result = super().recv()
        self._received = result[4]["env_id"]
        return result

    def _record(self, actions: Any, rows: Any) -> None:
        given = np.asarray(actions)
        if self._actions is None:
            self._actions = np.zeros((self.num_envs, *given.shape[1:]), dtype=given.dtype)
        self._actions[rows] = given

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

"""One environment, as `gymnasium.Env`: for what steps environments one by one, and to check them.

It is a pool of one. Stepping a pool of many costs far less for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode

from penstock.native import _core
from penstock.native.pool.attributes import get_attribute, is_environments_own, set_attribute
from penstock.native.pool.control_suite import STEP_SECONDS
from penstock.native.pool.generators import start_options, words_of
from penstock.native.pool.mujoco_data import MujocoView, has_mujoco_model
from penstock.native.pool.rendering import Renderer, checked_render_mode, draws_itself, metadata_of
from penstock.native.pool.spaces import single_spec
from penstock.native.registry.registry import make_native

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.native.interface import Infos


_OF_MUJOCO = ("data", "model", "set_state", "init_qpos", "init_qvel", "dt")


class SingleEnv(gymnasium.Env[Any, Any]):
    """An environment of a pool, equal to `gymnasium.make(id)` step for step.

    Args of the constructor: one of `environment_ids()`, a time limit as in `native.make`, 'rgb_array' or 'human' to
    draw it, and fields of its configuration.
    """

    def __init__(
        self,
        environment_id: str,
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
        **config: Any,
    ) -> None:
        self._pool = make_native(environment_id, 1, 1, max_episode_steps, AutoresetMode.DISABLED, **config)
        if self._pool.environment["agents"]:
            raise ValueError(
                f"{environment_id} has {self._pool.environment['agents']} agents with a reward each, and gymnasium.Env "
                "has one: make a pool of it"
            )
        described = _core.describe(environment_id)
        self.render_mode = checked_render_mode(described, render_mode, "rgb_array", "human")
        self._draws_itself = draws_itself(described)
        self.observation_space = self._pool.single_observation_space
        self.action_space = self._pool.single_action_space
        self.metadata = metadata_of(described)
        rendering = {} if render_mode is None else {"render_mode": render_mode}
        settings = {**self._configuration(), **self._pool.resources}
        self.spec = single_spec(self._pool.environment, self._pool.time_limit, settings, **rendering)
        self._going = False
        self._action: Any = None
        self._renderer: Renderer | None = None

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, object] | None = None
    ) -> tuple[np.ndarray[Any, Any], Infos]:
        """Start an episode: the observation and what the environment reports.

        Args:
            seed: Seed of a new generator; None keeps the current one.
            options: Of classic control, bounds of the first state, as in `Pool.reset`; of others there are none.

        Raises:
            ValueError: The seed is not in [0, 2**64), or an option is not known or has an invalid value.
        """
        unknown = sorted(set(options or {}) - set(start_options(self._pool.environment["id"])))
        if unknown:
            raise ValueError(f"unknown reset options {unknown}; the constructor takes the configuration")
        observation, infos = self._pool.reset(seed=None if seed is None else [seed], options=dict(options or {}))
        self._going, self._action = True, None
        if self.render_mode == "human":
            self.render()
        return observation[0], _single(infos)

    def step(self, action: Any) -> tuple[np.ndarray[Any, Any], float, bool, bool, Infos]:
        """Step, and return observation, reward, terminated, truncated and infos.

        Both flags hold if both happened in the last allowed step.

        Raises:
            TypeError: The action is a single number, and the space has arrays.
            ValueError: Type, shape or value of the action.
            gymnasium.error.ResetNeeded: There was no reset, or the episode has ended.
        """
        if not self._going:
            raise ResetNeeded("no episode is running: call reset() before the first step() and after an episode's end")
        given = np.asarray(action)
        if not given.shape and self.action_space.shape:
            raise TypeError(f"expected an array of shape {self.action_space.shape} as action, got {action!r}")
        if given.shape != self.action_space.shape:
            raise ValueError(f"expected an action of shape {self.action_space.shape}, got {given.dtype} {given.shape}")
        observation, reward, terminated, truncated, infos = self._pool.step(given[None])
        self._action = given.copy()
        self._going = not (terminated[0] or truncated[0])
        if self.render_mode == "human":
            self.render()
        return observation[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), _single(infos)

    def render(self) -> Any:
        """Return a frame, uint8 [height, width, 3], or None in a window; None too before the first reset.

        Raises:
            RuntimeError: It was made without a `render_mode`.
        """
        if self.render_mode is None:
            raise RuntimeError(f"{self} can't render: make it with render_mode='rgb_array' or 'human'")
        if not self._going and self._action is None:
            return None
        if self._draws_itself:
            return self._pool.picture(0)
        if self._renderer is None:
            self._renderer = Renderer(self._pool.environment["id"], self.render_mode, self._pool.resources)
        return self._renderer.draw(get_attribute(self._pool, "state")[0], self._configuration(), self._action)

    def close(self) -> None:
        """Close the window, if there is one; the environment can be reset again, as Gymnasium's can."""
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    @property
    def np_random(self) -> np.random.Generator:
        """Return a copy of the generator: drawing from it does not move the environment. It can be set."""
        generator: np.random.Generator = self._pool.np_random[0]
        return generator

    @np_random.setter
    def np_random(self, value: np.random.Generator) -> None:
        try:
            self._pool.set_attr("np_random", [value])
        except RuntimeError:  # not reset yet: the generator is a part of the state, which begins with a reset
            words_of(value, 0)
            self._pool.reset(seed=[0])
            self._pool.set_attr("np_random", [value])

    @property
    def np_random_seed(self) -> int:
        """Return the seed of the latest or the next reset; -1 after the generator was set."""
        seed: int = self._pool.np_random_seed[0]
        return seed

    # Gymnasium's checker reads the members behind the two properties.
    _np_random = np_random
    _np_random_seed = np_random_seed

    def __getattr__(self, name: str) -> Any:
        """Return the attributes that pools have for each environment: configuration, state and what it reports."""
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        try:
            if name in _OF_MUJOCO and has_mujoco_model(self._pool.environment["id"]):
                return self._of_mujoco(name)
            return get_attribute(self._pool, name)[0]
        except RuntimeError as error:  # not reset yet
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r} now: {error}") from error

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field of the configuration or of the state in the environment; any other name is the object's own.

        Raises:
            AttributeError: It is something that the environment reports, which can't be set.
            ValueError: The value is invalid; nothing has then changed.
            RuntimeError: It belongs to an episode, and nothing was reset yet.
        """
        pool = self.__dict__.get("_pool")
        if pool is None or name.startswith("_") or not is_environments_own(pool, name):
            super().__setattr__(name, value)
        else:
            set_attribute(pool, name, [value])

    def __getstate__(self) -> dict[str, object]:
        """Return the state; a copy resumes from it, and makes its own renderer when it draws."""
        return {**self.__dict__, "_renderer": None, "_view": None}

    def _of_mujoco(self, name: str) -> Any:
        """Return what Gymnasium's MuJoCo environments have: `data` as a copy, and what does not change."""
        view = self.__dict__.get("_view") or MujocoView(self._pool)
        self._view = view
        if name == "data":
            return view.data()
        if name == "dt":
            suite_seconds = STEP_SECONDS.get(self._pool.environment["id"])
            return view.model.opt.timestep * self.frame_skip if suite_seconds is None else suite_seconds
        return {"model": view.model, "set_state": view.set_state, "init_qpos": view.model.qpos0.copy()}.get(
            name, np.zeros(view.model.nv)
        )

    def _configuration(self) -> dict[str, float]:
        return {name: values[0].item() for name, values in self._pool.config.items()}


def _single(infos: Infos) -> Infos:
    """Return the infos of the only environment, without masks."""
    return {
        name: {part: of[0] for part, of in value.items() if part[0] != "_"} if isinstance(value, dict) else value[0]
        for name, value in infos.items()
        if not name.startswith("_") and infos[f"_{name}"][0]
    }

"""MuJoCo's tasks seen as pictures: the pool in C++ steps them, and what is observed is a frame of each state.

A frame is a function of the saved state alone (on one machine: drivers of OpenGL differ in single pixels), so such a
pool is saved and restored as any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.error import DependencyNotInstalled
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from penstock.native.adapters.vector_env import WrappedSource
from penstock.native.pool.mujoco_data import FRAMES_PER_SECOND
from penstock.native.pool.mujoco_scenes import TaskScene

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from penstock.native.interface import Infos
    from penstock.native.pool.pool import Pool

OBSERVATION = "observation"
PIXEL_TYPES: dict[str, type] = {OBSERVATION: str, "height": int, "width": int, "camera": str}
"""Settings of MuJoCo's tasks by which they are seen as pictures, each with the type of its value."""
_TRACKING = "track"
_MOST_PIXELS = 4096


@dataclass(frozen=True, slots=True)
class View:
    """The size of a picture in pixels, and a camera of the model; None: `track`, or without one the free camera."""

    height: int = 84
    width: int = 84
    camera: str | None = None


def without_view(given: Mapping[str, Any]) -> tuple[dict[str, Any], View | None]:
    """Return the other settings, and what is seen; None where the state is observed.

    Raises:
        ValueError: `observation` is neither 'state' nor 'pixels', or a size or a camera is none.
    """
    rest = {name: value for name, value in given.items() if name not in PIXEL_TYPES}
    chosen = {name: given[name] for name in PIXEL_TYPES if name in given}
    observed = chosen.pop(OBSERVATION, "state")
    if observed == "state":
        if chosen:
            raise ValueError(f"{' and '.join(chosen)}: expected observation = 'pixels'; set that too, or leave it out")
        return rest, None
    if observed != "pixels":
        raise ValueError(f"observation is {observed!r}, expected 'state' or 'pixels'")
    for name in ("height", "width"):
        size = chosen.get(name, 1)
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= _MOST_PIXELS:
            raise ValueError(f"{name} is {size!r}, expected 1 to {_MOST_PIXELS} pixels")
    return rest, View(**chosen)


def pixels_source(env_id: str, view: View, make_pool: Callable[[AutoresetMode], Pool]) -> WrappedSource:
    """Return a task as pictures, stepped by what `make_pool` makes.

    Raises:
        ValueError: As `make_pool`, or the model has no such camera.
        ImportError: Python's `mujoco`, or what Gymnasium draws with, is not installed.
    """

    def build(mode: AutoresetMode) -> VectorEnv[Any, Any, Any]:
        return PixelVector(make_pool(AutoresetMode.DISABLED if mode == AutoresetMode.SAME_STEP else mode), view, mode)

    pool = make_pool(AutoresetMode.DISABLED)
    spec = pool.environment
    pool.close()
    return WrappedSource(env_id, build, spec["max_episode_steps"], spec["reward_threshold"])


class PixelVector(VectorEnv[Any, Any, Any]):
    """A pool whose observations are frames, uint8 `[3, height, width]`. `pool` is the one that steps."""

    reset_options = frozenset({"reset_mask"})
    """The options that `reset` takes; a pool refuses others before it changes anything."""

    def __init__(self, pool: Pool, view: View, mode: AutoresetMode) -> None:
        self.pool, self._camera = pool, _Camera(pool, view)
        self._same_step = mode == AutoresetMode.SAME_STEP
        self.num_envs = pool.num_envs
        self.render_mode = "rgb_array"
        frames_per_second = FRAMES_PER_SECOND[pool.environment["id"]]
        self.metadata = {"autoreset_mode": mode, "render_modes": ["rgb_array"], "render_fps": frames_per_second}
        self.single_observation_space = Box(0, 255, (3, view.height, view.width), np.uint8)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.single_action_space, self.action_space = pool.single_action_space, pool.action_space
        self._frames = np.zeros((self.num_envs, 3, view.height, view.width), np.uint8)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], Infos]:
        """Start episodes as `Pool.reset`."""
        mask = (options or {}).get("reset_mask")
        _, infos = self.pool.reset(seed=seed, options=None if options is None else dict(options))
        return self._seen(mask), infos

    def step(
        self, actions: Any
    ) -> tuple[NDArray[np.uint8], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Infos]:
        """Step as `Pool.step`; in same-step mode `final_obs` has the last frames of the episodes that ended."""
        _, reward, terminated, truncated, infos = self.pool.step(actions)
        frames, over = self._seen(), terminated | truncated
        if self._same_step and over.any():
            last = np.full(self.num_envs, None, dtype=object)
            for row in np.flatnonzero(over).tolist():
                last[row] = frames[row].copy()
            frames, fresh = self.reset(options={"reset_mask": over})
            final = {name: np.where(_like(over, value), value, 0) for name, value in infos.items()}
            infos = _merged(infos, fresh, over)
            infos |= {"final_obs": last, "_final_obs": over, "final_info": final, "_final_info": over.copy()}
        return frames, reward, terminated, truncated, infos

    def render(self) -> tuple[NDArray[np.uint8], ...]:
        """Return the frame of each environment, `[height, width, 3]`."""
        return tuple(np.moveaxis(self._frames, 1, -1))

    def close_extras(self, **_: Any) -> None:
        """Close the renderer and the pool."""
        self._camera.close()
        self.pool.close()

    def observation(self) -> NDArray[np.uint8]:
        """Return the current frames."""
        return self._seen()

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return everything that the next step depends on, as `Pool.save`, and which episodes have ended."""
        saved = self.pool.save()
        return {**saved, "own.over": saved["episode_ended"]}

    def take(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `arrays` returned; raises ValueError as `Pool.restore`."""
        self.pool.restore({name: array for name, array in arrays.items() if name != "own.over"})

    def _seen(self, mask: NDArray[np.bool_] | None = None) -> NDArray[np.uint8]:
        """Return frames, drawn anew in the mask; an array of the caller's own."""
        frames = self._frames.copy()
        states = self.pool.save()["state"]
        for row in range(self.num_envs) if mask is None else np.flatnonzero(mask).tolist():
            frames[row] = np.moveaxis(self._camera.frame(states[row]), -1, 0)
        self._frames = frames
        return frames


class _Camera:
    """Draws frames of states; makes its context of OpenGL with the first."""

    def __init__(self, pool: Pool, view: View) -> None:
        size = {"width": view.width, "height": view.height}
        try:
            scene = TaskScene(pool.environment["id"], "rgb_array", pool.resources, **size)
        except DependencyNotInstalled as error:
            raise ImportError(f"observation = 'pixels' draws with Gymnasium's renderer: {error}") from error
        chosen = view.camera or (_TRACKING if _TRACKING in scene.cameras else None)
        if chosen is not None and chosen not in scene.cameras:
            raise ValueError(
                f"camera is {chosen!r}, expected one of the model's: "
                f"{', '.join(filter(None, scene.cameras)) or 'it has none'}; leave it out"
            )
        scene.choose_camera(chosen)
        self._scene, self._is_placed = scene, False

    def frame(self, state: NDArray[np.float64]) -> NDArray[np.uint8]:
        if not self._is_placed:  # the free camera looks at where the robot is when it is made
            self._scene.load_start()
            self._scene.draw()
            self._is_placed = True
        self._scene.load(state)
        frame = self._scene.draw()
        assert frame is not None
        return frame

    def close(self) -> None:
        self._scene.close()


def _like(mask: NDArray[np.bool_], value: NDArray[Any]) -> NDArray[np.bool_]:
    """Return the mask with as many axes as a value has."""
    return mask.reshape(-1, *[1] * (value.ndim - 1))


def _merged(stepped: Infos, fresh: Infos, over: NDArray[np.bool_]) -> Infos:
    """Return infos of steps, and of the resets where episodes ended."""
    if over.all():
        return fresh
    merged: Infos = {}
    for name, value in stepped.items():
        reset = fresh.get(name, np.zeros_like(value))
        merged[name] = np.where(_like(over, value), reset, value)
    return merged

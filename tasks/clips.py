"""An evaluation's episode as pictures: the newest snapshot plays it again, greedily, on the same seed."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode

from storage.errors import ConfigError
from storage.refs import SnapshotRef
from tasks.environments import make_pool
from tasks.evaluations import looking_on
from tasks.snapshots import load_snapshot
from tasks.streams import Purpose, environment_seeds

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from storage.run import RunFolder
    from tasks.context import RunContext

_MOST_STEPS = 2000
_MOST_FRAMES = 240
_MOST_WIDTH_PIXELS = 400
_LEAST_SIDE_PIXELS = 32
_STEPS_PER_SECOND = 30.0


@dataclass(frozen=True, slots=True)
class Clip:
    """Pictures of one episode."""

    frames: tuple[bytes, ...]
    """WebP files."""
    frame_seconds: float
    stage: int
    version: int
    steps: int
    episode_return: float
    every: int
    """A picture is of every so many steps."""
    ended: bool
    """Whether the episode came to its end within 2,000 steps."""


def play(run: RunFolder, commit: dict[str, Any]) -> Clip:
    """The first episode of a commit's evaluation, played by its last snapshot.

    Raises:
        ConfigError: the environment can't be drawn here, or a package is missing; says which.
        ObjectNotFoundError: the snapshot was removed.
    """
    try:
        from PIL import Image  # noqa: F401, PLC0415  (an extra)
    except ImportError as error:
        raise ConfigError("No clip: a package is missing, `pip install 'penstock[render]'` brings it.") from error
    torch.set_num_threads(1)
    context = looking_on(run, commit["stage"])
    ref = SnapshotRef.from_json(commit["snapshots"][-1])
    params = load_snapshot(context.cache.get_buffer(run.store, ref), ref)
    pool, picture = _drawn_pool(context)
    try:
        return _play(context, params, pool, picture, commit)
    finally:
        pool.close()


def _drawn_pool(context: RunContext) -> tuple[Any, Callable[[], NDArray[np.uint8]]]:
    """A pool of one environment, and what draws it: its own renderer, or its observation where that is a picture."""
    try:
        pool = make_pool(context.config, 1, AutoresetMode.SAME_STEP, render_mode="rgb_array")
    except ConfigError:
        pool = make_pool(context.config, 1, AutoresetMode.SAME_STEP)
        if not _is_picture(pool.single_observation_space):
            pool.close()
            raise ConfigError(f"No clip: nothing here draws {context.config.environment.id}.") from None
        return pool, lambda: _as_picture(pool.observation[0])
    drawn: Any = pool
    return pool, lambda: np.asarray(drawn.render()[0], dtype=np.uint8)


def _play(
    context: RunContext, params: Any, pool: Any, picture: Callable[[], NDArray[np.uint8]], commit: dict[str, Any]
) -> Clip:
    algorithm = context.algorithm
    seeds = environment_seeds(context.config.seed, Purpose.EVALUATION, commit["stage"], env_ids=range(1))
    pool.reset_ids(seeds)
    noise, carry = torch.zeros((1, *algorithm.noise.shape)), algorithm.initial_carry(1)
    pictures: list[NDArray[np.uint8]] = []
    every, steps, episode_return, ended = 1, 0, 0.0, False
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other people's renderers have much to say
        while not ended and steps < _MOST_STEPS:
            if steps % every == 0:
                pictures.append(_drawn(picture))
            if len(pictures) > _MOST_FRAMES:
                pictures, every = pictures[::2], 2 * every
            rows, carry = algorithm.act(params, carry, torch.from_numpy(pool.observation), noise)
            _, reward, terminated, truncated, _ = pool.step(rows["action"].numpy())
            steps += 1
            episode_return += float(reward[0].mean())
            ended = bool(terminated[0] or truncated[0])
    per_second = float(getattr(pool, "metadata", {}).get("render_fps") or _STEPS_PER_SECOND)
    return Clip(
        frames=tuple(_webp(one) for one in pictures),
        frame_seconds=max(every / per_second, 0.02),
        stage=commit["stage"],
        version=commit["version"],
        steps=steps,
        episode_return=episode_return,
        every=every,
        ended=ended,
    )


def _drawn(picture: Callable[[], NDArray[np.uint8]]) -> NDArray[np.uint8]:
    try:
        return picture().copy()
    except Exception as error:
        # Whatever other people's renderers raise where there is no screen, no driver or no package.
        raise ConfigError(f"No clip: drawing failed with {type(error).__name__}: {error}") from error


def _is_picture(space: Any) -> bool:
    return space.dtype == np.uint8 and len(space.shape) >= 2 and min(space.shape[-2:]) >= _LEAST_SIDE_PIXELS


def _as_picture(observation: NDArray[Any]) -> NDArray[np.uint8]:
    """The newest of stacked frames."""
    newest: NDArray[np.uint8] = observation.reshape(-1, *observation.shape[-2:])[-1]
    return newest


def _webp(picture: NDArray[np.uint8]) -> bytes:
    from PIL import Image  # noqa: PLC0415  (an extra)

    image = Image.fromarray(picture).convert("RGB")
    image.thumbnail((_MOST_WIDTH_PIXELS, _MOST_WIDTH_PIXELS))
    data = io.BytesIO()
    image.save(data, "WEBP", quality=75, method=2)
    return data.getvalue()

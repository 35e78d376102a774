"""Records an evaluation's episode as pictures: the newest snapshot plays it again, greedily, on the same seed."""

from __future__ import annotations

import io
import warnings
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from penstock.storage.errors import ConfigError
from penstock.tasks.analysis.drawing import drawn, drawn_pool
from penstock.tasks.analysis.evaluation import last_snapshot, observer_context
from penstock.tasks.data.snapshots.exchange import load_snapshot
from penstock.tasks.seeds import Purpose, environment_seeds

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.runs.run import RunFolder
    from penstock.tasks.runtime.run_context import RunContext

_MOST_STEPS = 2000
_MOST_FRAMES = 240
_MOST_WIDTH_PIXELS = 400
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
    """Steps from one picture to the next."""
    ended: bool
    """True if the episode ended within 2,000 steps."""


def play(run: RunFolder, commit: Commit) -> Clip:
    """Play the first episode of a commit's evaluation with its last snapshot.

    Raises:
        ConfigError: the environment can't be drawn here, or a package is missing; the message names it.
        ObjectNotFoundError: the snapshot was removed.
    """
    try:
        from PIL import Image  # noqa: F401, PLC0415  (an extra)
    except ImportError as error:
        raise ConfigError("No clip: a package is missing, `pip install 'penstock-rl[render]'` installs it.") from error
    torch.set_num_threads(1)
    context = observer_context(run, commit.stage)
    ref = last_snapshot(run, commit)
    params = load_snapshot(context.cache.get_buffer(run.store, ref), ref)
    try:
        pool, picture = drawn_pool(context.config)
        with closing(pool):
            return _play(context, params, pool, picture, commit)
    except ConfigError as error:
        raise ConfigError(f"No clip: {error}.") from error


def _play(
    context: RunContext, params: Any, pool: Any, picture: Callable[[], NDArray[np.uint8]], commit: Commit
) -> Clip:
    algorithm = context.algorithm
    seeds = environment_seeds(context.config.seed, Purpose.EVALUATION, commit.stage, env_ids=range(1))
    pool.reset_ids(seeds)
    noise, carry = torch.zeros((1, *algorithm.noise.shape)), algorithm.initial_carry(1)
    pictures: list[NDArray[np.uint8]] = []
    every, steps, episode_return, ended = 1, 0, 0.0, False
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # third-party renderers emit many warnings
        while not ended and steps < _MOST_STEPS:
            if steps % every == 0:
                pictures.append(drawn(picture))
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
        stage=commit.stage,
        version=commit.version,
        steps=steps,
        episode_return=episode_return,
        every=every,
        ended=ended,
    )


def _webp(picture: NDArray[np.uint8]) -> bytes:
    from PIL import Image  # noqa: PLC0415  (an extra)

    image = Image.fromarray(picture).convert("RGB")
    image.thumbnail((_MOST_WIDTH_PIXELS, _MOST_WIDTH_PIXELS))
    data = io.BytesIO()
    image.save(data, "WEBP", quality=75, method=2)
    return data.getvalue()

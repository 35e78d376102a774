"""Stacks of frames, stored once: of a row's stack, all frames but the last repeat those of the row before.

Rows where they do not (the first of a round, of an episode, or any other) keep their earlier frames beside. So what is
rebuilt is what was there, whether or not the environment stacks as one would expect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def split_stacks(stacks: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[Any]]:
    """Frames that rebuild `[T, B, k, ...]`.

    Returns:
        The last frame of every row, `[T, B, ...]`; ascending rows `t * B + b` whose earlier frames are not those of the
        row before, `[N]`; their earlier frames, `[N, k - 1, ...]`.
    """
    steps, envs = stacks.shape[:2]
    frames = np.ascontiguousarray(stacks[:, :, -1])
    fresh = np.ones((steps, envs), bool)
    for step in range(1, steps):
        fresh[step] = [not follows(stacks[step - 1, env], stacks[step, env]) for env in range(envs)]
    rows = np.flatnonzero(fresh)
    return frames, rows, stacks.reshape(steps * envs, *stacks.shape[2:])[rows, :-1]


def follows(before: NDArray[Any], after: NDArray[Any]) -> bool:
    """Whether a stack `[k, ...]` is the one before, moved on by a frame; by bytes, so that NaN equals itself."""
    return np.array_equal(_bytes(after[:-1]), _bytes(before[1:]))


def join_stacks(frames: NDArray[Any], rows: NDArray[np.int64], earlier: NDArray[Any]) -> NDArray[Any]:
    """`[T, B, k, ...]` back from what `split_stacks` gave; row 0 to B - 1 must be among `rows`."""
    steps, envs = frames.shape[:2]
    depth = earlier.shape[1]
    stacks = np.empty((steps, envs, depth + 1, *frames.shape[2:]), frames.dtype)
    flat = stacks.reshape(steps * envs, *stacks.shape[2:])
    stacks[:, :, depth] = frames
    for frame in reversed(range(depth)):
        stacks[1:, :, frame] = stacks[:-1, :, frame + 1]
        flat[rows, frame] = earlier[:, frame]
    return stacks


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)

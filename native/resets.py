"""What callers give to a pool's reset, checked as Gymnasium's SyncVectorEnv checks it."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_MAX_SEED = 2**64 - 1


def one_seed_each(seed: int | Sequence[int | None] | None, num_envs: int) -> Sequence[int | None]:
    """None, `seed + i` for environment i, or the sequence itself.

    Raises:
        TypeError: It is none of these.
        ValueError: The sequence has another length.
    """
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, (int, np.integer)):
        return [int(seed) + index for index in range(num_envs)]
    if not hasattr(seed, "__len__"):
        raise TypeError(f"seed is {seed!r}, expected an int, one of them or None for each environment, or None")
    if len(seed) != num_envs:
        raise ValueError(f"got {len(seed)} seeds for {num_envs} environments; give one each, or one int for all")
    return seed


def checked_seed(seed: Any, index: int) -> int:
    """The seed of environment `index`.

    Raises:
        TypeError: It is no int.
        ValueError: It is not in [0, 2**64).
    """
    try:
        value = operator.index(seed)
    except TypeError as error:
        raise TypeError(f"the seed of environment {index} is {seed!r}, expected an int from 0 to 2**64 - 1") from error
    if not 0 <= value <= _MAX_SEED:
        raise ValueError(f"the seed of environment {index} is {value}, expected 0 to 2**64 - 1")
    return value


def reset_mask(options: dict[str, Any] | None, num_envs: int) -> NDArray[np.bool_]:
    """Who is reset: everybody, or whom `options["reset_mask"]` says, which is taken out of the options.

    Taken out of the caller's own dictionary, as SyncVectorEnv does: who uses it twice resets everybody then.

    Raises:
        TypeError: The mask is not a NumPy array of bool.
        ValueError: The mask has another shape or chooses nobody, or there is another option.
    """
    if not options:
        return np.ones(num_envs, dtype=np.bool_)
    unknown = sorted(set(options) - {"reset_mask"})
    if unknown:
        raise ValueError(f"unknown reset options {unknown}; there is 'reset_mask', and make() takes the configuration")
    mask = options.pop("reset_mask")
    expected = f"reset_mask must be bool [{num_envs}], a NumPy array with at least one True"
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"{expected}, got {type(mask).__name__}")
    if mask.shape != (num_envs,):
        raise ValueError(f"{expected}, got {mask.dtype} {list(mask.shape)}")
    if mask.dtype != np.bool_:
        raise TypeError(f"{expected}, got {mask.dtype}")
    if not mask.any():
        raise ValueError(f"{expected}, got {mask}")
    return np.array(mask)  # ours: with DISABLED it often is an array that the caller goes on to use

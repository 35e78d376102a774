"""Making pools by name. Everything that a caller can get wrong is said here, with what would be right."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode

from native import _core
from native.pool import Pool

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DTYPES: dict[type, type[np.generic]] = {bool: np.bool_, int: np.int64, float: np.float64}
_ACCEPTED_KINDS: dict[type, str] = {bool: "b", int: "iu", float: "fiu"}


def make(
    id: str,  # noqa: A002
    num_envs: int,
    num_threads: int = 1,
    max_episode_steps: int | None = None,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    *,
    record_episode_statistics: bool = False,
    **config: Any,
) -> Pool:
    """Make a pool of `num_envs` environments.

    Args:
        id: One of `environment_ids()`.
        num_envs: How many; row b of every array is environment b.
        num_threads: Threads that step, the caller's included. Results are the same for any number.
        max_episode_steps: Truncates episodes; None takes the environment's own limit.
        autoreset_mode: What follows the end of an episode in `step`, as `gymnasium.vector.AutoresetMode`.
        record_episode_statistics: Whether infos carry `episode`, with `r` and `l`, where an episode ended.
        config: Fields of the environment's configuration, as one value or one for each environment.

    Raises:
        ValueError: An unknown id or field (the message lists those that exist), or a value that cannot be.
    """
    if id not in _core.environment_ids():
        raise ValueError(f"no environment is called {id!r}; there are: {', '.join(_core.environment_ids())}")
    num_envs = _at_least_one("num_envs", num_envs)
    num_threads = _at_least_one("num_threads", num_threads)
    if max_episode_steps is not None:
        max_episode_steps = _at_least_one("max_episode_steps", max_episode_steps)
    defaults = _core.describe(id)["config"]
    unknown = sorted(set(config) - set(defaults))
    if unknown:
        fields = ", ".join(f"{name}={default!r}" for name, default in defaults.items())
        raise ValueError(f"{id} has no configuration field {', '.join(map(repr, unknown))}; its fields: {fields}")
    values = {name: _one_each(name, config.get(name, default), default, num_envs) for name, default in defaults.items()}
    return Pool(
        id,
        num_envs,
        num_threads,
        max_episode_steps,
        _autoreset_mode(autoreset_mode),
        values,
        record_episode_statistics=record_episode_statistics,
    )


def _autoreset_mode(value: AutoresetMode | str) -> AutoresetMode:
    try:
        return AutoresetMode(value)
    except ValueError:
        expected = ", ".join(repr(mode.value) for mode in AutoresetMode)
        raise ValueError(f"autoreset_mode is {value!r}, expected an AutoresetMode or one of {expected}") from None


def _at_least_one(name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}") from None
    if isinstance(value, bool) or number < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    return number


def _one_each(name: str, value: Any, default: float, num_envs: int) -> NDArray[Any]:
    kind = type(default)
    array = np.asarray(value)
    if array.dtype.kind not in _ACCEPTED_KINDS[kind]:
        raise ValueError(f"{name} must be {kind.__name__}, or {num_envs} of them, got {value!r}")
    if array.shape not in ((), (num_envs,)):
        raise ValueError(
            f"{name} must be one value or one for each of {num_envs} environments, got {list(array.shape)}"
        )
    wrong = next((item for item in array.reshape(-1).tolist() if not math.isfinite(item)), None)
    if wrong is not None:
        raise ValueError(f"{name} must be finite, got {wrong}")
    return np.broadcast_to(array, (num_envs,)).astype(_DTYPES[kind])

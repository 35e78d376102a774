"""The values of an environment's configuration: one for each field and environment, of the field's type."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

_DTYPES: dict[type, type[np.generic]] = {bool: np.bool_, int: np.int64, float: np.float64}
_ACCEPTED_KINDS: dict[type, str] = {bool: "b", int: "iu", float: "fiu"}


def configuration(
    environment_id: str, given: Mapping[str, Any], defaults: Mapping[str, float | int | bool], num_envs: int
) -> dict[str, NDArray[Any]]:
    """Every field of the configuration, one value an environment.

    Raises:
        ValueError: An unknown field (the message lists those that exist), or a value that cannot be.
    """
    unknown = sorted(set(given) - set(defaults))
    if unknown:
        fields = ", ".join(f"{name}={default!r}" for name, default in defaults.items())
        raise ValueError(
            f"{environment_id} has no configuration field {', '.join(map(repr, unknown))}; its fields: {fields}"
        )
    return {name: one_each(name, given.get(name, default), default, num_envs) for name, default in defaults.items()}


def one_each(name: str, value: Any, default: float, num_envs: int) -> NDArray[Any]:
    """One value of a field for each environment, of the type of its default.

    Raises:
        ValueError: Another type, another number of values, or one that is not finite.
    """
    kind = type(default)
    array = np.asarray(value)
    if array.dtype.kind not in _ACCEPTED_KINDS[kind]:
        raise ValueError(f"{name} must be {kind.__name__}, or {num_envs} of them, got {value!r}")
    if array.shape not in ((), (num_envs,)):
        raise ValueError(
            f"{name} must be one value or one for each of {num_envs} environments, got {list(array.shape)}"
        )
    # A limit whose default is infinite may be infinite: there is none then.
    takes = math.isfinite if math.isfinite(default) else lambda item: not math.isnan(item)
    wrong = next((item for item in array.reshape(-1).tolist() if not takes(item)), None)
    if wrong is not None:
        raise ValueError(f"{name} must be finite, got {wrong}")
    return np.broadcast_to(array, (num_envs,)).astype(_DTYPES[kind])


def core_values(config: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
    """The same as the compiled pool takes it."""
    return {name: np.ascontiguousarray(values, dtype=np.float64) for name, values in config.items()}

"""The attributes that each environment of a pool has, for Gymnasium's `get_attr`, `set_attr` and `call`.

They are: the fields of the configuration, `state` (its numbers as one row, in their order) and its fields by name
(flags too), what the last step reported, `elapsed_steps`, `episode_id`, `episode_return`, `np_random`,
`np_random_seed`, `spec`, `render_mode`, `metadata` and the two spaces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from native.configuration import one_each
from native.generators import words_of
from native.specs import single_spec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from native.attributed import Attributed

_SAVED = ("elapsed_steps", "episode_id", "episode_return")
_OF_THE_POOL = {
    "np_random": "np_random",
    "np_random_seed": "np_random_seed",
    "observation_space": "single_observation_space",
    "action_space": "single_action_space",
    "render_mode": "render_mode",
    "metadata": "metadata",
}


def get_attribute(pool: Attributed, name: str) -> tuple[Any, ...]:
    """One value for each environment.

    Raises:
        AttributeError: There is no such attribute; the message lists those that there are.
        RuntimeError: It belongs to an episode, and nothing was reset yet.
    """
    if name in pool.config:
        return tuple(pool.config[name].tolist())
    if name in _OF_THE_POOL:
        value = getattr(pool, _OF_THE_POOL[name])
        return value if name.startswith("np_random") else (value,) * pool.num_envs
    if name == "spec":
        return tuple(single_spec(pool.environment, _configuration_of(pool, row)) for row in range(pool.num_envs))
    column = _column(name, pool.saved_names)
    if column is None and name != "state":
        raise AttributeError(
            f"environments of {pool} have no attribute {name!r}; there are: {', '.join(attribute_names(pool))}"
        )
    saved = pool.save()
    if column is None:
        return tuple(_whole_state(saved))
    return tuple(saved[column].tolist()) if saved[column].ndim == 1 else tuple(saved[column])


def set_attribute(pool: Attributed, name: str, values: Any) -> None:
    """Change an attribute for the running environments: a list, tuple or array of one value each, or one for all.

    Raises:
        AttributeError: There is no such attribute that can be changed.
        ValueError: The values' number, type, shape or what they say; nothing has then changed.
        RuntimeError: It belongs to an episode, and nothing was reset yet.
    """
    if isinstance(values, (list, tuple)) and len(values) != pool.num_envs:
        raise ValueError(
            f"{name} needs one value for all environments or a list of one for each: got {len(values)} for "
            f"{pool.num_envs} environments"
        )
    if name in pool.config:
        default = pool.config[name].dtype.type(0).item()
        pool.configure(**{name: one_each(name, values, default, pool.num_envs)})
        return
    column = _column(name, pool.saved_names)
    if name not in {"np_random", "state"} and (column is None or column.startswith("report.")):
        fields = [of_state for of_state in pool.saved_names if of_state.startswith("state.")]
        settable = [*pool.config, *(field.partition(".")[2] for field in fields), *_SAVED, "np_random", "state"]
        raise AttributeError(f"{name!r} of {pool} cannot be set; what can: {', '.join(settable)}")
    saved = pool.save()
    if name == "np_random":
        width = saved["generator"].shape[1]
        each = values if isinstance(values, (list, tuple)) else [values] * pool.num_envs
        saved["generator"] = np.array([words_of(value, width) for value in each], dtype=np.uint64)
    elif column is None:
        _put_whole_state(saved, _rows(name, values, _whole_state(saved)))
    else:
        saved[column] = _rows(name, values, saved[column])
    pool.restore(saved)


def attribute_names(pool: Attributed) -> tuple[str, ...]:
    """What `get_attr` knows."""
    fields = [name.partition(".")[2] for name in pool.saved_names if name.startswith(("state.", "report."))]
    return (*pool.config, *fields, *_SAVED, "state", "spec", *_OF_THE_POOL)


def _column(name: str, saved_names: Sequence[str]) -> str | None:
    if name in _SAVED:
        return name
    return next((column for column in (f"state.{name}", f"report.{name}") if column in saved_names), None)


def _state_columns(saved: dict[str, NDArray[Any]]) -> list[str]:
    return [name for name in saved if (name == "state" or name.startswith("state.")) and saved[name].dtype != np.bool_]


def _whole_state(saved: dict[str, NDArray[Any]]) -> NDArray[np.float64]:
    """The state of each environment as one row, [num_envs, values], in the order in which it is declared."""
    columns = [saved[column] for column in _state_columns(saved)]
    return np.concatenate([column.reshape(len(column), -1) for column in columns], axis=1, dtype=np.float64)


def _put_whole_state(saved: dict[str, NDArray[Any]], rows: NDArray[Any]) -> None:
    first = 0
    for column in _state_columns(saved):
        shape, dtype = saved[column].shape, saved[column].dtype
        width = int(np.prod(shape[1:]))
        saved[column] = np.ascontiguousarray(rows[:, first : first + width].reshape(shape), dtype=dtype)
        first += width


def _rows(name: str, values: Any, like: NDArray[Any]) -> NDArray[Any]:
    array = np.asarray(values)
    if array.dtype.kind not in "biuf" or array.shape not in (like.shape, like.shape[1:]):
        raise ValueError(
            f"{name} needs numbers of shape {like.shape}, or {like.shape[1:]} for all environments; got {array.dtype} "
            f"of {array.shape}"
        )
    return np.ascontiguousarray(np.broadcast_to(array, like.shape), dtype=like.dtype)


def _configuration_of(pool: Attributed, row: int) -> dict[str, Any]:
    return {name: values[row].item() for name, values in pool.config.items()}

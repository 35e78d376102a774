"""Attributes of single environments, which trainers ask for by name, in a pool that steps them as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

_SHARED = {
    "observation_space": "single_observation_space",
    "action_space": "single_action_space",
    "render_mode": "render_mode",
    "spec": "spec",
    "metadata": "metadata",
}
"""Attributes that a vector environment holds once for all of its environments."""


def get_attribute(pool: Any, name: str, rows: Iterable[int]) -> list[Any]:
    """Return one value for each of these environments, as `Pool.get_attr` finds it.

    Raises:
        AttributeError: There is no such value; also before the first reset, if it belongs to an episode.
    """
    pool = _holder(pool)
    if not hasattr(pool, "get_attr"):
        if name not in _SHARED:
            raise AttributeError(f"{pool} has no attribute {name!r} for each environment; it has: {', '.join(_SHARED)}")
        return [getattr(pool, _SHARED[name]) for _ in rows]
    try:
        values = pool.get_attr(name)
    except RuntimeError as error:  # trainers probe for attributes, and catch no other error
        raise AttributeError(f"{pool} has no attribute {name!r} to give: {error}") from error
    return [values[row] for row in rows]


def set_attribute(pool: Any, name: str, value: Any, rows: Iterable[int]) -> None:
    """Give an attribute this value in these environments, as `Pool.set_attr` does.

    Raises:
        AttributeError: There is no such attribute that can be set.
        IndexError: There is no such environment.
    """
    pool = _holder(pool)
    if not hasattr(pool, "set_attr"):
        raise AttributeError(f"{pool} cannot set {name!r}: none of its environments' attributes can be set")
    chosen = {range(pool.num_envs)[row] for row in rows}
    before = [value] * pool.num_envs if len(chosen) == pool.num_envs else pool.get_attr(name)
    pool.set_attr(name, [value if row in chosen else old for row, old in enumerate(before)])


def call_method(pool: Any, name: str, rows: Iterable[int], *args: Any, **kwargs: Any) -> list[Any]:
    """Call a method of all environments.

    Raises:
        AttributeError: The environments have no methods in Python, or only some of them are chosen.
    """
    chosen = sorted(rows)
    pool = _holder(pool)
    if not hasattr(pool, "call"):
        raise AttributeError(f"{pool} has no method {name!r} for each environment: they are stepped as one")
    if chosen != list(range(pool.num_envs)):
        raise AttributeError(f"{pool} calls {name!r} of all environments at once, got {chosen}: give no indices")
    return list(pool.call(name, *args, **kwargs))


def _holder(pool: Any) -> Any:
    """Return the owner of the attributes: the pool, or the vector environment that it wraps."""
    return pool if hasattr(pool, "get_attr") else getattr(pool, "vector_env", pool)

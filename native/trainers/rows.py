"""Steps of some environments alone, which trainers ask for and not every pool can make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import native

if TYPE_CHECKING:
    from numpy.typing import NDArray


def step_rows(pool: native.EnvironmentPool, actions: Any, rows: NDArray[Any]) -> tuple[Any, ...]:
    """`Pool.step_rows`, or what to do instead.

    Raises:
        TypeError: Another library steps these environments, all of them together.
    """
    if not isinstance(pool, native.Pool):
        raise TypeError(
            f"{pool} steps all of its environments or none, and the trainer asked for a step of {len(rows)} of "
            f"{pool.num_envs}: collect a number of steps instead of a number of episodes"
        )
    return pool.step_rows(actions, rows)

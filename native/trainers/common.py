"""The trainers' adapters share this: the error for a missing trainer, and steps of single rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock import native

if TYPE_CHECKING:
    from numpy.typing import NDArray


def missing(
    trainer: str, error: ModuleNotFoundError, install: str = "pip install 'penstock-rl[trainers]'"
) -> ModuleNotFoundError:
    """Return the error that replaces `error`, raised by an import for `trainer`, which a command installs."""
    return ModuleNotFoundError(
        f"this adapter needs {trainer}, and importing it found no module {error.name!r}; install it with: {install}",
        name=error.name,
    )


def step_rows(pool: native.EnvironmentPool, actions: Any, rows: NDArray[Any]) -> tuple[Any, ...]:
    """Step some environments with `Pool.step_rows`.

    Raises:
        TypeError: Another library steps these environments, only all together.
    """
    if not isinstance(pool, native.Pool):
        raise TypeError(
            f"{pool} steps all of its environments or none, and the trainer asked for a step of {len(rows)} of "
            f"{pool.num_envs}: collect a number of steps instead of a number of episodes"
        )
    return pool.step_rows(actions, rows)

"""Environments stepped by torch, on whatever device it computes: which there are.

Imports no torch: the process that drives a run asks here whether an environment has a torch version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection

OF_NATIVE_POOLS = ("num_threads", "render_mode", "thread_affinity", "batch_size", "deterministic")
"""Settings that say how native pools work."""

_MODULES = {"CartPole-v1": f"{__name__}.cartpole", "Pendulum-v1": f"{__name__}.pendulum"}


def torch_environment_ids() -> tuple[str, ...]:
    """Every id that `tasks.torch_pool.make_torch_pool` takes."""
    return tuple(sorted(_MODULES))


def torch_module_of(environment_id: str) -> str:
    """The module whose `ENVIRONMENT` is the torch version of an environment.

    Raises:
        ConfigError: It has none.
    """
    try:
        return _MODULES[environment_id]
    except KeyError:
        raise ConfigError(
            f"environment: {environment_id!r} has no torch version, so it cannot be stepped on an accelerator; there "
            f"are: {', '.join(torch_environment_ids())}. Choose one of them, or a policy whose environments are native"
        ) from None


def check_torch_environment(environment_id: str, settings: Collection[str]) -> None:
    """Refuse what no torch pool can be made of.

    Args:
        environment_id: Of the environment.
        settings: Names of what is set beside its limit.

    Raises:
        ConfigError: The environment has no torch version, or a setting is of native pools alone.
    """
    torch_module_of(environment_id)
    if others := [name for name in OF_NATIVE_POOLS if name in settings]:
        raise ConfigError(
            f"environment: {', '.join(others)} is a setting of native pools, and {environment_id} is stepped by torch "
            f"here: leave it out"
        )

"""Lists the environments that have a torch version, for any device of torch's.

Imports no torch: the process that drives a run checks here whether an environment has a torch version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.storage.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection


OF_NATIVE_POOLS = ("num_threads", "render_mode", "thread_affinity", "batch_size", "deterministic")
"""These settings concern native pools only."""
_MODULES = {"CartPole-v1": f"{__package__}.cartpole", "Pendulum-v1": f"{__package__}.pendulum"}


def torch_environment_ids() -> tuple[str, ...]:
    """Return every id that `penstock.tasks.environments.torch.pool.make_torch_pool` accepts."""
    return tuple(sorted(_MODULES))


def torch_module_of(environment_id: str) -> str:
    """Return the module whose `ENVIRONMENT` is the torch version of an environment.

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
    """Refuse environments and settings that no torch pool supports.

    Args:
        environment_id: The environment's id.
        settings: Names of all settings except its limit.

    Raises:
        ConfigError: The environment has no torch version, or a setting is for native pools only.
    """
    torch_module_of(environment_id)
    if others := [name for name in OF_NATIVE_POOLS if name in settings]:
        raise ConfigError(
            f"environment: {', '.join(others)} is a setting of native pools, and {environment_id} is stepped by torch "
            f"here: leave it out"
        )

"""Environments stepped by torch, on whatever device it computes: which there are.

Imports no torch: the process that drives a run asks here whether an environment has a torch version.
"""

from __future__ import annotations

from storage.errors import ConfigError

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

"""Tells which environments can be stepped in tensors, on a CPU or a GPU.

Imports no torch: the process that drives a run checks the environment here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.native.batch.host import batch_ids, host_kernels
from penstock.storage.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection


OF_NATIVE_POOLS = ("num_threads", "render_mode", "thread_affinity", "batch_size", "deterministic")
"""These settings concern native pools only."""


def torch_environment_ids() -> tuple[str, ...]:
    """Return every id that `penstock.tasks.environments.torch.pool.make_torch_pool` accepts; loaded ones too."""
    return batch_ids()


def check_torch_environment(environment_id: str, settings: Collection[str]) -> None:
    """Refuse environments and settings that no torch pool supports.

    Args:
        environment_id: The environment's id.
        settings: Names of all settings except its limit.

    Raises:
        ConfigError: The environment can't be stepped in tensors, or a setting is for native pools only.
    """
    try:
        kernels = host_kernels(environment_id)
    except ImportError as error:
        raise ConfigError(f"environment: {error}") from error
    if kernels is None:
        raise ConfigError(
            f"environment: {environment_id!r} cannot be stepped in tensors: another library steps it, or it shares "
            f"a model, saves itself or reports numbers; there are: {', '.join(torch_environment_ids())}. Choose one of "
            f"them, or a policy whose environments are native"
        )
    if others := [name for name in OF_NATIVE_POOLS if name in settings]:
        raise ConfigError(
            f"environment: {', '.join(others)} is a setting of native pools, and {environment_id} is stepped in "
            f"tensors here: leave it out"
        )

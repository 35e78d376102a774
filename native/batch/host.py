"""Finds the kernels that environments were compiled with, for the host's memory."""

from __future__ import annotations

from penstock.native import _core
from penstock.native.batch.kernels import BatchKernels
from penstock.native.registry.registry import is_native


def host_kernels(environment_id: str) -> BatchKernels | None:
    """Return the kernels of an environment, or None if a batch cannot step it.

    It can if this package steps the environment itself (a loaded header's included), and it needs nothing but its
    configuration, its state and its generator: one that shares a model, saves itself or reports numbers is for pools.
    """
    if not is_native(environment_id):
        return None
    table = _core.batch_kernels(environment_id)
    return BatchKernels(table) if table else None


def batch_ids() -> tuple[str, ...]:
    """Return the ids of all environments here that a batch can step."""
    return tuple(sorted(name for name in _core.environment_ids() if _core.batch_kernels(name)))

"""Finds the kernels that step an environment on a device of torch's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from penstock.native.batch.cuda import cuda_kernels
from penstock.native.batch.host import host_kernels
from penstock.native.compile.compiler import CompileError, CompilerNotFoundError
from penstock.storage.errors import ConfigError

if TYPE_CHECKING:
    from penstock.native.batch.kernels import BatchKernels


def kernels_for(environment_id: str, device: torch.device) -> BatchKernels:
    """Return the kernels of an environment for the memory of a device.

    Those for a CPU are part of the pool. Those for a CUDA device are compiled from the same headers, the first time on
    each machine, which takes nvcc and up to a minute. THEY NEVER RAN: there was no GPU.

    Raises:
        ConfigError: There are none for that device, or they can't be compiled here.
    """
    if device.type == "cpu":
        kernels = host_kernels(environment_id)
        if kernels is None:
            raise ConfigError(f"environment: {environment_id!r} cannot be stepped in tensors")
        return kernels
    if device.type != "cuda" or torch.version.hip is not None:
        raise ConfigError(
            f"environment: there are no kernels for the device {str(device)!r}; expected cpu, or cuda on a GPU of "
            f"NVIDIA's"
        )
    try:
        return cuda_kernels(environment_id, torch.cuda.get_device_capability(device))
    except (CompilerNotFoundError, CompileError, LookupError) as error:
        raise ConfigError(f"environment: {environment_id} cannot be stepped on {device}: {error}") from error

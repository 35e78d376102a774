"""Prepares the torch device that a member computes on."""

from __future__ import annotations

import os

import torch


def find_device(wanted: str) -> torch.device:
    """Return the device that a setting names; `auto` is a GPU if there is one."""
    return torch.device("cuda" if wanted == "auto" and torch.cuda.is_available() else wanted.replace("auto", "cpu"))


def visible_gpus(wanted: str) -> tuple[str, ...]:
    """Return the identifiers of the GPUs that this process sees, in torch's order; none if `wanted` is the CPU."""
    if find_device(wanted).type != "cuda":
        return ()
    return tuple(str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count()))


def prepare_device(wanted: str, threads: int) -> torch.device:
    """Return the learner's device, configured for deterministic results, and make it the calling thread's own."""
    device = find_device(wanted)
    if device.type == "cuda":
        if device.index is not None:
            torch.cuda.set_device(device)
        # cuBLAS is deterministic only with a fixed workspace, and reads this when it is first used.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(threads)
    if device.type == "cuda" or threads > 1:
        # Unnecessary for one thread on a CPU, where it would cost seconds: the call imports torch's compiler.
        torch.use_deterministic_algorithms(mode=True)
    return device

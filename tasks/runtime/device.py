"""Prepares the torch device that a member computes on."""

from __future__ import annotations

import os

import torch


def find_device(wanted: str) -> torch.device:
    """Return the device that a setting names; `auto` is a GPU if there is one."""
    return torch.device("cuda" if wanted == "auto" and torch.cuda.is_available() else wanted.replace("auto", "cpu"))


def prepare_device(wanted: str, threads: int) -> torch.device:
    """Return the learner's device, configured for deterministic results."""
    device = find_device(wanted)
    if device.type == "cuda":
        # cuBLAS is deterministic only with a fixed workspace, and reads this when it is first used.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(threads)
    if device.type == "cuda" or threads > 1:
        # Unnecessary for one thread on a CPU, where it would cost seconds: the call imports torch's compiler.
        torch.use_deterministic_algorithms(mode=True)
    return device

"""The fingerprint of a run: what its bytes depend on besides its configuration, stored in `run.json`."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path

from penstock.native.kernel_level import level

_PACKAGES = ("torch", "numpy", "pyarrow", "safetensors")
_INSTRUCTION_SETS = ("avx", "avx2", "fma", "avx512f", "avx512vl", "avx512_bf16", "amx_tile", "amx_bf16", "asimd", "sve")


def fingerprint() -> dict[str, str]:
    """Return versions of libraries, the instruction sets that they choose from, and the level of our own kernels."""
    return {
        "penstock": version("penstock-rl"),
        **{package: version(package) for package in _PACKAGES},
        "python": platform.python_version(),
        "machine": platform.machine(),
        "instruction_sets": " ".join(instruction_sets()),
        "kernels": level(),
    }


def differences(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """Return a line for every change, such as `torch 2.12.0 -> 2.13.0`."""
    names = sorted(set(before) | set(now))
    return [
        f"{name} {before.get(name, 'none')} -> {now.get(name, 'none')}"
        for name in names
        if before.get(name) != now.get(name)
    ]


@cache
def instruction_sets() -> tuple[str, ...]:
    """Return the instruction sets of this processor that kernels choose from."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return ()
    lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "").split()
    return tuple(name for name in _INSTRUCTION_SETS if name in flags)

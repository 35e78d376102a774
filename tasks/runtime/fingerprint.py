"""The fingerprint of a run: what its bytes depend on besides its configuration, stored in `run.json`."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.native.kernel_level import level
from penstock.native.registry.families import packages_of
from penstock.tasks.setup.config.environment import module_of_wrapper

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.tasks.setup.config.run import RunConfig

_ENVIRONMENT = "environment"

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


def environment_packages(config: RunConfig) -> dict[str, str]:
    """Return the versions of the packages on whose code and models a run's environments depend.

    There is no entry where they depend on Penstock alone, where a header has them, or where the run steps none.
    """
    settings = config.environment
    if not config.has_actors or settings.header_text is not None:
        return {}
    wrappers = [module_of_wrapper(one if isinstance(one, str) else one.name) for one in settings.wrappers]
    names = {*packages_of(settings.id), *(module.partition(".")[0] for module in wrappers)}
    found = [f"{name} {installed}" for name in sorted(names) if (installed := _installed(name))]
    return {_ENVIRONMENT: ", ".join(found)} if found else {}


def packages_again(made_with: Mapping[str, str]) -> dict[str, str]:
    """Return the present versions of the packages that a run has stored for its environments.

    Names are not looked up again: which packages an id needs may only be known once its module was imported.
    """
    stored = made_with.get(_ENVIRONMENT)
    if stored is None:
        return {}
    names = [entry.partition(" ")[0] for entry in stored.split(", ")]
    return {_ENVIRONMENT: ", ".join(f"{name} {_installed(name) or 'none'}" for name in names)}


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # a module of the user's
        return ""


def differences(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """Return a line for every change, such as `torch 2.12.0 -> 2.13.0`."""
    return [
        f"{name} {before.get(name, 'none')} -> {now.get(name, 'none')}"
        for name in sorted({*before, *now})
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

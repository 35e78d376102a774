"""Loads the environments of installed packages: `make("TheirEnv-v0")` finds them without an import.

Such a package has an entry point of the group `penstock.environments`: a function without arguments that calls
`native.load_library` for what the package ships. It is called when an id is asked for that nothing else has brought.
"""

from __future__ import annotations

import threading
import warnings
from importlib.metadata import entry_points

from penstock.native import _core
from penstock.native.registry import registry

GROUP = "penstock.environments"

_called: set[tuple[str, str]] = set()
_packages: dict[str, str] = {}
"""By id, the name of the package that has brought it."""
# Members of a run share a process: a thread waits while another one loads. A package that makes a pool
# while it loads enters again.
_loading = threading.RLock()


def load_installed() -> tuple[str, ...]:
    """Load the environments of installed packages, each once in a process; return the new ids.

    A package that fails is warned about, and does not affect the others.
    """
    with _loading:
        before = set(_core.environment_ids())
        for point in entry_points(group=GROUP):
            if (point.name, point.value) in _called:
                continue
            _called.add((point.name, point.value))
            known = set(_core.environment_ids())
            try:
                point.load()()
            except Exception as error:  # noqa: BLE001 whatever another's package raises
                package = point.dist.name if point.dist else "an unknown package"
                warnings.warn(
                    f"the environments of {package} ({GROUP}: {point.name} = {point.value}) cannot be loaded: {error}",
                    RuntimeWarning,
                    stacklevel=2,
                )
            if point.dist is not None:
                _packages.update(dict.fromkeys(set(_core.environment_ids()) - known, point.dist.name))
        return tuple(name for name in _core.environment_ids() if name not in before)


def package_behind(environment_id: str) -> str | None:
    """Return the name of the installed package that has brought an id; None if none has."""
    return _packages.get(environment_id)


def load_installed_again() -> None:
    """Load the environments of installed packages once more: another library may have replaced some of them."""
    with _loading:
        _called.clear()
        load_installed()


registry.unknown_id_hooks.append(load_installed)

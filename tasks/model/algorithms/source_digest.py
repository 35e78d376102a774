"""Source digests of a custom algorithm, and the check that all workers imported the same source.

A process imports a module once. So the files as they were at the import count, not as they are now: a long-lived worker
would otherwise run an older version under a newer one's digest.
"""

from __future__ import annotations

import os
import socket
import sys
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from penstock.storage.digest import digest
from penstock.storage.error_places import INSTALLED
from penstock.storage.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_imported: dict[str, dict[str, str]] = {}


def digest_of(file: str | Path) -> str:
    """Return the digest of a file as it is now."""
    return digest(Path(file).read_bytes())


def source_digests(name: str) -> dict[str, str]:
    """Return the source files of the imported module of `module:Class`, and a digest of each as it is now.

    These are the imported files of its package, or of its folder if it is in none. Installed packages do not count.
    """
    module = sys.modules[name.partition(":")[0]]
    package = module.__name__.partition(".")[0]
    folder = Path(str(module.__file__)).parent
    next_to_it = module.__name__ == package and folder.name not in INSTALLED
    files = set()
    for key, loaded in list(sys.modules.items()):
        file = getattr(loaded, "__file__", None)
        if file and (key.partition(".")[0] == package or (next_to_it and Path(file).parent == folder)):
            files.add(Path(file))
    return {str(file): digest_of(file) for file in sorted(files)}


def source_root(name: str) -> str:
    """Return the folder in which Python found the module, or its package."""
    module = sys.modules[name.partition(":")[0]]
    above = module.__name__.count(".") + hasattr(module, "__path__")
    return str(Path(str(module.__file__)).parents[above])


def relative_to(root: str, files: Mapping[str, str]) -> dict[str, str]:
    """Return the same digests by paths relative to the root, which hold on every machine."""
    return {os.path.relpath(file, root): digest for file, digest in files.items()}


def note_import(name: str) -> None:
    """Remember the digests of a module at its first import in this process."""
    module = name.partition(":")[0]
    if module not in _imported:
        _imported[module] = source_digests(name)


def require_source(name: str, expected: Mapping[str, str]) -> None:
    """Refuse to run another version of an imported algorithm than the one that the run's driver has.

    Args:
        name: `module:Class`.
        expected: digests by file, relative to the folder of module or package; other files don't count.

    Raises:
        ConfigError: names the files that differ, and the folder that this process imported them from.
    """
    root = source_root(name)
    own = relative_to(root, _imported[name.partition(":")[0]])
    others = {file: Path(root, file) for file in expected if file not in own}
    own |= {file: digest_of(path) for file, path in others.items() if path.is_file()}
    differing = [file for file, digest in expected.items() if own.get(file) != digest]
    if differing:
        raise ConfigError(
            f"algorithm.name = '{name}': process {os.getpid()} on {socket.gethostname()} has another version of "
            f"{', '.join(differing)} in {root} than the run's driver; expected the same everywhere: update it there, "
            f"and restart its worker, which keeps the version that it has imported"
        )


@lru_cache(maxsize=8)
def source_digest(kind: type[Any]) -> str:
    """Return one digest of the source of a class and of the modules that it uses, as 32 hex characters.

    The files are those of the class's module, of modules of the same top package that it imports names from, and so on.
    Their folder does not matter, so the digest is the same on every machine with the same text. A process reads them at
    the first call only.
    """
    package = _package(kind.__module__)
    used: set[str] = set()
    found = {kind.__module__}
    while found:
        used |= found
        found = {name for module in found for name in _uses(module) if _package(name) == package} - used
    return digest(*(_text(name) for name in sorted(used)))


def _package(module: str) -> str:
    """Name the top package of a module; Penstock's own are two names deep, as `penstock.tasks`."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "penstock" else parts[0]


def _uses(module: str) -> Iterator[str]:
    """Yield the modules that define a module's names."""
    for value in vars(sys.modules[module]).values():
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(name, str) and name in sys.modules:
            yield name


def _text(module: str) -> bytes:
    file = getattr(sys.modules[module], "__file__", None)
    return Path(file).read_bytes() if file else b""

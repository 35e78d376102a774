"""Which source an algorithm from outside the repository consists of, and whether two processes have the same.

A process imports a module once. So what counts in a worker is what lay there when it was imported, not what lies there
now: a worker that lives long would otherwise go on with an older version under a newer one's digest.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from storage.digest import digest
from storage.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

INSTALLED = {"site-packages", "dist-packages"}
"""Names of folders whose modules have versions of their own."""

_imported: dict[str, dict[str, str]] = {}


def digest_of(file: str | Path) -> str:
    """Of what a file holds now."""
    return digest(Path(file).read_bytes())


def source_digests(name: str) -> dict[str, str]:
    """Files that the imported module of `module:Class` consists of, and a digest of each as it lies there now.

    Those of its package, or those beside it; of these the ones that were imported. What is installed elsewhere has a
    version of its own.
    """
    module = sys.modules[name.partition(":")[0]]
    package = module.__name__.partition(".")[0]
    folder = Path(str(module.__file__)).parent
    beside = module.__name__ == package and folder.name not in INSTALLED
    files = set()
    for key, loaded in list(sys.modules.items()):
        file = getattr(loaded, "__file__", None)
        if file and (key.partition(".")[0] == package or (beside and Path(file).parent == folder)):
            files.add(Path(file))
    return {str(file): digest_of(file) for file in sorted(files)}


def source_root(name: str) -> str:
    """The folder in which Python found the module, or its package."""
    module = sys.modules[name.partition(":")[0]]
    above = module.__name__.count(".") + hasattr(module, "__path__")
    return str(Path(str(module.__file__)).parents[above])


def relative_to(root: str, files: Mapping[str, str]) -> dict[str, str]:
    """The same digests by names that hold wherever the source lies."""
    return {os.path.relpath(file, root): digest for file, digest in files.items()}


def note_import(name: str) -> None:
    """Keep the digests of what was just imported; of what this process has had before, those of then."""
    module = name.partition(":")[0]
    if module not in _imported:
        _imported[module] = source_digests(name)


def require_source(name: str, expected: Mapping[str, str]) -> None:
    """Refuse to run another version of an imported algorithm than the one that the run's driver looked at.

    Args:
        name: `module:Class`.
        expected: digests by file, relative to the folder of module or package; other files don't count.

    Raises:
        ConfigError: names the files that differ, and where this process has them from.
    """
    root = source_root(name)
    own = relative_to(root, _imported[name.partition(":")[0]])
    others = {file: Path(root, file) for file in expected if file not in own}
    own |= {file: digest_of(path) for file, path in others.items() if path.is_file()}
    differing = [file for file, digest in expected.items() if own.get(file) != digest]
    if differing:
        raise ConfigError(
            f"algorithm.name = '{name}': {', '.join(differing)} in {root} is another version in process {os.getpid()} "
            f"on {socket.gethostname()} than the process that drives the run has; expected the same everywhere: bring "
            f"it up to date there, and start its worker again, which keeps what it has once imported"
        )

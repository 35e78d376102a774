"""Which text an algorithm was played from: a digest that each member gives of files that its own process imported.

It is of what the class uses, not of all that a process imported of its package, because members of different roles
import different modules. For an algorithm of one's own, whose package may hold anything, `tasks.own_source` compares
whole files before anybody begins.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from storage.digest import digest

if TYPE_CHECKING:
    from collections.abc import Iterator


@lru_cache(maxsize=8)
def source_digest(kind: type[Any]) -> str:
    """One digest of the files that a class and what it uses are from, as 32 hex characters.

    Files are those of the class's module and of modules of the same top package that it takes names from, and so on.
    Where they lie counts for nothing, so it is the same on every machine that has the same text. They are read when a
    process first asks, and not again.
    """
    package = kind.__module__.partition(".")[0]
    used: set[str] = set()
    found = {kind.__module__}
    while found:
        used |= found
        found = {name for module in found for name in _uses(module) if name.partition(".")[0] == package} - used
    return digest(*(_text(name) for name in sorted(used)))


def _uses(module: str) -> Iterator[str]:
    """Modules that a module's names are from."""
    for value in vars(sys.modules[module]).values():
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(name, str) and name in sys.modules:
            yield name


def _text(module: str) -> bytes:
    file = getattr(sys.modules[module], "__file__", None)
    return Path(file).read_bytes() if file else b""

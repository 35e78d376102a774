"""The level at which the learner's kernels compute: the instruction sets that they use.

The kernels are compiled for several, and the fastest that this processor has is used, or what PENSTOCK_KERNELS names.
Bytes depend on it, so it is part of `made_with` in `run.json`.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from penstock.native import _learner

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "PENSTOCK_KERNELS"
TORCH = "torch"
"""The level without kernels: torch computes everything."""
LEVELS = (TORCH, *_learner.LEVELS)
"""The levels that this processor has, the fastest last: some of `torch`, `base`, `avx2`, `avx512`."""

_override: list[str] = []


class UnknownLevelError(ValueError):
    """There is no level of this name on this processor."""


def level() -> str:
    """Return the name of the level in use.

    Raises:
        UnknownLevelError: PENSTOCK_KERNELS names none of `LEVELS`.
    """
    return _override[-1] if _override else _configured()


@contextmanager
def use_level(name: str) -> Iterator[None]:
    """Compute at another level within the context, in all threads of the process: for comparisons.

    Raises:
        UnknownLevelError: it is none of `LEVELS`.
    """
    _override.append(_known(name, "the level"))
    try:
        yield
    finally:
        _override.pop()


@cache
def _configured() -> str:
    return _known(os.environ.get(VARIABLE) or LEVELS[-1], VARIABLE)


def _known(name: str, source: str) -> str:
    if name not in LEVELS:
        raise UnknownLevelError(f"{source} is '{name}', expected one of {', '.join(LEVELS)} on this processor")
    return name

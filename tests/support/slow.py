"""Divides the cases of a test: the first ones belong to `make test`, the others to its slow part."""

from collections.abc import Sequence
from typing import Any

import pytest


def slow_after(count: int, cases: Sequence[Any]) -> list[Any]:
    """Return cases for `parametrize`, those after the first `count` marked as slow; a tuple is one case."""
    return [*cases[:count], *map(_slow, cases[count:])]


def _slow(case: Any) -> Any:
    if hasattr(case, "marks"):  # what `pytest.param` returns
        return pytest.param(*case.values, marks=[*case.marks, pytest.mark.slow], id=case.id)
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)

"""Which names an object may have in any store."""

from __future__ import annotations

TEMPORARY_PREFIX = ".tmp-"
"""File names that start so are half-written and belong to nobody's listing."""


def check_name(name: str) -> None:
    """Refuse names that are empty, absolute, leave the store, or look half-written.

    Raises:
        ValueError: the name breaks a rule.
    """
    if name and name[0] not in "./" and name[-1] != "/" and "/." not in name and "//" not in name:
        return  # nearly all names: no part starts with a dot
    for part in name.split("/"):
        if part in {"", ".", ".."} or part.startswith(TEMPORARY_PREFIX):
            raise ValueError(
                f"'{name}' names no object; expected a relative name such as 'commits/00000001.json', with no part "
                f"that is empty, '.', '..' or starts with '{TEMPORARY_PREFIX}'"
            )


def check_range(name: str, start: int, stop: int) -> None:
    """Refuse names as `check_name` does, and ranges that are none with ValueError."""
    check_name(name)
    if not 0 <= start <= stop:
        raise ValueError(f"[{start}, {stop}) is no range of bytes of '{name}'; expected 0 <= start <= stop")

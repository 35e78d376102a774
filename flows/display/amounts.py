"""Numbers of things in words."""

from __future__ import annotations


def amount(number: int, things: str) -> str:
    """Return `1 stage`, `2 stages` or `1,200 stages`; `things` is a plural that ends with s."""
    return f"{number:,} {things.removesuffix('s') if number == 1 else things}"

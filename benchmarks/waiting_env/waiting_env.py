"""Brings `Waiting-v0` to every process that has this folder on its path: beside it lies what says so."""

from __future__ import annotations

from pathlib import Path

import native


def load() -> None:
    """Compile it, or find what was compiled before."""
    native.load(Path(__file__).with_name("waiting.hpp"))

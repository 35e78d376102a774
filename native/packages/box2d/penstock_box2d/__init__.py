"""Gymnasium's Box2D tasks for `penstock.native.make`, compiled."""

from __future__ import annotations

from pathlib import Path

from penstock import native


def load() -> None:
    """Load the library that was built with this package."""
    native.load_library(Path(__file__).parent / "box2d.so")

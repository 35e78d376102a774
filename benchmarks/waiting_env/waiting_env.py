"""Provide `Waiting-v0` to every process with this folder on its path; the entry point is next to this file."""

from __future__ import annotations

from pathlib import Path

from penstock import native


def load() -> None:
    """Compile the environment, or load the earlier build."""
    native.load(Path(__file__).with_name("waiting.hpp"))

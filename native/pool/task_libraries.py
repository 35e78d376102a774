"""The libraries of tasks that are loaded when one of theirs is first asked for."""

from __future__ import annotations

from penstock.native.pool import control_suite, mujoco_library

_LIBRARIES = (mujoco_library, control_suite)
IDS = frozenset((*mujoco_library.IDS, *control_suite.IDS))
"""The ids of all, installed or not."""


def load_for(environment_id: str) -> None:
    """Load the library that has the environment, if one does.

    Raises:
        ImportError: What it needs is not installed; the message says what installs it.
    """
    for library in _LIBRARIES:
        if environment_id in library.IDS:
            library.load()


def available_ids() -> set[str]:
    """Return the ids of those that can be loaded, as far as can be seen without loading."""
    return {name for library in _LIBRARIES if library.available() for name in library.IDS}

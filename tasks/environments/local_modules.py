"""Has Python find a user's own modules where the command was started: algorithms, environments, wrappers, callbacks."""

from __future__ import annotations

import sys
from pathlib import Path


def search_working_directory() -> Path:
    """Let imports search the working directory, and return it.

    It comes last, so that nothing in it can shadow an installed package. A stored run's modules that are found there
    need consent (`penstock.tasks.setup.config.consent`), which is asked for before this is called.
    """
    folder = Path.cwd()
    if not {"", str(folder)} & set(sys.path):
        sys.path.append(str(folder))
    return folder

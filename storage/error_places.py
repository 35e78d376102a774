"""Says where an error was raised, in the terms of the people whose code it was. Imports no torch."""

from __future__ import annotations

import traceback
from pathlib import Path

INSTALLED = {"site-packages", "dist-packages"}
"""Folders of installed packages, in which no code of a user's own is."""
_PACKAGE = Path(__file__).parents[1]
_STANDARD_LIBRARY = Path(traceback.__file__).parent


def describe_error(error: BaseException) -> str:
    """Format kind, message and place of an error on one line; the place is the last one outside installed packages."""
    text = " ".join(str(error).split())
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {text}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_installed(frame.filename)]
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {text}{where}"


def _is_installed(filename: str) -> bool:
    path = Path(filename)
    if filename.startswith("<") or INSTALLED & set(path.parts):
        return True
    return _PACKAGE in path.parents or _STANDARD_LIBRARY in path.parents

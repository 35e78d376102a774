"""Makes text safe to print: a terminal obeys control characters, and stored text is anybody's."""

from __future__ import annotations

import re
import sys
from pathlib import Path

_COLOURS = re.compile(r"\x1b\[[0-9;]*m(?:WARN: )?")
"""As Gymnasium has them in its warnings."""
_shown: set[str] = set()
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}


def plain(text: str) -> str:
    """Return text with its control characters written out, but for tabs and ends of lines."""
    return text.translate(_CONTROLS)


def show_warning(
    message: Warning | str,
    category: type[Warning],  # noqa: ARG001  (as Python calls it)
    filename: str,
    lineno: int,
    file: object = None,  # noqa: ARG001
    line: str | None = None,  # noqa: ARG001
) -> None:
    """Print a warning of Python's as one line, once: in place of `warnings.showwarning`, which adds a line of code."""
    text = plain(" ".join(_COLOURS.sub("", str(message)).split()))
    if text not in _shown:
        _shown.add(text)
        sys.stderr.write(f"warning: {text} ({Path(filename).name}, line {lineno})\n")

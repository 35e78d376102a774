"""Makes text safe to print: a terminal obeys control characters, and stored text is anybody's."""

from __future__ import annotations

_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}


def plain(text: str) -> str:
    """Return text with its control characters written out, but for tabs and ends of lines."""
    return text.translate(_CONTROLS)

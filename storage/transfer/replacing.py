"""Writes a user's file whole or not at all: exports and reports."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path beside `path` to write to; it replaces `path` at the end, or is removed where writing stopped."""
    # A name of its own: another command may write the same file at the same time.
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part{path.suffix}")
    try:
        yield part
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise

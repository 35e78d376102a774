"""Writes a user's file whole or not at all: exports and reports; refuses paths where none can be written."""

from __future__ import annotations

import os
import secrets
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from penstock.storage.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PARTIAL = ".partial"
"""The end of the name of a folder that is not whole yet."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path beside `path` to write to; it replaces `path` at the end, or is removed where writing stopped.

    It is flushed before: after a power cut the name has the former content or the new one, and not a part of it.
    """
    # A name of its own: another command may write the same file at the same time.
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part{path.suffix}")
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def require_file(path: Path) -> None:
    """Refuse a path that can't be that of a new or replaced file, before there is anything to write.

    Raises:
        ConfigError: it is a folder, or in none, or in one that can't be written.
    """
    try:
        is_folder, has_place = path.is_dir(), path.parent.is_dir()
    except OSError as error:
        raise ConfigError(f"'{path}' can't be read: {error.strerror}; choose a new path") from error
    if is_folder or not has_place:
        found = "is a folder" if is_folder else f"is in a folder that does not exist, '{path.parent}'"
        raise ConfigError(f"'{path}' {found}; expected the path of a file")
    _require_writable(path.parent, path)


def require_folder(path: Path, *, empty: bool = False) -> None:
    """Refuse a path where no folder is and none can be made, before there is anything to write.

    Args:
        path: of the folder.
        empty: refuse one with files too, but for those that an interrupted export has left (`PARTIAL`).

    Raises:
        ConfigError: names what is there.
    """
    try:
        place = next(each for each in (path, *path.parents) if each.exists())
        names = [one.name for one in path.iterdir()] if empty and path.is_dir() else []
    except OSError as error:
        raise ConfigError(f"'{path}' can't be read: {error.strerror}; choose a new path") from error
    if not place.is_dir():
        raise ConfigError(f"'{place}' is a file, expected a folder; choose a new path")
    if not all(name.endswith(PARTIAL) for name in names):
        raise ConfigError(f"'{path}' is a folder with files; an export needs a new path, or an empty folder")
    _require_writable(place, path)


def _require_writable(folder: Path, path: Path) -> None:
    """Refuse a folder in which no file can be made: permissions alone do not say it."""
    try:
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            f"'{path}' can't be written: no file can be made in '{folder}' ({error.strerror}); choose another folder"
        ) from error

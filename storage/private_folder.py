"""Makes folders that no other user may enter: what a process has verified there must stay what it was."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_OTHERS = 0o077
_OTHERS_WRITE = 0o022


def make_private(folder: Path) -> None:
    """Create a folder for this user alone, or check that an existing one is; others' read permission is taken away.

    Raises:
        PermissionError: it is a symbolic link, belongs to another user, or others may write to it.
        OSError: it can't be created.
    """
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if found := _fault(folder):
            raise PermissionError(
                f"the folder '{folder}' {found}, expected a folder of this user alone; remove it, or name another one"
            ) from None
        if folder.lstat().st_mode & _OTHERS:
            folder.chmod(0o700)


def is_private(folder: Path) -> bool:
    """Return whether the folder exists, belongs to this user, is no link, and others may not write to it."""
    try:
        return not _fault(folder)
    except FileNotFoundError:
        return False


def _fault(folder: Path) -> str:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        return "is a link or a file"
    if status.st_uid != os.geteuid():
        return f"belongs to user {status.st_uid}"
    return "may be written by other users" if status.st_mode & _OTHERS_WRITE else ""

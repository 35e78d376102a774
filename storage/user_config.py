"""The user's configuration folder on this machine: a secret and consents, which must not come from a store."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from penstock.storage.errors import ConfigError
from penstock.storage.private_folder import make_private

_SECRET_BYTES = 24


def config_folder() -> Path:
    """Return the folder, which may not exist yet.

    It is `$PENSTOCK_CONFIG_DIR`, otherwise `penstock` in the user's configuration folder.

    Raises:
        ConfigError: the user has no home folder.
    """
    if given := os.environ.get("PENSTOCK_CONFIG_DIR"):
        return Path(given)
    try:
        return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "penstock"
    except RuntimeError as error:
        raise ConfigError(f"this user has no home folder ({error}); set PENSTOCK_CONFIG_DIR to a folder") from error


def read_private(path: Path) -> bytes | None:
    """Return the content of a file in the configuration folder; None if it does not exist.

    Raises:
        ConfigError: it is no file, belongs to another user, or others may write to it: its content is not this user's.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(
            f"'{path}' can't be read ({error.strerror}), expected a file of this user; set "
            f"PENSTOCK_CONFIG_DIR to another folder, or correct this one"
        ) from error
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or others_write:
            raise ConfigError(f"'{path}' belongs to another user or may be written by one; remove it")
        return file.read()


def write_private(path: Path, data: bytes, *, exclusively: bool = False) -> None:
    """Replace a file in the configuration folder at once, readable by this user alone; the folder is made if missing.

    Args:
        path: the file.
        data: its content.
        exclusively: keep a file that exists.

    Raises:
        ConfigError: the folder is not this user's alone, or can't be written.
    """
    made = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        make_private(path.parent)
        with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            if exclusively:
                path.hardlink_to(made)
            else:
                made.replace(path)
        except FileExistsError:
            pass
        finally:
            made.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"the configuration folder '{path.parent}' can't be used: {error}; set PENSTOCK_CONFIG_DIR to a folder of "
            f"this user"
        ) from error


def user_secret(name: str) -> tuple[str, Path]:
    """Return a secret of this user and the file that keeps it; it is made at its first use.

    Args:
        name: of the file.

    Raises:
        ConfigError: the folder or the file is not this user's, or can't be written.
    """
    path = config_folder() / name
    if not (found := read_private(path)):
        write_private(path, secrets.token_urlsafe(_SECRET_BYTES).encode(), exclusively=found is None)
        found = read_private(path)
    if not found:
        raise ConfigError(f"'{path}' is empty; remove it")
    return found.decode("ascii", "replace").strip(), path

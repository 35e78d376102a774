"""A migrated, empty database of Prefect's server, kept in the user's cache for homes that have none.

Prefect's migrations take between three and nine CPU seconds, longer than a small training run.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
from contextlib import closing, suppress
from importlib.metadata import version
from typing import TYPE_CHECKING

from penstock.storage.cache.node_cache import default_cache_folder
from penstock.storage.private_folder import is_private, make_private

if TYPE_CHECKING:
    from pathlib import Path

_DATABASE, _MEMO = "prefect.db", "memo_store.toml"
"""Files of a home: the second says which block types the first has."""
_FILLED_BY_PREFECT = {"alembic_version", "block_type", "block_schema", "block_schema_reference"}
_CONFIGURES_DATABASE = ("PREFECT_API_DATABASE_", "PREFECT_SERVER_DATABASE_")


def has_own_database(home: Path) -> bool:
    """Return whether the home has a database, or the user has configured where it is."""
    configured = any(name.startswith(_CONFIGURES_DATABASE) for name in os.environ)
    return configured or any((home / name).exists() for name in (_DATABASE, "profiles.toml"))


def copy_database(home: Path) -> bool:
    """Give a home without a database a kept one, if there is one of this version of Prefect; returns whether it has.

    Only the owner of the home's start may call this: see `PrefectServer`.
    """
    kept = _kept()
    if not is_private(kept.parent):
        return False
    try:
        # The database comes last: a home that has one is complete.
        for source, name in ((kept.with_suffix(".toml"), _MEMO), (kept, _DATABASE)):
            _place(source, home / name)
    except OSError:
        return False
    return True


def keep_database(home: Path) -> None:
    """Keep the database of a home whose server has just started for the first time, unless one is kept already.

    A database in which anything is recorded is not kept.
    """
    kept = _kept()
    made = kept.with_name(f".{kept.name}.{secrets.token_hex(8)}")
    if kept.exists():
        return
    try:
        make_private(kept.parent)
        with closing(sqlite3.connect(f"{(home / _DATABASE).as_uri()}?mode=ro", uri=True)) as database:
            if any(_has_rows(database, name) for name in set(_tables(database)) - _FILLED_BY_PREFECT):
                return
            database.execute("VACUUM INTO ?", (str(made),))
        _place(home / _MEMO, kept.with_suffix(".toml"))
        made.chmod(0o600)
        made.replace(kept)
    except (OSError, sqlite3.Error):
        pass  # It saves time and nothing else.
    finally:
        with suppress(OSError):
            made.unlink(missing_ok=True)


def _tables(database: sqlite3.Connection) -> list[str]:
    return [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]


def _has_rows(database: sqlite3.Connection, table: str) -> bool:
    return database.execute(f'SELECT 1 FROM "{table}" LIMIT 1').fetchone() is not None  # noqa: S608  (of the schema)


def _kept() -> Path:
    return default_cache_folder().with_name(f"prefect-{version('prefect')}.db")


def _place(source: Path, target: Path) -> None:
    """Copy a file as a whole, for this user alone."""
    made = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        shutil.copyfile(source, made)
        made.chmod(0o600)
        made.replace(target)
    finally:
        made.unlink(missing_ok=True)

"""Defines the protocol of a store, the same on a local disk and on an object store.

Objects are named by relative names with `/` separators, written whole, and mostly never changed. The few that are
(the lease, the hint to the newest commit) are replaced whole as well: a reader sees the old or the new content, never a
mix. Listings are never cached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from typing_extensions import Buffer


class Store(Protocol):
    """A store is a folder of objects. Stores are picklable and connect when they are first used.

    Every failure ends as StoreError, which names the store's url and never holds credentials. Transient failures of
    remote stores are retried a bounded number of times, which takes seconds.
    """

    @property
    def url(self) -> str:
        """Return the store's address, which `open_store` accepts."""
        ...

    def read(self, name: str) -> bytes:
        """Read a whole object. ObjectNotFoundError if there is none."""
        ...

    def view(self, name: str) -> memoryview:
        """Read a whole object into a private writable buffer: writing to it changes no stored object.

        A mapped file on a local disk, downloaded bytes otherwise. ObjectNotFoundError if there is none.
        """
        ...

    def read_range(self, name: str, start: int, stop: int) -> memoryview:
        """Read bytes [start, stop) of an object into a private writable buffer; fewer if it ends before `stop`.

        One ranged request on a remote store. ObjectNotFoundError if there is no such object, for an empty range too;
        ValueError unless 0 <= start <= stop.
        """
        ...

    def write(self, name: str, parts: Sequence[Buffer], *, durable: bool = False) -> None:
        """Store the concatenated parts, all or nothing, replacing any object of that name.

        `durable` makes it survive a power cut: on a local disk the file and its folders are flushed before this
        returns. Remote stores always are.
        """
        ...

    def create(self, name: str, data: bytes) -> None:
        """Store `data` if there is no such object; durable. ObjectExistsError if there is one.

        A retried request whose first answer was lost finds its own object, so a refusal means "it exists, and may be
        mine": read it back to know. `storage.stores.probe` says whether a store keeps this promise between writers.
        """
        ...

    def exists(self, name: str) -> bool:
        """Return whether the object exists. A folder is none."""
        ...

    def list(self, prefix: str = "") -> builtins.list[str]:
        """List names that start with `prefix`, sorted. The answer is never cached and never has half-written files."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects; missing ones are ignored."""
        ...

    def sync(self, names: Iterable[str]) -> None:
        """Make previously written objects durable."""
        ...

    def path(self, name: str) -> Path | None:
        """Return the local file that contains, or would contain, an object; None on remote stores."""
        ...

    def at(self, prefix: str) -> Store:
        """Return the same store below a folder."""
        ...


TEMPORARY_PREFIX = ".tmp-"
"""Files whose names start so are half-written and appear in no listing."""


def check_name(name: str) -> None:
    """Refuse names that are empty, absolute, leave the store, or look half-written.

    Raises:
        ValueError: the name breaks a rule.
    """
    if name and name[0] not in "./" and name[-1] != "/" and "/." not in name and "//" not in name:
        return  # nearly all names: no part starts with a dot
    for part in name.split("/"):
        if part in {"", ".", ".."} or part.startswith(TEMPORARY_PREFIX):
            raise ValueError(
                f"'{name}' names no object; expected a relative name such as 'commits/00000001.json', with no part "
                f"that is empty, '.', '..' or starts with '{TEMPORARY_PREFIX}'"
            )


def is_name(name: str) -> bool:
    """Return whether `check_name` takes a name: other programs leave others, such as S3's console a folder's marker."""
    try:
        check_name(name)
    except ValueError:
        return False
    return True


def check_range(name: str, start: int, stop: int) -> None:
    """Refuse names as `check_name` does, and invalid ranges with ValueError."""
    check_name(name)
    if not 0 <= start <= stop:
        raise ValueError(f"[{start}, {stop}) is no range of bytes of '{name}'; expected 0 <= start <= stop")

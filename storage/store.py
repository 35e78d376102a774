"""What storage asks of a place that keeps objects: one small protocol, the same on a local disk and on an object store.

Objects are named by relative names with `/` separators, written whole, and mostly never changed. The few that are
(the lease, the hint to the newest commit) are replaced whole as well: a reader sees the old or the new content, never a
mix. Listings are always asked for anew.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from storage.errors import ConfigError

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterable, Sequence

    from typing_extensions import Buffer


_BUCKET = re.compile(r"[A-Za-z0-9][\w.-]*|arn:.*", re.ASCII)


class Store(Protocol):
    """A folder of objects. Stores are picklable and connect when they are first used.

    Every failure ends as StoreError, which names the store's url and never holds credentials. Transient failures of
    remote stores are retried a bounded number of times, which takes seconds.
    """

    @property
    def url(self) -> str:
        """Where this is; `open_store` takes it back."""
        ...

    def read(self, name: str) -> bytes:
        """Whole object. ObjectNotFoundError if there is none."""
        ...

    def view(self, name: str) -> memoryview:
        """Whole object as a private writable buffer: writing to it changes no stored object.

        A mapped file on a local disk, downloaded bytes otherwise. ObjectNotFoundError if there is none.
        """
        ...

    def read_range(self, name: str, start: int, stop: int) -> memoryview:
        """Bytes [start, stop) of an object as a private writable buffer; fewer, or none, where it ends before `stop`.

        One ranged request on a remote store. ObjectNotFoundError if there is no such object, for an empty range too;
        ValueError unless 0 <= start <= stop.
        """
        ...

    def write(self, name: str, parts: Sequence[Buffer], *, durable: bool = False) -> None:
        """Store the concatenated parts, all or nothing, in place of what may be there.

        `durable` makes it survive a power cut: on a local disk the file and its folders are flushed before this
        returns. Remote stores always are.
        """
        ...

    def create(self, name: str, data: bytes) -> None:
        """Store `data` if there is no such object; durable. ObjectExistsError if there is one.

        A retried request whose first answer was lost finds its own object, so a refusal means "it exists, and may be
        mine": read it back to know. `storage.probe` says whether a store keeps this promise between writers.
        """
        ...

    def exists(self, name: str) -> bool:
        """Whether there is such an object. A folder is none."""
        ...

    def list(self, prefix: str = "") -> builtins.list[str]:
        """Names that start with `prefix`, sorted. Never a remembered answer, never half-written files."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects; those that are gone already are fine."""
        ...

    def sync(self, names: Iterable[str]) -> None:
        """Make objects that were written before durable."""
        ...

    def path(self, name: str) -> Path | None:
        """The local file that holds, or would hold, an object; None on remote stores."""
        ...

    def at(self, prefix: str) -> Store:
        """The same store below a folder."""
        ...


def open_store(url: str | Path, **options: Any) -> Store:
    """Open a folder (`/data/runs`, `file:///data/runs`) or any url of fsspec's (`s3://bucket/runs`).

    `s3://` is served by s3fs. `s3+obstore://` and `s3+pyarrow://` name another client for the same objects, so which
    one it is travels with the url, and is nothing that a run's bytes depend on.

    Args:
        url: A relative folder is made absolute, so that the store means the same in other processes.
        options: For the client, such as `endpoint_url`. Credentials belong into the environment: a store that was
            given some refuses to be pickled.

    Raises:
        ConfigError: nobody knows the url's scheme, client or options, or a package is missing; the url holds a
            password; it is chained; or a local folder was given options.
    """
    text = str(url)
    scheme, separator, rest = text.partition("://")
    if not separator or scheme in {"file", "local"}:
        if options:
            raise ConfigError(f"the local store '{text}' takes no options, got {sorted(options)}; remove them")
        from storage.local_store import LocalStore  # noqa: PLC0415  (not needed for remote stores)

        return LocalStore(Path(rest if separator else text).expanduser().absolute())
    if "::" in text:
        raise ConfigError(
            f"the store '{_without_password(text)}' is chained; expected one plain url. A cache in between would hide "
            "what others write"
        )
    if _without_password(text) != text:
        raise ConfigError(
            f"the store '{_without_password(text)}' has a password in its url, which would end up in logs; put it into "
            "the environment or into the service's own configuration file"
        )
    if scheme.partition("+")[0] in {"s3", "s3a"} and not _BUCKET.fullmatch(rest.partition("/")[0]):
        raise ConfigError(
            f"the store '{text}' names no bucket; expected {scheme}://bucket/folder, the bucket of letters, digits, "
            "'.', '-' and '_'"
        )
    if scheme.startswith("s3+"):
        return _open_s3(text, scheme[len("s3+") :], options)
    from storage.fsspec_store import FsspecStore  # noqa: PLC0415  (slow to import, not needed for local folders)

    return FsspecStore(text, options)


def _open_s3(url: str, client: str, options: dict[str, Any]) -> Store:
    if client == "obstore":
        from storage.obstore_store import ObstoreStore  # noqa: PLC0415  (an optional package)

        return ObstoreStore(url, options)
    if client == "pyarrow":
        from storage.pyarrow_store import PyarrowStore  # noqa: PLC0415  (slow to import)

        return PyarrowStore(url, options)
    raise ConfigError(f"the store '{url}' names the client '{client}'; there are: s3://, s3+obstore://, s3+pyarrow://")


def _without_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    host, slash, tail = rest.partition("/")
    user, at, place = host.rpartition("@")
    if at and ":" in user:
        host = f"{user.partition(':')[0]}:***@{place}"
    return f"{scheme}{separator}{host}{slash}{tail}"

"""A store behind any fsspec file system, made for S3: whole objects in one request, conditional creation, retries.

Atomicity comes from the service: object stores show an object when its upload is complete. Other fsspec file systems
are as atomic as their own writes; `storage.probe` finds out whether exclusive creation holds.
"""

from __future__ import annotations

import errno
import os
import random
import time
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import fsspec

from storage.errors import ConfigError, ObjectExistsError, ObjectNotFoundError, StoreError
from storage.names import check_name, check_range

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from typing_extensions import Buffer

Result = TypeVar("Result")

ATTEMPTS = 5
FIRST_WAIT_SECONDS = 0.2
"""Doubled before each further attempt, and shortened at random by up to a half so that clients spread out."""
RETRY_SECONDS = 20.0
"""No attempt starts later than this after the first one."""

_BULK_DELETE_OBJECTS = 1_000  # S3's limit
_RANGE_NOT_SATISFIABLE = 416
_S3_TIMEOUTS: Mapping[str, Any] = {
    "connect_timeout": 4.0,
    "read_timeout": 30.0,
    "max_pool_connections": 32,
    "retries": {"total_max_attempts": 1},  # this module retries; retries below it would multiply
}
_PERMANENT = (
    FileExistsError,
    FileNotFoundError,
    ImportError,
    IsADirectoryError,
    NotADirectoryError,
    NotImplementedError,
    PermissionError,
    TypeError,
    ValueError,
)
_PERMANENT_NUMBERS = {
    errno.EINVAL,
    errno.EMSGSIZE,
    errno.ENAMETOOLONG,
    errno.ENOSYS,
    errno.EPERM,
    errno.EREMCHG,
}


class FsspecStore:
    """Objects below a url that fsspec understands. Options are for its file system and travel with pickles."""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        """Takes a url without a password, as `open_store` checks; nothing is connected yet.

        Raises:
            ConfigError: fsspec does not know the url's scheme, or its package is missing.
        """
        self.url = url if url.endswith("://") else url.rstrip("/")
        self._options = dict(options or {})
        self._scheme = url.partition("://")[0]
        try:
            kind = fsspec.get_filesystem_class(self._scheme)
        except (ImportError, ValueError) as error:
            raise ConfigError(
                f"the store '{url}' needs fsspec's support for '{self._scheme}://': {error}; install it, or check the "
                "url"
            ) from error
        self._is_s3 = self._scheme in {"s3", "s3a"}
        self._base = str(kind._strip_protocol(self.url)).rstrip("/") + "/"  # noqa: SLF001  (fsspec's own idiom)
        self._opened: Any = None
        self._opened_by = 0

    def __reduce__(self) -> tuple[type[FsspecStore], tuple[str, dict[str, Any]]]:
        return FsspecStore, (self.url, self._options)

    def __repr__(self) -> str:
        return f"FsspecStore({self.url!r})"  # options may be credentials

    def read(self, name: str) -> bytes:
        """Whole object, in one request."""
        path = self._path(name)
        if self._is_s3:
            # With more than one, s3fs asks for the size first; callers read several objects at once instead.
            return self._call("read", name, lambda system: bytes(system.cat_file(path, max_concurrency=1)))
        return self._call("read", name, lambda system: bytes(system.cat_file(path)))

    def view(self, name: str) -> memoryview:
        """Whole object in memory of its own."""
        return memoryview(bytearray(self.read(name)))

    def read_range(self, name: str, start: int, stop: int) -> memoryview:
        """Bytes [start, stop), in one request; an empty range only asks whether there is such an object."""
        check_range(name, start, stop)
        path = self._base + name
        if start == stop:
            if not self.exists(name):
                self._fail("read", name, FileNotFoundError(path), 1)
            return memoryview(bytearray())

        def read(system: Any) -> memoryview:
            try:
                return memoryview(bytearray(system.cat_file(path, start=start, end=stop)))
            except OSError as error:
                if self._is_s3 and _is_beyond_the_end(error):
                    return memoryview(bytearray())
                raise

        return self._call("read", name, read)

    def write(self, name: str, parts: Sequence[Buffer], *, durable: bool = False) -> None:
        """Store the concatenated parts, which are joined first: one request, and durable when it is answered."""
        del durable
        path, content = self._path(name), b"".join(parts)
        self._call("write", name, lambda system: system.pipe_file(path, content))

    def create(self, name: str, data: bytes) -> None:
        """Store `data` if there is no such object (S3: `If-None-Match: *`)."""
        path = self._path(name)
        try:
            self._call("create", name, lambda system: system.pipe_file(path, data, mode="create"))
        except ObjectExistsError:
            raise
        except StoreError as error:
            # Some servers refuse without naming the condition, which s3fs reports as an invalid argument.
            cause = error.__cause__
            if isinstance(cause, OSError) and cause.errno == errno.EINVAL and self.exists(name):
                raise self._refused(name) from cause
            raise

    def exists(self, name: str) -> bool:
        """Whether there is such an object."""
        path = self._path(name)

        def look(system: Any) -> bool:
            try:
                return bool(system.info(path)["type"] == "file")
            except FileNotFoundError:
                return False

        return self._call("look for", name, look)

    def list(self, prefix: str = "") -> builtins.list[str]:
        """Names that start with `prefix`, sorted; lists the folder that holds them."""
        folder = (self._base + prefix.rpartition("/")[0]).rstrip("/")

        def find(system: Any) -> list[str]:
            system.invalidate_cache()
            try:
                return list(system.find(folder))
            except FileNotFoundError:
                return []

        found = self._call("list", f"{prefix}*", find)
        start = self._base + prefix
        return sorted(path[len(self._base) :] for path in found if path.startswith(start))

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects, on S3 up to 1000 a request."""
        pending = [(name, self._path(name)) for name in names]
        if self._is_s3:
            for start in range(0, len(pending), _BULK_DELETE_OBJECTS):
                batch = [path for _, path in pending[start : start + _BULK_DELETE_OBJECTS]]
                self._call("delete", f"{pending[start][0]}, …", lambda system, batch=batch: _delete_s3(system, batch))  # type: ignore[misc]
            return
        for name, path in pending:
            self._call("delete", name, lambda system, path=path: _delete(system, path))  # type: ignore[misc]

    def sync(self, names: Iterable[str]) -> None:
        """Nothing to do: an answered write is durable."""

    def path(self, name: str) -> None:
        """No local file."""
        check_name(name)

    def at(self, prefix: str) -> FsspecStore:
        """The same store below a folder; fsspec shares the connections."""
        prefix = prefix.rstrip("/")
        check_name(prefix)
        return FsspecStore(self.url + ("" if self.url.endswith("/") else "/") + prefix, self._options)

    def _path(self, name: str) -> str:
        check_name(name)
        return self._base + name

    def _system(self) -> Any:
        process = os.getpid()
        if self._opened is None or self._opened_by != process:  # fsspec's I/O thread does not survive a fork
            options: dict[str, Any] = {"use_listings_cache": False, **self._options}
            if self._is_s3:
                options["config_kwargs"] = {**_S3_TIMEOUTS, **self._options.get("config_kwargs", {})}
            system = fsspec.filesystem(self._scheme, **options)
            if self._is_s3:
                system.retries = 1
            self._opened, self._opened_by = system, process
        return self._opened

    def _call(self, verb: str, name: str, operation: Callable[[Any], Result]) -> Result:
        give_up_at = time.monotonic() + RETRY_SECONDS
        wait_seconds = FIRST_WAIT_SECONDS
        attempt = 0
        while True:
            attempt += 1
            try:
                return operation(self._system())
            except Exception as error:  # noqa: BLE001  (each file system has errors of its own; all end as StoreError)
                if _is_permanent(error) or attempt == ATTEMPTS or time.monotonic() + wait_seconds > give_up_at:
                    self._fail(verb, name, error, attempt)
            time.sleep(wait_seconds * random.uniform(0.5, 1.0))  # noqa: S311  (no secret)
            wait_seconds *= 2

    def _fail(self, verb: str, name: str, error: Exception, attempts: int) -> NoReturn:
        if isinstance(error, FileExistsError) and verb == "create":
            raise self._refused(name) from error
        if isinstance(error, FileNotFoundError | IsADirectoryError) and verb == "read":
            raise ObjectNotFoundError(
                f"there is no object '{name}' in the store '{self.url}'; check the name and the store's url"
            ) from error
        tries = "" if attempts == 1 else f" after {attempts} attempts"
        raise StoreError(
            f"cannot {verb} '{name}' in the store '{self.url}'{tries}: {type(error).__name__}: {error}; check that the "
            "service can be reached from here, that the bucket exists, and that the credentials allow this"
        ) from error

    def _refused(self, name: str) -> ObjectExistsError:
        return ObjectExistsError(f"'{name}' exists already in the store '{self.url}'; read it to see whose")


def _is_permanent(error: Exception) -> bool:
    return isinstance(error, _PERMANENT) or (isinstance(error, OSError) and error.errno in _PERMANENT_NUMBERS)


def _is_beyond_the_end(error: OSError) -> bool:
    """Whether S3 refused a range that begins where its object ends, or later."""
    answer = getattr(error.__cause__, "response", None) or {}
    return bool(answer.get("ResponseMetadata", {}).get("HTTPStatusCode") == _RANGE_NOT_SATISFIABLE)


def _delete(system: Any, path: str) -> None:
    try:
        system.rm_file(path)
    except FileNotFoundError:
        return


def _delete_s3(system: Any, paths: Sequence[str]) -> None:
    """Delete in bulk. s3fs' own bulk delete drops the errors of single objects."""
    bucket = system.split_path(paths[0])[0]
    objects = [{"Key": system.split_path(path)[1]} for path in paths]
    answer = system.call_s3("delete_objects", Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
    errors = answer.get("Errors", [])
    if errors:
        first = errors[0]
        reason = f"{first.get('Code')} {first.get('Message')}"
        raise OSError(errno.EIO, f"{len(errors)} objects stay, the first is '{first.get('Key')}': {reason}")

"""Implements a store on any fsspec file system, made for S3: whole objects in one request, conditional creation.

Other fsspec file systems are as atomic as their own writes; `storage.stores.probe` tests whether creation is
exclusive.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import fsspec
from fsspec.asyn import sync
from fsspec.exceptions import FSTimeoutError

from penstock.storage.errors import ConfigError
from penstock.storage.stores.remote import CONNECT_SECONDS, NO_BUCKET, READ_SECONDS, Fault, RemoteStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from typing_extensions import Buffer

_RANGE_NOT_SATISFIABLE = 416
_SLOWEST_BYTES_PER_SECOND = 64 << 10
_OF_LISTS = {"Name", "KeyCount", "IsTruncated", "Contents"}
"""Names in S3's answer to a listing; services leave out some of them."""
_NO_S3 = "what answers speaks no S3, so check AWS_ENDPOINT_URL"
_S3_SETTINGS: Mapping[str, Any] = {
    "connect_timeout": CONNECT_SECONDS,
    "read_timeout": READ_SECONDS,
    "max_pool_connections": 32,
    "retries": {"total_max_attempts": 1},  # the store retries; retries below it would multiply
}
_PERMANENT = (ImportError, NotADirectoryError, NotImplementedError, PermissionError, TypeError, ValueError)
_PERMANENT_NUMBERS = {
    errno.EINVAL,
    errno.EMSGSIZE,
    errno.ENAMETOOLONG,
    errno.ENOSYS,
    errno.EPERM,
    errno.EREMCHG,
}


class FsspecStore(RemoteStore):
    """Stores objects below a url that fsspec understands. Options are for its file system and are part of pickles."""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        """Take a url without a password, as `open_store` checks; connect to nothing yet.

        Raises:
            ConfigError: fsspec does not know the url's scheme, or its package is missing.
        """
        super().__init__(url, options)
        protocol, separator, place = self.url.partition("://")
        self._scheme = protocol.partition("+")[0]
        try:
            kind = fsspec.get_filesystem_class(self._scheme)
        except (ImportError, ValueError) as error:
            raise ConfigError(
                f"the store '{url}' needs fsspec's support for '{self._scheme}://': {error}; install it, or check the "
                "url"
            ) from error
        self._is_s3 = self._scheme in {"s3", "s3a"}
        self._base = str(kind._strip_protocol(f"{self._scheme}{separator}{place}")).rstrip("/") + "/"  # noqa: SLF001  (fsspec's own idiom)

    def _connect(self) -> Any:
        options: dict[str, Any] = {"use_listings_cache": False, **self._options}
        if self._is_s3:
            options["config_kwargs"] = {**_S3_SETTINGS, **self._options.get("config_kwargs", {})}
        system = fsspec.filesystem(self._scheme, **options)
        if self._is_s3:
            system.retries = 1
        return system

    def _get(self, client: Any, path: str) -> Buffer:
        if self._is_s3:
            # With more than one, s3fs requests the size first; callers read several objects concurrently instead.
            return bytes(client.cat_file(path, max_concurrency=1))
        return bytes(client.cat_file(path))

    def _get_range(self, client: Any, path: str, start: int, stop: int) -> Buffer:
        try:
            return bytes(client.cat_file(path, start=start, end=stop))
        except OSError as error:
            if self._is_s3 and _status(error) == _RANGE_NOT_SATISFIABLE:
                return b""
            raise

    def _put(self, client: Any, path: str, content: bytes) -> None:
        self._upload(client, path, content)

    def _put_if_absent(self, client: Any, path: str, content: bytes) -> None:
        try:
            self._upload(client, path, content, mode="create")
        except OSError as error:
            # Some servers refuse without naming the condition; s3fs reports that as an invalid argument.
            if error.errno == errno.EINVAL and self._has(client, path):
                raise FileExistsError(path) from error
            raise

    def _upload(self, client: Any, path: str, content: bytes, **options: str) -> None:
        """Upload an object; to S3 within a time that depends on its size.

        aiohttp's own time-out begins after the last byte: it would wait for ever for the `100 Continue` of a service
        that does not answer, and for one that takes no more.
        """
        if not self._is_s3:
            client.pipe_file(path, content, **options)
            return
        seconds = READ_SECONDS + len(content) / _SLOWEST_BYTES_PER_SECOND
        try:
            sync(client.loop, client._pipe_file, path, content, timeout=seconds, **options)  # noqa: SLF001  (as fsspec)
        except FSTimeoutError as error:
            raise TimeoutError(f"it was not taken within {seconds:.0f} s") from error

    def _has(self, client: Any, path: str) -> bool:
        try:
            return bool(client.info(path)["type"] == "file")
        except FileNotFoundError as error:
            if _code(error) == NO_BUCKET:
                raise
            return False

    def _paths_from(self, client: Any, start: str) -> Iterable[str]:
        client.invalidate_cache()
        try:
            return _list_s3(client, start) if self._is_s3 else list(client.find(start.rpartition("/")[0]))
        except FileNotFoundError as error:
            if _code(error) == NO_BUCKET:
                raise
            if self._is_s3:  # to a folder that holds nothing S3 answers with an empty list
                raise NotADirectoryError(f"{_NO_S3}: it knows no list of a bucket ({error})") from error
            return []

    def _remove(self, client: Any, paths: Sequence[str]) -> None:
        if self._is_s3:
            _delete_s3(client, paths)
            return
        for path in paths:
            try:
                client.rm_file(path)
            except FileNotFoundError:
                continue

    def _fault(self, error: Exception) -> Fault:
        if isinstance(error, FileExistsError):
            return Fault.TAKEN
        if isinstance(error, FileNotFoundError | IsADirectoryError):
            return Fault.PERMANENT if _code(error) == NO_BUCKET else Fault.MISSING
        if isinstance(error, _PERMANENT) or (isinstance(error, OSError) and error.errno in _PERMANENT_NUMBERS):
            return Fault.PERMANENT
        return Fault.TRANSIENT


def _answer(error: OSError) -> dict[str, Any]:
    """Return the response behind a botocore error that s3fs wrapped in another."""
    return getattr(error.__cause__, "response", None) or {}


def _status(error: OSError) -> int | None:
    status = _answer(error).get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status if isinstance(status, int) else None


def _code(error: OSError) -> Any:
    return _answer(error).get("Error", {}).get("Code")


def _list_s3(system: Any, start: str) -> list[str]:
    """List with one request per page: s3fs' own listing takes three for an empty prefix."""
    bucket, key, _ = system.split_path(start)
    asked: dict[str, Any] = {"Bucket": bucket, "Prefix": key, **system.req_kw}
    paths: list[str] = []
    while True:
        page = system.call_s3("list_objects_v2", **asked)
        if not page.keys() & _OF_LISTS:
            raise NotADirectoryError(f"{_NO_S3}: it sent something else than the list of a bucket")
        paths.extend(f"{bucket}/{found['Key']}" for found in page.get("Contents", []))
        if not page.get("IsTruncated"):
            return paths
        asked["ContinuationToken"] = page["NextContinuationToken"]


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

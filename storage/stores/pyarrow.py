"""Implements S3 through two clients: pyarrow's for the bytes of objects, s3fs for everything that pyarrow's can't do.

Pyarrow's has no conditional creation, and its reads request the size of the object first.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from pyarrow import fs

from penstock.storage.stores.fsspec import FsspecStore
from penstock.storage.stores.remote import CONNECT_SECONDS, READ_SECONDS, Fault
from penstock.storage.stores.s3_credentials import Keys, S3Access, check_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from typing_extensions import Buffer

_NAMED = re.compile(r"AWS Error (\w+) ")  # the only detail in pyarrow's errors
_PERMANENT = {"ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "NO_SUCH_BUCKET", "SIGNATURE_DOES_NOT_MATCH"}


class _Clients(NamedTuple):
    arrow: Any
    s3fs: Any
    access: S3Access
    keys: Keys | None
    """Those that `arrow` was made with, which it can't renew."""


def _arrow_client(access: S3Access, keys: Keys | None) -> Any:
    return fs.S3FileSystem(
        access_key=keys and keys.key,
        secret_key=keys and keys.secret,
        session_token=keys and keys.token,
        anonymous=access.anonymous,
        region=access.region,
        endpoint_override=access.endpoint_url,
        request_timeout=READ_SECONDS,
        connect_timeout=CONNECT_SECONDS,
        background_writes=False,
        allow_delayed_open=True,  # one request for objects of one part
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=0),
    )


class PyarrowStore(FsspecStore):
    """Stores objects below `s3+pyarrow://bucket/...`: pyarrow reads and writes, s3fs creates and lists."""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        """Take the options of `penstock.storage.stores.s3_credentials`; connect to nothing yet."""
        super().__init__(url, options)
        check_options(url, self._options)

    def _connect(self) -> _Clients:
        access = S3Access(self._options)
        keys = None if access.anonymous else access.keys()
        return _Clients(_arrow_client(access, keys), super()._connect(), access, keys)

    def _client(self) -> _Clients:
        clients: _Clients = super()._client()
        keys = None if clients.access.anonymous else clients.access.keys()
        if keys != clients.keys:  # those of a role change every few hours
            self._opened = clients = clients._replace(arrow=_arrow_client(clients.access, keys), keys=keys)
        return clients

    def _get(self, client: _Clients, path: str) -> Buffer:
        try:
            with client.arrow.open_input_file(path) as file:
                content: Buffer = file.read_buffer()
                return content
        except FileNotFoundError:
            return super()._get(client.s3fs, path)  # this shows whether the bucket exists

    def _get_range(self, client: _Clients, path: str, start: int, stop: int) -> Buffer:
        with client.arrow.open_input_file(path) as file:
            nbytes = min(stop, file.size()) - start
            return file.read_at(nbytes, start) if nbytes > 0 else b""

    def _put(self, client: _Clients, path: str, content: bytes) -> None:
        with client.arrow.open_output_stream(path) as file:
            file.write(content)  # in one call, since closing after half of it would store that half

    def _put_if_absent(self, client: _Clients, path: str, content: bytes) -> None:
        super()._put_if_absent(client.s3fs, path, content)

    def _has(self, client: _Clients, path: str) -> bool:
        return super()._has(client.s3fs, path)

    def _paths_from(self, client: _Clients, start: str) -> Iterable[str]:
        return super()._paths_from(client.s3fs, start)

    def _fault(self, error: Exception) -> Fault:
        named = _NAMED.search(str(error))
        return Fault.PERMANENT if named and named[1] in _PERMANENT else super()._fault(error)

    def _remove(self, client: _Clients, paths: Sequence[str]) -> None:
        super()._remove(client.s3fs, paths)

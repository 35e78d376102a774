"""Implements S3 through obstore: the Rust client `object_store`, whose requests do not hold the GIL."""

from __future__ import annotations

import os
import re
import threading
from concurrent.futures import wait
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.storage.errors import ConfigError
from penstock.storage.stores.daemon_threads import DaemonThreads
from penstock.storage.stores.remote import CONNECT_SECONDS, NO_BUCKET, READ_SECONDS, Fault, RemoteStore
from penstock.storage.stores.s3_credentials import S3Access, check_options

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Mapping, Sequence

    from obstore import Bytes
    from obstore.store import S3Credential, S3Store

    from penstock.storage.stores.remote import Result

try:
    import obstore
    from obstore import exceptions
except ImportError:
    obstore = None

_WHOLE_BYTES = 100 << 20
"""Larger objects are uploaded in parts, as s3fs does."""
_PART_BYTES = 50 << 20
_KEYS_SECONDS = 300.0
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]*)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
_LISTED_AT_ONCE = 1_000
_RANGE_NOT_SATISFIABLE = 416
_CONFLICT = 409
_TRY_AGAIN = {408, 409, 425, 429}
_STALLED = "RequestTimeout"
"""S3's code, with status 400, for an upload whose bytes did not come for some time."""
_CAUSES = re.compile(r'(?:message|error): "([^"]+)"|InvalidCertificate\(\s*(\w+)|\b(TimedOut)\b')
"""Finds why there was no answer, in the client's text for debugging, which holds much else."""
_runs_in: int | None = None  # process in which the client's threads were started
_threads = DaemonThreads(16, "obstore")  # one waits; others may hold requests that Ctrl-C has left
_LISTEN_SECONDS = 0.5
"""Python sleeps through a Ctrl-C that comes as it begins to wait; the next wait hears it."""


class ObstoreStore(RemoteStore):
    """Stores objects below `s3+obstore://bucket/...`."""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        """Take the options of `penstock.storage.stores.s3_credentials`; connect to nothing yet.

        Raises:
            ConfigError: obstore is not installed, or does not know an option.
        """
        super().__init__(url, options)
        if obstore is None:
            raise ConfigError(f"the store '{url}' needs obstore: pip install 'penstock-rl[obstore]'")
        check_options(url, self._options)
        self._bucket, _, prefix = self.url.partition("://")[2].partition("/")
        self._base = f"{prefix}/" if prefix else ""

    def _ask(self, operation: Callable[[S3Store], Result], client: S3Store) -> Result:
        """Make one request, in another thread where this is the main one, which alone hears Ctrl-C.

        The client returns to Python with the answer alone. A request that is left by Ctrl-C may still be answered.
        """
        if threading.current_thread() is not threading.main_thread():
            return operation(client)
        answer = _threads.submit(lambda: operation(client))
        while not answer.done():
            wait([answer], _LISTEN_SECONDS)
        return answer.result()

    def _connect(self) -> S3Store:
        global _runs_in  # noqa: PLW0603  (the client has one set of threads a process)
        if _runs_in not in {None, os.getpid()}:
            raise RuntimeError(
                "obstore was used before this process was forked, and would hang now; start processes by spawn, or "
                "use s3:// instead of s3+obstore://"
            )
        from obstore.store import S3Store  # noqa: PLC0415  (with its package)

        access = S3Access(self._options)
        endpoint = access.endpoint_url
        settings: dict[str, Any] = {"region": access.region, "virtual_hosted_style_request": endpoint is None}
        if endpoint is not None:
            settings["endpoint"] = endpoint.rstrip("/")
        if endpoint is None or endpoint.startswith("https://"):
            settings["unsigned_payload"] = True  # TLS covers it, and a hash of every upload costs
        if access.anonymous:
            settings["skip_signature"] = True
        trusted = {} if access.ca_bundle is None else {"root_certificate": _authorities(access.ca_bundle)}
        store = S3Store(
            self._bucket,
            config=settings,
            client_options={
                **trusted,
                "allow_http": True,
                "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
                "read_timeout": timedelta(seconds=READ_SECONDS),
                "timeout": timedelta(hours=1),  # for a whole transfer; the limit above ends those that hang
                "pool_max_idle_per_host": "32",
            },
            retry_config={"max_retries": 0},
            credential_provider=None if access.anonymous else _provider(access),
        )
        _runs_in = os.getpid()
        return store

    def _get(self, client: S3Store, path: str) -> Bytes:
        return obstore.get(client, path).bytes()

    def _get_range(self, client: S3Store, path: str, start: int, stop: int) -> Bytes | bytes:
        try:
            return obstore.get_range(client, path, start=start, end=stop)
        except exceptions.GenericError as error:
            if _status(error) == _RANGE_NOT_SATISFIABLE:
                return b""
            raise

    def _put(self, client: S3Store, path: str, content: bytes) -> None:
        whole = len(content) <= _WHOLE_BYTES
        obstore.put(client, path, content, use_multipart=not whole, chunk_size=_PART_BYTES, max_concurrency=4)

    def _put_if_absent(self, client: S3Store, path: str, content: bytes) -> None:
        obstore.put(client, path, content, mode="create")

    def _has(self, client: S3Store, path: str) -> bool:
        try:
            obstore.head(client, path)
        except FileNotFoundError:
            return False
        return True

    def _paths_from(self, client: S3Store, start: str) -> builtins.list[str]:
        # The client lists whole folders only, of which names before `start` need not be listed; it leaves out the
        # offset itself.
        folder, _, begun = start.rpartition("/")
        chunks = obstore.list(client, folder or None, offset=start[:-1] if begun else None, chunk_size=_LISTED_AT_ONCE)
        return [str(meta["path"]) for chunk in chunks for meta in chunk]

    def _remove(self, client: S3Store, paths: Sequence[str]) -> None:
        obstore.delete(client, paths)

    def _fault(self, error: Exception) -> Fault:
        if isinstance(error, FileNotFoundError):
            code = _CODE.search(str(error))
            return Fault.PERMANENT if code and code[1] == NO_BUCKET else Fault.MISSING
        status = _status(error)
        if isinstance(error, exceptions.AlreadyExistsError) and status != _CONFLICT:
            return Fault.TAKEN  # a conflict is two concurrent writers, neither done: try again
        if status is not None:
            code = _CODE.search(str(error))
            if code and code[1] == _STALLED:
                return Fault.TRANSIENT
            return Fault.PERMANENT if status < 500 and status not in _TRY_AGAIN else Fault.TRANSIENT
        return Fault.TRANSIENT if isinstance(error, exceptions.GenericError | exceptions.JoinError) else Fault.PERMANENT

    def _message(self, error: Exception) -> str:
        # The client shows the whole response, which for a wrong signature repeats the key's id and the signed text.
        shown, _, debug = str(error).partition("\n\nDebug source:")
        text, answer, _ = shown.partition("<")
        named = [found[1] for found in (_CODE.search(str(error)), _MESSAGE.search(str(error))) if found]
        if answer:
            return ": ".join([text.rstrip(": "), *named])
        causes = [next(filter(None, found)) for found in _CAUSES.findall(debug)] if _status(error) is None else []
        return f"{text} ({', '.join(dict.fromkeys(causes))})" if causes else text


def _authorities(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        # Not as it is: of a missing file, it would read as a missing object.
        raise ValueError(f"AWS_CA_BUNDLE, or ca_bundle of ~/.aws/config, can't be read: {error}") from error


def _provider(access: S3Access) -> Any:
    def keys() -> S3Credential:
        key, secret, token = access.keys()
        expires_at = datetime.now(UTC) + timedelta(seconds=_KEYS_SECONDS)
        return {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": expires_at}

    return keys


def _status(error: Exception) -> int | None:
    """Parse the HTTP status, which the client gives only in its error text."""
    found = _STATUS.search(str(error))
    return int(found[1]) if found else None

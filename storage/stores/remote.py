"""Implements what remote stores share: bounded retries, errors that name the store, counts, whole objects in memory.

A subclass per client makes single requests and classifies their errors. Atomicity comes from the service:
object stores show an object when its upload is complete.
"""

from __future__ import annotations

import enum
import logging
import os
import random
import re
import threading
import time
from abc import ABC, abstractmethod
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from penstock.storage.errors import ConfigError, ObjectExistsError, ObjectNotFoundError, StoreError
from penstock.storage.stores.protocol import check_name, check_range, is_name
from penstock.storage.stores.single_flight import SharedCalls

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """These count since the store was opened in this process, for it and every store made from it with `at`."""

    requests: int = 0
    """Calls of the client, first and later attempts alike; a long listing is one call."""
    retries: int = 0
    """Calls repeated because an earlier attempt failed."""
    hedges: int = 0
    """Calls repeated while an earlier one was still open, because that took unusually long."""


class RequestCounter:
    """Counts requests, and knows whether one was answered; safe for threads. A copy by pickle counts from zero."""

    __slots__ = ("_hedges", "_lock", "_requests", "_retries", "has_answer", "has_warned")

    def __init__(self) -> None:
        self.has_answer = self.has_warned = False
        self._lock = threading.Lock()
        self._requests = self._retries = self._hedges = 0

    def __reduce__(self) -> tuple[type[RequestCounter], tuple[()]]:
        return RequestCounter, ()

    def add(self, *, requests: int = 0, retries: int = 0, hedges: int = 0) -> None:
        """Add to the counts."""
        with self._lock:
            self._requests += requests
            self._retries += retries
            self._hedges += hedges

    def counts(self) -> RequestCounts:
        """Return the counts so far."""
        with self._lock:
            return RequestCounts(self._requests, self._retries, self._hedges)


def request_counts(store: object) -> RequestCounts:
    """Return a store's counts; zeros for one that counts nothing, such as a local folder."""
    counts = getattr(store, "counts", None)
    return counts if isinstance(counts, RequestCounts) else RequestCounts()


Result = TypeVar("Result")
ATTEMPTS = 5
"""Attempts at a service that has not answered yet: its address or the credentials are probably wrong."""
FIRST_WAIT_SECONDS = 0.2
"""Doubled before each further attempt, and shortened at random by up to a half so that clients spread out."""
LONGEST_WAIT_SECONDS = 4.0
RETRY_SECONDS = 20.0
"""No attempt but the second starts later than this after the first: one hanging connection is no reason to give up.

Of a service that has answered before, attempts go on until then: one that restarts refuses connections for seconds."""
CONNECT_SECONDS = 4.0
READ_SECONDS = 30.0
"""An attempt without any data for so long has failed."""
SILENT_SECONDS = 5.0
"""A service that has not answered by then is named in a warning: its retries take a minute or more."""
NO_BUCKET = "NoSuchBucket"
"""S3's code for a missing bucket, which says nothing about an object."""
# A client signs a whole body before it is sent, and some do that in the one thread that also serves all connections.
# With a hundred bodies at once, connections wait for so long that they fail; and each holds a joined copy meanwhile.
_LARGE_BYTES = 1 << 20
_LARGE_AT_ONCE = 8
_BULK_DELETE_OBJECTS = 1_000  # S3's limit
_PASSWORD = re.compile(r"[^/\s'\"@]+:[^/\s'\"@]+@")
_CREDENTIALS = ("key", "secret", "token", "password", "credential")
_log = logging.getLogger(__name__)


class Fault(enum.Enum):
    """These classes of client errors are handled differently."""

    MISSING = enum.auto()
    """There is no object of that name."""
    TAKEN = enum.auto()
    """A conditional creation was refused."""
    PERMANENT = enum.auto()
    """A retry would fail again."""
    TRANSIENT = enum.auto()
    """A retry may succeed."""


class RemoteStore(ABC):
    """Stores objects below a service's url. Subclasses make single requests; names reach them as checked paths."""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        """Take a url without a password, as `open_store` checks; connect to nothing yet."""
        self.url = url if url.endswith("://") else url.rstrip("/")
        self._options = dict(options or {})
        self._counter = RequestCounter()
        self._base = ""
        self._opened: Any = None
        self._opened_by = 0
        self._large_writes = threading.Semaphore(_LARGE_AT_ONCE)
        self._listings: SharedCalls[list[str]] = SharedCalls()

    def __reduce__(self) -> tuple[type[Self], tuple[str, dict[str, Any]]]:
        secret = sorted(_credentials(self._options))
        if secret:
            raise ConfigError(
                f"the store '{self.url}' was opened with {', '.join(secret)} and can't travel to other processes, "
                "because a pickle would hold the credentials; put them into the environment or into the service's own "
                "configuration file"
            )
        return type(self), (self.url, self._options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"  # options may be credentials

    @property
    def counts(self) -> RequestCounts:
        """Count requests and retries so far, of this store and those made from it with `at`, in this process."""
        return self._counter.counts()

    def read(self, name: str) -> bytes:
        """Read a whole object in one request."""
        path = self._path(name)
        return self._call("read", name, lambda client: bytes(self._get(client, path)))

    def view(self, name: str) -> memoryview:
        """Read a whole object into its own memory."""
        path = self._path(name)
        return self._call("read", name, lambda client: memoryview(bytearray(self._get(client, path))))

    def read_range(self, name: str, start: int, stop: int) -> memoryview:
        """Read bytes [start, stop) in one request; an empty range only checks that the object exists."""
        check_range(name, start, stop)
        path = self._base + name
        if start == stop:
            if not self.exists(name):
                self._fail("read", name, FileNotFoundError(path), 1)
            return memoryview(bytearray())
        return self._call(
            "read", name, lambda client: memoryview(bytearray(self._get_range(client, path, start, stop)))
        )

    def write(self, name: str, parts: Sequence[Buffer], *, durable: bool = False) -> None:
        """Store the concatenated parts, which are joined first: one request, and durable when it is answered.

        Large ones wait for each other when very many threads write concurrently.
        """
        del durable
        path = self._path(name)
        large = sum(memoryview(part).nbytes for part in parts) >= _LARGE_BYTES
        with self._large_writes if large else nullcontext():
            content = b"".join(parts)
            self._call("write", name, lambda client: self._put(client, path, content))

    def create(self, name: str, data: bytes) -> None:
        """Store `data` if there is no such object (S3: `If-None-Match: *`)."""
        path = self._path(name)
        self._call("create", name, lambda client: self._put_if_absent(client, path, data))

    def exists(self, name: str) -> bool:
        """Return whether the object exists."""
        path = self._path(name)
        return self._call("check for", name, lambda client: self._has(client, path))

    def list(self, prefix: str = "") -> builtins.list[str]:
        """List names that start with `prefix`, sorted. Concurrent calls for the same prefix share requests."""
        start = self._base + prefix

        def ask() -> builtins.list[str]:
            found = self._call("list", f"{prefix}*", lambda client: list(self._paths_from(client, start)))
            names = (path[len(self._base) :] for path in found if path.startswith(start))
            return sorted(filter(is_name, names))

        return list(self._listings.ask(start, ask))

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects, up to 1000 per request where the service supports that."""
        pending = [(name, self._path(name)) for name in names]
        for first in range(0, len(pending), _BULK_DELETE_OBJECTS):
            batch = pending[first : first + _BULK_DELETE_OBJECTS]
            paths = [path for _, path in batch]
            label = batch[0][0] if len(batch) == 1 else f"{batch[0][0]}, …"
            self._call("delete", label, lambda client, paths=paths: self._remove(client, paths))  # type: ignore[misc]

    def sync(self, names: Iterable[str]) -> None:
        """Check the names and do nothing else: an answered write is durable."""
        for name in names:
            check_name(name)

    def path(self, name: str) -> None:
        """Return None: there is no local file."""
        check_name(name)

    def at(self, prefix: str) -> Self:
        """Return the same store below a folder, with the same connections and counts."""
        prefix = prefix.rstrip("/")
        check_name(prefix)
        below = type(self)(self.url + ("" if self.url.endswith("/") else "/") + prefix, self._options)
        below._counter = self._counter  # noqa: SLF001  (another of this class)
        return below

    def _ask(self, operation: Callable[[Any], Result], client: Any) -> Result:
        """Make one request. A subclass whose client hears no Ctrl-C meanwhile lets another thread wait for it."""
        return operation(client)

    @abstractmethod
    def _connect(self) -> Any:
        """Return a client that does not retry; the methods below receive it."""

    @abstractmethod
    def _get(self, client: Any, path: str) -> Buffer: ...

    @abstractmethod
    def _get_range(self, client: Any, path: str, start: int, stop: int) -> Buffer:
        """Read bytes [start, stop) of an object, with start < stop; none if it ends before `start`."""

    @abstractmethod
    def _put(self, client: Any, path: str, content: bytes) -> None: ...

    @abstractmethod
    def _put_if_absent(self, client: Any, path: str, content: bytes) -> None: ...

    @abstractmethod
    def _has(self, client: Any, path: str) -> bool: ...

    @abstractmethod
    def _paths_from(self, client: Any, start: str) -> Iterable[str]:
        """List all objects whose path begins with `start`, which need not end at a folder's border.

        The result may contain others, such as all objects of the folder.
        """

    @abstractmethod
    def _remove(self, client: Any, paths: Sequence[str]) -> None:
        """Delete up to 1000 objects; missing ones are fine."""

    @abstractmethod
    def _fault(self, error: Exception) -> Fault: ...

    def _path(self, name: str) -> str:
        check_name(name)
        return self._base + name

    def _client(self) -> Any:
        process = os.getpid()
        if self._opened is None or self._opened_by != process:  # no client's threads survive a fork
            self._opened, self._opened_by = self._connect(), process
        return self._opened

    def _call(self, verb: str, name: str, operation: Callable[[Any], Result]) -> Result:
        if self._counter.has_answer:
            return self._repeated(verb, name, operation)
        silence = threading.Timer(SILENT_SECONDS, self._warn_of_silence)
        silence.daemon = True
        silence.start()
        try:
            return self._repeated(verb, name, operation)
        finally:
            silence.cancel()

    def _warn_of_silence(self) -> None:
        """Say once that the service has not answered yet."""
        if not (self._counter.has_answer or self._counter.has_warned):
            self._counter.has_warned = True
            _log.warning("the store '%s' has not answered for %g s; it is waited for", self.url, SILENT_SECONDS)

    def _repeated(self, verb: str, name: str, operation: Callable[[Any], Result]) -> Result:
        give_up_at = time.monotonic() + RETRY_SECONDS
        wait_seconds = FIRST_WAIT_SECONDS
        attempt = 0
        while True:
            attempt += 1
            self._counter.add(requests=1, retries=int(attempt > 1))
            try:
                result = self._ask(operation, self._client())
            except Exception as error:  # noqa: BLE001  (each client has errors of its own; all end as StoreError)
                late = attempt > 1 and time.monotonic() + wait_seconds > give_up_at
                fault = self._fault(error)
                self._counter.has_answer |= fault in {Fault.MISSING, Fault.TAKEN}
                enough = attempt >= ATTEMPTS and not self._counter.has_answer
                if late or enough or fault is not Fault.TRANSIENT:
                    self._fail(verb, name, error, attempt)
            else:
                self._counter.has_answer = True
                return result
            time.sleep(wait_seconds * random.uniform(0.5, 1.0))  # noqa: S311  (no secret)
            wait_seconds = min(2 * wait_seconds, LONGEST_WAIT_SECONDS)

    def _fail(self, verb: str, name: str, error: Exception, attempts: int) -> NoReturn:
        fault = self._fault(error)
        if fault is Fault.TAKEN and verb == "create":
            raise ObjectExistsError(
                f"'{name}' exists already in the store '{self.url}'; read it to see its writer"
            ) from error
        if fault is Fault.MISSING and verb == "read":
            raise ObjectNotFoundError(
                f"there is no object '{name}' in the store '{self.url}'; check the name and the store's url"
            ) from error
        tries = "" if attempts == 1 else f" after {attempts} attempts"
        message = _PASSWORD.sub("***@", " ".join(self._message(error).split()))  # an endpoint may hold one
        raise StoreError(
            f"cannot {verb} '{name}' in the store '{self.url}'{tries}: {type(error).__name__}: {message}; "
            "check that the service can be reached from here, that the bucket exists, and that the credentials allow "
            "this"
        ) from error

    def _message(self, error: Exception) -> str:
        """Return the client's message without credentials."""
        return str(error)


def _credentials(options: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in options.items():
        if isinstance(value, dict):
            yield from _credentials(value, f"{prefix}{name}.")
        elif value is not None and any(word in name.lower() for word in _CREDENTIALS):
            yield prefix + name

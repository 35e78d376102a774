"""Who drives a run: `lease.json`, renewed by the flow, watched by every process that works for it.

No two clocks are compared: whoever looks measures by its own monotonic clock since what it sees last changed. The
lease saves work, for nothing else stops a task when its flow is gone; correctness rests on digests and on commits that
are created only if absent. So the lease needs no more of a store than reading what was written.

One generation drives at a time. A take-over writes generation + 1; the higher generation wins wherever two meet.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from storage.errors import (
    CorruptObjectError,
    LeaseHeldError,
    LeaseLostError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreError,
)
from storage.lease_record import LEASE, Lease, LeaseView

if TYPE_CHECKING:
    from collections.abc import Callable

    from storage.store import Store

__all__ = ["LEASE", "Lease", "LeaseKeeper", "LeaseView", "LeaseWatcher", "acquire"]

_LOOKS_PER_TTL = 3
_SETTLE_SECONDS = 0.2
_ATTEMPTS = 10
_log = logging.getLogger(__name__)


class LeaseWatcher:
    """Tells the tasks of one generation when to leave. One thread per process and run, which `start` begins.

    Args:
        store: of the run.
        generation: that the tasks work for.
        clock: monotonic seconds.
    """

    def __init__(self, store: Store, generation: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._generation = generation
        self._clock = clock
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._view: LeaseView | None = None
        self.reason = ""
        """Why it is lost, in words."""

    @property
    def lost(self) -> bool:
        """True once the generation drives the run no more; stays so."""
        return bool(self.reason)

    def start(self) -> None:
        """Look once, then go on looking every third of the ttl. Raises nothing: a failed look counts as unchanged."""
        if self._thread is None:
            self.look()
            self._thread = threading.Thread(target=self._watch, name="lease-watcher", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread; waits a moment at most, for it may hang in a store that is gone."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=1.0)

    def look(self) -> None:
        """Look once and judge."""
        lease = _look(self._store)
        now = self._clock()
        if self._view is None:
            self._view = LeaseView(lease, now)
        else:
            self._view.observe(lease, now)
        self.reason = self.reason or self._view.lost(self._generation)

    def _watch(self) -> None:
        while self._view is not None and not self.lost:
            if self._stop.wait(self._view.ttl_seconds / _LOOKS_PER_TTL):
                return
            self.look()


class LeaseKeeper:
    """The driver's side: renews the lease until it is released or lost. From `acquire`; a context manager.

    Args:
        store: of the run.
        lease: as written.
        clock: monotonic seconds.
    """

    def __init__(self, store: Store, lease: Lease, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._lease = lease
        self._clock = clock
        self._renewed_at = clock()
        self._mutex = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.reason = ""
        """Why it is lost, in words."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def generation(self) -> int:
        """Of this owner."""
        return self._lease.generation

    @property
    def lost(self) -> bool:
        """True once the run is driven by somebody else, or could be; stays so."""
        return bool(self.reason)

    def start(self) -> None:
        """Begin renewing; once is enough, and `acquire` has done it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep, name="lease-keeper", daemon=True)
            self._thread.start()

    def check(self) -> None:
        """Raise if the run is no longer ours; renews first if that is overdue, as after the process was stopped.

        Raises:
            LeaseLostError: leave the run alone.
        """
        if not self.lost and self._overdue():
            self.renew()
        if self.lost:
            raise LeaseLostError(
                f"this flow ({self._lease}) drives the run no more: {self.reason}. What is committed stands; resume "
                f"the run unless another flow drives it"
            )

    def renew(self) -> None:
        """Renew once. A store that fails is forgiven until one ttl has passed."""
        with self._mutex:
            if self.lost or self._lease.released:
                return
            try:
                self.reason = self._renew()
            except (StoreError, CorruptObjectError) as error:
                _log.warning("the lease was not renewed: %s", error)
                if self._overdue():
                    self.reason = f"it could not be renewed for {self._lease.ttl_seconds:g} s ({error})"

    def release(self) -> None:
        """Stop renewing and say so in storage, so that the next flow need not wait. Doing it again is fine."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=self._lease.ttl_seconds)
        with self._mutex:
            if self._lease.released:
                return
            self._lease = replace(self._lease, sequence=self._lease.sequence + 1, released=True)
            try:
                found = _read(self._store)
                if found is not None and found.token == self._lease.token:
                    self._store.write(LEASE, [self._lease.encode()])
            except (StoreError, CorruptObjectError) as error:
                _log.warning("the lease was not released, and the next flow has to wait for it to run out: %s", error)

    def _keep(self) -> None:
        while not self.lost and not self._stop.wait(self._lease.ttl_seconds / _LOOKS_PER_TTL):
            self.renew()

    def _overdue(self) -> bool:
        return self._clock() - self._renewed_at > self._lease.ttl_seconds

    def _renew(self) -> str:
        """Write the next sequence number; or say why not."""
        found = _read(self._store)
        if found is None:
            # Somebody removed it, which is a way to end a run by hand: not undone, and lost when it runs out.
            raise ObjectNotFoundError(f"'{LEASE}' is not in {self._store.url} any more")
        if found.token != self._lease.token and found.generation >= self._lease.generation:
            return f"the lease was taken over by {found}"
        self._lease = replace(self._lease, sequence=self._lease.sequence + 1)
        self._store.write(LEASE, [self._lease.encode()])
        self._renewed_at = self._clock()
        return ""


def acquire(
    store: Store,
    owner: str,
    ttl_seconds: float,
    *,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> LeaseKeeper:
    """Become the one who drives a run; renewing has begun when this returns.

    A lease that was released, or whose owner is a dead process of this host, is taken over at once. Of another owner
    nothing can be known but whether it renews, so its lease is watched for one ttl of its own.

    Args:
        store: of the run.
        owner: who, in words that help a person to find it, such as a flow run's name.
        ttl_seconds: after so long without renewal others may take over; renewed every third of it.
        sleep: for the time between looks.
        clock: monotonic seconds.

    Raises:
        LeaseHeldError: somebody else drives the run, be it another flow in this very process.
        CorruptObjectError: `lease.json` is none.
        StoreError: the store can't be read or written.
    """
    if not ttl_seconds > 0:
        raise ValueError(f"ttl_seconds is {ttl_seconds}, expected more than 0")
    mine = Lease.of_this_process(owner, ttl_seconds)
    for _ in range(_ATTEMPTS):
        found = _read(store)
        if found is None:
            try:
                store.create(LEASE, mine.encode())
            except ObjectExistsError:
                sleep(_SETTLE_SECONDS)
                continue
            settle_seconds = 0.0
        else:
            if not _wait_until_free(store, found, sleep, clock):
                continue
            mine = replace(mine, generation=found.generation + 1)
            store.write(LEASE, [mine.encode()])
            settle_seconds = min(_SETTLE_SECONDS, ttl_seconds / _LOOKS_PER_TTL)
        keeper = LeaseKeeper(store, mine, clock=clock)
        # Others who saw the same free lease write too. The last one to write has it; a moment shows who that is.
        sleep(settle_seconds)
        written = _read(store)
        if written != mine:
            raise _held(written) if written else StoreError(f"'{LEASE}' was written to {store.url} and is not there")
        keeper.start()
        return keeper
    raise StoreError(
        f"'{LEASE}' in {store.url} comes and goes, or can't be read or created; look what stands there, and resume"
    )


def _wait_until_free(store: Store, found: Lease, sleep: Callable[[float], object], clock: Callable[[], float]) -> bool:
    """Return when the lease may be taken over; False if it vanished meanwhile."""
    if found.released:
        return True
    process = found.owner_process()
    if process == "alive":
        raise _held(found)
    if process == "dead":
        return True
    _log.info("waiting up to %g s to see whether %s still drives the run", found.ttl_seconds, found)
    view = LeaseView(found, clock())
    while not view.expired:
        sleep(found.ttl_seconds / _LOOKS_PER_TTL)
        lease = _read(store)
        if lease is None:
            return False
        if view.observe(lease, clock()):
            if lease.released and lease.token == found.token:
                return False
            raise _held(lease)
    return True


def _held(lease: Lease) -> LeaseHeldError:
    return LeaseHeldError(
        f"the run is driven by {lease.owner} on host {lease.host}, pid {lease.pid} (generation {lease.generation}). "
        f"Wait until it is done, or stop that process (`kill {lease.pid}` on {lease.host}) and resume the run"
    )


def _read(store: Store) -> Lease | None:
    try:
        return Lease.decode(store.read(LEASE))
    except ObjectNotFoundError:
        return None


def _look(store: Store) -> Lease | None:
    """As `_read`, but whatever keeps one from seeing the lease is no more than that."""
    try:
        return _read(store)
    except (StoreError, CorruptObjectError) as error:
        _log.warning("the lease could not be looked at: %s", error)
        return None

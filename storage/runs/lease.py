"""The lease of a run's driver: `lease.json`, renewed by the flow, watched by every process that works for it.

No two clocks are compared: an observer measures on its own monotonic clock the time since the lease last changed. The
lease only saves work, since nothing else stops a task whose flow ended; correctness rests on digests and on
commits that are created only if absent. So the lease requires of a store no more than to read what was written.

One generation drives at a time. A take-over writes generation + 1; of two, the higher generation wins.
"""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Self
from weakref import finalize

from penstock.storage import system
from penstock.storage.errors import (
    CorruptObjectError,
    LeaseHeldError,
    LeaseLostError,
    ObjectExistsError,
    ObjectNotFoundError,
    StoreError,
)
from penstock.storage.runs.lease_state import LEASE, UNKNOWN_TTL_SECONDS, Lease, LeaseView

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.storage.stores.protocol import Store

__all__ = ["LEASE", "Lease", "LeaseKeeper", "LeaseView", "LeaseWatcher", "acquire", "begin", "driver", "refuse_driven"]

_POLLS_PER_TTL = 3
_SETTLE_SECONDS = 0.2
_GENERATION = re.compile(r"timings/[0-9]{8,18}-([0-9]{8,18})\.json")
_ATTEMPTS = 10
_log = logging.getLogger(__name__)
_tokens: set[str] = set()
"""Tokens of the leases that keepers of this process hold or try to get. A lease of this process with another one is
nobody's: an error of the store kept it from being released, or from being known to be written."""


class LeaseWatcher:
    """Watches the lease for the tasks of one generation, in one thread for each process and run; `start` begins it.

    Args:
        store: the run's store.
        generation: the generation that the tasks work for.
        clock: monotonic seconds.
    """

    def __init__(self, store: Store, generation: int, *, clock: Callable[[], float] = system.monotonic) -> None:
        self._store = store
        self._generation = generation
        self._clock = clock
        self._stop = system.event()
        self._thread: system.Thread | None = None
        self._view: LeaseView | None = None
        self.reason = ""
        """The reason why it is lost; empty until then."""

    @property
    def lost(self) -> bool:
        """Return whether the generation has lost the run; stays true."""
        return bool(self.reason)

    def start(self) -> None:
        """Poll once, then every third of the ttl in a thread. Raises nothing: a failed poll counts as unchanged."""
        if self._thread is None:
            self.poll()
            self._thread = system.thread(self._watch, "lease-watcher")
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread; waits at most a second, because it may hang in a store that does not answer."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=1.0)

    def poll(self) -> None:
        """Read the lease once, and update `reason`."""
        lease = _read_if_possible(self._store)
        now = self._clock()
        if self._view is None:
            self._view = LeaseView(lease, now)
        else:
            self._view.observe(lease, now)
        self.reason = self.reason or self._view.lost(self._generation)

    def _watch(self) -> None:
        while self._view is not None and not self.lost:
            if self._stop.wait(self._view.ttl_seconds / _POLLS_PER_TTL):
                return
            self.poll()


class LeaseKeeper:
    """The driver's side: renews the lease until it is released or lost. From `acquire`; a context manager.

    Args:
        store: the run's store.
        lease: the lease as written.
        clock: monotonic seconds.
    """

    def __init__(self, store: Store, lease: Lease, *, clock: Callable[[], float] = system.monotonic) -> None:
        self._store = store
        self._lease = lease
        self._clock = clock
        self._renewed_at = clock()
        self._mutex = system.condition()
        self._stop = system.event()
        self._thread: system.Thread | None = None
        self.reason = ""
        """The reason why it is lost; empty until then."""
        self.problem = ""
        """The store's error if the last renewal failed, such as a full disk; empty otherwise."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def generation(self) -> int:
        """Return the generation of this owner."""
        return self._lease.generation

    @property
    def lost(self) -> bool:
        """Return whether another flow drives the run, or could; stays true."""
        return bool(self.reason)

    def start(self) -> None:
        """Begin to renew; idempotent, and `acquire` has done it."""
        if self._thread is None:
            self._thread = system.thread(self._keep, "lease-keeper")
            self._thread.start()

    def check(self) -> None:
        """Raise if the lease is lost; renews first if that is overdue, as after the process was suspended.

        Raises:
            LeaseLostError: another process holds the lease, or could; the caller must not write there.
        """
        if not self.lost and self._overdue():
            self.renew()
        if self.lost:
            raise LeaseLostError(
                f"this process ({self._lease}) no longer holds the lease of {self._store.url}: {self.reason}. What it "
                f"has committed is intact; resume it, or start it again, unless another process works there"
            )

    def renew(self) -> None:
        """Renew once. Failures of the store are tolerated until one ttl has passed without a renewal."""
        with self._mutex:
            if self.lost or self._lease.released:
                return
            try:
                self.reason = self._renew()
                self.problem = ""
            except (StoreError, CorruptObjectError) as error:
                self.problem = str(error)
                _log.warning("the lease was not renewed: %s", error)
                if self._overdue():
                    self.reason = f"it could not be renewed for {self._lease.ttl_seconds:g} s ({error})"

    def release(self) -> None:
        """Stop renewing, and release the lease in storage so that the next flow need not wait; idempotent."""
        self._stop.set()
        if self._thread is not None and not system.is_current(self._thread):
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
                _log.warning("the lease was not released, and another process must wait until it expires: %s", error)
            finally:
                _tokens.discard(self._lease.token)

    def _keep(self) -> None:
        while not self.lost and not self._stop.wait(self._lease.ttl_seconds / _POLLS_PER_TTL):
            self.renew()

    def _overdue(self) -> bool:
        return self._clock() - self._renewed_at > self._lease.ttl_seconds

    def _renew(self) -> str:
        """Write the next sequence number; returns the reason if the lease is lost, otherwise an empty text."""
        found = _read(self._store)
        if found is None:
            # A removed lease is a way to end a run manually: it is not written again, and expires.
            raise ObjectNotFoundError(
                f"'{LEASE}' is no longer in {self._store.url}; was the run's folder moved or removed?"
            )
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
    sleep: Callable[[float], object] = system.sleep,
    clock: Callable[[], float] = system.monotonic,
) -> LeaseKeeper:
    """Become the driver of a run; renewal has begun when this returns.

    A lease that was released, or whose owner is a dead process of this host, is taken over without waiting; so is one
    of this process that nothing here holds, as an error of the store leaves it. Any other owner is known to be alive
    only by its renewals, so its lease is watched for one ttl of its own. An empty or damaged lease, as a power cut
    leaves it, is watched for 30 s and then taken over.

    Args:
        store: the run's store.
        owner: a text by which a person finds the owner, such as a flow run's name.
        ttl_seconds: other flows may take over after this time without renewal; renewed every third of it.
        sleep: called between polls.
        clock: monotonic seconds.

    Raises:
        LeaseHeldError: another flow drives the run, possibly in this process.
        StoreError: the store can't be read or written.
    """
    if not ttl_seconds > 0:
        raise ValueError(f"ttl_seconds is {ttl_seconds}, expected more than 0")
    return _kept(Lease.of_this_process(owner, ttl_seconds), lambda mine: _taken(store, mine, sleep, clock))


def begin(store: Store, owner: str, ttl_seconds: float) -> LeaseKeeper:
    """Hold a lease below a name that nobody else has, such as a reader's random one. Renewal has begun on return.

    Nobody else can take it, so it is written without a look at what is there. It is not durable: a power cut ends its
    holder too, and what is left of it is treated as any lease that nobody renews.

    Args:
        store: the store below that name.
        owner: a text by which a person finds the owner.
        ttl_seconds: it ends after this time without renewal; renewed every third of it.

    Raises:
        StoreError: the store can't be written.
    """

    def written(mine: Lease) -> LeaseKeeper:
        store.write(LEASE, [mine.encode()])
        return LeaseKeeper(store, mine)

    return _kept(Lease.of_this_process(owner, ttl_seconds), written)


def _kept(mine: Lease, take: Callable[[Lease], LeaseKeeper]) -> LeaseKeeper:
    """Return the keeper that `take` makes of a lease, after it has begun to renew."""
    _tokens.add(mine.token)
    try:
        keeper = take(mine)
    except BaseException:
        _tokens.discard(mine.token)
        raise
    finalize(keeper, _tokens.discard, mine.token).atexit = False  # of one that was never released
    keeper.start()
    return keeper


def _taken(store: Store, mine: Lease, sleep: Callable[[float], object], clock: Callable[[], float]) -> LeaseKeeper:
    """Return the keeper of a lease that was written, and is still there after other takers had time to write theirs."""
    for _ in range(_ATTEMPTS):
        try:
            found = _read(store)
        except CorruptObjectError as error:
            found = _garbled(store, error, sleep, clock)
            if found is None:
                continue
        if found is None:
            try:
                store.create(LEASE, mine.encode())
            except ObjectExistsError:
                # This one, if the answer to the request was lost and the client has sent it again.
                if _read_if_possible(store) != mine:
                    sleep(_SETTLE_SECONDS)
                    continue
            settle_seconds = 0.0
        else:
            if not found.released and not _wait_until_free(store, found, sleep, clock):
                continue
            mine = replace(mine, generation=found.generation + 1)
            store.write(LEASE, [mine.encode()])
            settle_seconds = min(_SETTLE_SECONDS, mine.ttl_seconds / _POLLS_PER_TTL)
        keeper = LeaseKeeper(store, mine, clock=clock)
        # Other flows that saw the same free lease write too. The last writer holds it, as a short wait shows.
        sleep(settle_seconds)
        written = _read(store)
        if written != mine:
            raise _held(written) if written else StoreError(f"'{LEASE}' was written to {store.url}, but does not exist")
        return keeper
    raise StoreError(
        f"'{LEASE}' in {store.url} appears and disappears, or can't be read or created; check the file, then resume "
        f"the run"
    )


def driver(store: Store) -> Lease | None:
    """Return the lease of the flow that drives a run, as far as one read says; None if it is known that none does.

    A lease of another host says who drove it last: whether that process is alive can't be seen from here, and
    `Lease.owner_process` is then `unknown`.
    """
    found = _read_if_possible(store)
    return None if found is None or found.released or found.owner_process() == "dead" else found


def refuse_driven(store: Store) -> None:
    """Refuse a run that a living process of this host drives, as far as one read says: for commands that start slowly.

    Raises:
        LeaseHeldError: another process drives the run.
    """
    found = driver(store)
    if found is not None and found.owner_process() == "alive" and found.pid != system.process().pid:
        raise _held(found)


def _wait_until_free(store: Store, found: Lease, sleep: Callable[[float], object], clock: Callable[[], float]) -> bool:
    """Return when a lease that is not released may be taken over; False if it vanished meanwhile."""
    process = found.owner_process()
    is_own = process == "alive" and found.pid == system.process().pid
    if process == "dead" or (is_own and found.token not in _tokens):
        return True
    if process == "alive":
        raise _held(found)
    _log.info("waiting up to %g s to see whether %s still drives the run", found.ttl_seconds, found)
    view = LeaseView(found, clock())
    while not view.expired:
        sleep(found.ttl_seconds / _POLLS_PER_TTL)
        lease = _read(store)
        if lease is None:
            return False
        if view.observe(lease, clock()):
            if lease.released and lease.token == found.token:
                return False
            raise _held(lease)
    return True


def _garbled(
    store: Store, error: CorruptObjectError, sleep: Callable[[float], object], clock: Callable[[], float]
) -> Lease | None:
    """Watch an empty or damaged lease, as a power cut leaves it, for one ttl of an unknown owner.

    Returns:
        A released lease to take over from; None if the object changed meanwhile, so that it must be read again.
    """
    _log.warning("%s. This command has begun to watch it", error)
    before, began = _bytes(store), clock()
    while clock() - began <= UNKNOWN_TTL_SECONDS:
        sleep(UNKNOWN_TTL_SECONDS / _POLLS_PER_TTL)
        if _bytes(store) != before:
            return None
    # Drivers name their timings by their generation, so the damaged lease had that of the newest one, or the next.
    generations = [int(found[1]) for found in map(_GENERATION.fullmatch, store.list("timings/")) if found]
    owner = f"a driver whose '{LEASE}' was damaged"
    return replace(Lease.of_this_process(owner, 1.0), generation=max(generations, default=0) + 1, released=True)


def _bytes(store: Store) -> bytes | None:
    try:
        return store.read(LEASE)
    except ObjectNotFoundError:
        return None


def _held(lease: Lease) -> LeaseHeldError:
    mine = system.process()
    where, how = f"on host {lease.host}, pid {lease.pid}", f" (`kill {lease.pid}` on {lease.host})"
    if lease.host == mine.host and lease.machine and lease.machine != mine.machine:
        # The pid is one of a container that has the host's name, or of another machine.
        where, how = f"in another container or machine that is called {lease.host}, pid {lease.pid} there", ""
    return LeaseHeldError(
        f"the run is driven by {lease.owner} {where} (generation {lease.generation}). Wait until it is done, or stop "
        f"that process{how} and resume the run"
    )


def _read(store: Store) -> Lease | None:
    try:
        return Lease.decode(store.read(LEASE))
    except ObjectNotFoundError:
        return None


def _read_if_possible(store: Store) -> Lease | None:
    """Return the lease as `_read` does, or None if it cannot be read."""
    try:
        return _read(store)
    except (StoreError, CorruptObjectError) as error:
        _log.warning("the lease could not be read: %s", error)
        return None

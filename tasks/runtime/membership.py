"""A member's life cycle in its gang: report, wait for the start, exchange notifications, leave when asked to."""

from __future__ import annotations

import logging
import os
import socket
import threading
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from distributed import Reschedule, get_worker

from penstock.storage.errors import GangError, LeaseLostError, MemberStoppedError
from penstock.storage.runs.lease import LeaseWatcher
from penstock.storage.runs.run import store_option
from penstock.tasks.runtime import mailbox, shutdown
from penstock.tasks.runtime.events import LogRecord, Preempted, Reported, encode_event
from penstock.tasks.runtime.mailbox import MAILBOX
from penstock.tasks.runtime.waiting import wait_for_object

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from dask.typing import Key
    from distributed import Worker

    from penstock.storage.stores.protocol import Store
    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.events import MemberEvent
    from penstock.tasks.setup.distribution.policies import DistributionPolicy
    from penstock.tasks.setup.distribution.settings import Fragment

Advertisement: TypeAlias = dict[str, Any]
"""The facts by name that a member advertises before the start: small JSON, whose form the name decides."""

_watchers: dict[tuple[str, str, int], tuple[LeaseWatcher, int]] = {}
_watchers_lock = threading.Lock()


class Membership:
    """A context in which a member may work: entered when the whole gang has reported, left when its part is done.

    Raises:
        GangError: the gang did not become whole, or was given up.
        Reschedule: the worker was preempted; Dask runs the member elsewhere.
        LeaseLostError: the flow that started the gang no longer drives the run.
    """

    def __init__(
        self,
        assignment: Assignment,
        store: Store,
        policy: DistributionPolicy,
        advertise: Callable[[str], Advertisement] | None = None,
    ) -> None:
        """Create a membership that is not entered yet.

        Args:
            assignment: of the member.
            store: of the run.
            policy: says which role holds which fragment.
            advertise: returns the facts that others need before they begin, such as a port, from the host's address;
                `advertised` returns them to every member.
        """
        self.assignment = assignment
        self.log = _logger(self)
        self._store = store
        self._policy = policy
        self._topic = assignment.topic
        self._worker = get_worker()
        self._task = self._worker.get_current_task()
        self._failure: BaseException | None = None
        self._advertised = advertise(_host_of(self._worker.address)) if advertise else {}

    def __enter__(self) -> Self:
        mailbox.install(self._worker)
        shutdown.install(self._worker)
        MAILBOX.open(self._topic)
        try:
            self._watcher = _watch(self.assignment, self._store)
        except BaseException:
            MAILBOX.close(self._topic)
            raise
        try:
            self._report()
            self.wait(lambda entries: "roster" in entries, self._report)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        MAILBOX.close(self._topic)
        _unwatch(self.assignment)

    def _report(self) -> bool:
        """Report that this member runs; repeated, because events are lossy. Returns False: the wait continues."""
        member, address = self.assignment.member, self._worker.address
        self.emit_event(Reported(member, address, socket.gethostname(), os.getpid(), self._advertised))
        return False

    def emit_event(self, event: MemberEvent) -> None:
        """Send an event to the flow; small, lossy and immediate."""
        self._worker.log_event(self._topic, encode_event(event))

    def notify(self, fragment: Fragment, key: str, value: Any, replica: int | None = None) -> None:
        """Notify the members on this cluster that hold a fragment, this one included; or one replica alone."""
        # No role holds act in a replay.
        holders = frozenset(role.name for role in self._policy.roles if fragment in role.fragments)
        mailbox.send(self._worker, self._processes(holders, replica), self._topic, {key: value})

    def _processes(self, roles: frozenset[str], replica: int | None = None) -> frozenset[str]:
        """Return the worker addresses of such members on this cluster: each process searches a long roster once."""
        # A restarted member has another address, and all get another roster.
        roster, known = MAILBOX.derived(self._topic, "roster")
        found: frozenset[str] | None = known.get((roles, replica))
        if found is None:
            parted = ((member.rpartition("-"), address) for member, address in roster.items())
            found = known[roles, replica] = frozenset(
                address for (role, _, number), address in parted if role in roles and replica in {None, int(number)}
            )
        return found

    def advertised(self, member: str, name: str) -> Any:
        """Return the value that a member advertised before the start."""
        return MAILBOX.get(self._topic, "advertised")[member][name]

    def advertisements(self, name: str) -> dict[str, Any]:
        """Return the values advertised under a name, by member; without members that advertised none."""
        every: dict[str, Advertisement] = MAILBOX.get(self._topic, "advertised")
        return {member: values[name] for member, values in every.items() if name in values}

    def host_of(self, member: str) -> str:
        """Return the address of a member's host."""
        return _host_of(MAILBOX.get(self._topic, "roster")[member])

    def fail(self, error: BaseException) -> None:
        """Let `check` raise an error of a background thread: the member may wait for what will never come."""
        self._failure = self._failure or error
        self.wake()

    def abandon(self, reason: str) -> None:
        """Make the other components of this gang in the process leave."""
        MAILBOX.post(self._topic, {"leave": reason})

    def share(self, key: str, value: Any) -> None:
        """Notify the members in this process of an object that one of them has found in storage."""
        MAILBOX.post(self._topic, {key: value})

    def latest(self, key: str) -> Any:
        """Return the latest notification of that key, or None."""
        return MAILBOX.get(self._topic, key)

    def wait_notification(self, ready: Callable[[Mapping[str, Any]], bool], timeout_seconds: float) -> bool:
        """Wait until `ready(notifications)`, evaluated now and after each change; returns False on a time-out."""
        return MAILBOX.wait(self._topic, ready, timeout_seconds)

    def wake(self) -> None:
        """Make all waiting threads of this topic evaluate their conditions again."""
        MAILBOX.post(self._topic, {})

    def check(self) -> None:
        """Raise if the member must leave, or what `fail` was given; called between rounds."""
        if self._failure is not None:
            raise self._failure
        if shutdown.is_ending(self._worker):
            self.emit_event(Preempted(self.assignment.member, self._worker.address))
            raise Reschedule(f"{self.assignment.member} leaves stage {self.assignment.stage}: its worker was preempted")
        reason = MAILBOX.get(self._topic, "leave")
        if reason is not None:
            raise MemberStoppedError(f"{self.assignment.member} leaves stage {self.assignment.stage}: {reason}")
        if is_cancelled(self._worker, self._task):
            # A member that was restarted while its gang was given up got no message to leave.
            raise GangError(f"{self.assignment.member} leaves stage {self.assignment.stage}: its task was cancelled")
        if self._watcher.lost:
            raise LeaseLostError(
                f"{self.assignment.member} leaves stage {self.assignment.stage} of run '{self.assignment.run}': "
                f"{self._watcher.reason}; `penstock resume {self.assignment.run}{store_option(self.assignment.store)}` "
                f"resumes from the last commit"
            )

    def wait(self, notified: Callable[[Any], bool], poll: Callable[[], bool], *, of_all: str | None = None) -> float:
        """Wait until a notification or a poll of storage satisfies; raises as `check` meanwhile.

        Args:
            notified: evaluates the topic's notifications.
            poll: polls storage; called after a while without a notification, then with exponential back-off.
            of_all: key of the notification, where all members of the role wait for the same: one in each process polls,
                and shares what it finds with the others (`share`).

        Returns:
            Seconds waited.
        """
        waiters = len(self._processes(frozenset({self.assignment.role}))) if of_all else self.assignment.replicas
        return wait_for_object(MAILBOX, self._topic, notified, poll, self.check, waiters, of_all=of_all)


class _FlowHandler(logging.Handler):
    """Sends a member's log records to the flow, which files them under the role's Prefect task run."""

    def __init__(self, member: Membership) -> None:
        super().__init__()
        self._member = member

    def emit(self, record: logging.LogRecord) -> None:
        assignment = self._member.assignment
        text = record.getMessage()
        self._member.emit_event(LogRecord(assignment.member, assignment.task_run, record.levelno, text))


def is_cancelled(worker: Worker, key: Key) -> bool:
    """Return whether a running task was cancelled: Dask can't stop it, and counts its slot as free already."""
    task = worker.state.tasks.get(key)
    return task is None or task.state == "cancelled"


def _host_of(address: str) -> str:
    """Return `10.0.0.7` of `tcp://10.0.0.7:40001`."""
    return address.split("://", 1)[1].rsplit(":", 1)[0].strip("[]")


def _logger(member: Membership) -> logging.Logger:
    # Not from the registry: it belongs to one member and ends with it.
    logger = logging.Logger(f"penstock.{member.assignment.member}", logging.INFO)  # noqa: LOG001
    logger.addHandler(_FlowHandler(member))
    return logger


def _watch(assignment: Assignment, store: Store) -> LeaseWatcher:
    """Return the watcher that all members of a run in this process share."""
    key = (assignment.store, assignment.run, assignment.generation)
    with _watchers_lock:
        watcher, members = _watchers.get(key) or (None, 0)
        if watcher is None:
            watcher = LeaseWatcher(store, assignment.generation)
            watcher.start()
        _watchers[key] = (watcher, members + 1)
        return watcher


def _unwatch(assignment: Assignment) -> None:
    key = (assignment.store, assignment.run, assignment.generation)
    with _watchers_lock:
        watcher, members = _watchers[key]
        if members > 1:
            _watchers[key] = (watcher, members - 1)
        else:
            del _watchers[key]
            watcher.stop()

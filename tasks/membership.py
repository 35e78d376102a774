"""A member's life in its gang: report, wait for the start, exchange hints, notice when to leave."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Self

from distributed import Reschedule, Status, get_worker

from storage.errors import GangError, LeaseLostError
from storage.lease import LeaseWatcher
from tasks import mailbox, notice
from tasks.looks import first_pause_seconds, next_pause_seconds
from tasks.mailbox import MAILBOX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from storage.store import Store
    from tasks.assignment import Assignment
    from tasks.policies import DistributionPolicy, Fragment

_CLOSING = {Status.closing, Status.closed}

_watchers: dict[tuple[str, str, int], tuple[LeaseWatcher, int]] = {}
_watchers_lock = threading.Lock()


class Membership:
    """A context in which a member may work: entered when the whole gang is there, left when its part is done.

    Raises:
        GangError: the gang did not become whole, or was told to leave.
        Reschedule: the worker was told to end; Dask runs the member elsewhere.
        LeaseLostError: the flow that started the gang is gone.
    """

    def __init__(
        self,
        assignment: Assignment,
        store: Store,
        policy: DistributionPolicy,
        offer: Callable[[str], dict[str, Any]] | None = None,
    ) -> None:
        """Make a membership that is not entered yet.

        Args:
            assignment: whose.
            store: the run's.
            policy: who holds which fragment.
            offer: makes what others must know of this member before they begin, such as a port where it listens, from
                the host's address; small JSON by name, which `offered` returns to everybody.
        """
        self.assignment = assignment
        self.log = _logger(self)
        self._store = store
        self._policy = policy
        self._topic = assignment.topic
        self._worker = get_worker()
        self._task = self._worker.get_current_task()
        self._offers = offer(_host_of(self._worker.address)) if offer else {}
        self._known: tuple[Any, dict[tuple[frozenset[str], int | None], frozenset[str]]] = None, {}

    def __enter__(self) -> Self:
        mailbox.install(self._worker)
        notice.install(self._worker)
        MAILBOX.open(self._topic)
        try:
            self._watcher = _watch(self.assignment, self._store)
        except BaseException:
            MAILBOX.close(self._topic)
            raise
        try:
            self._report()
            self.wait(lambda hints: "roster" in hints, self._report)
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
        """Say that this member is here; again and again, because saying is lossy. False: that alone is no start."""
        facts = {"address": self._worker.address, "host": socket.gethostname(), "pid": os.getpid()}
        self.tell("reported", **facts, offers=self._offers)
        return False

    def tell(self, event: str, **facts: Any) -> None:
        """Tell the flow something; small, lossy and at once."""
        self._worker.log_event(self._topic, {"event": event, "member": self.assignment.member, **facts})

    def hint(self, fragment: Fragment, key: str, value: Any, replica: int | None = None) -> None:
        """Hint the members on this cluster that hold a fragment, this one included if it does; or one replica alone."""
        # Nobody holds act in a replay.
        holders = frozenset(role.name for role in self._policy.roles if fragment in role.fragments)
        mailbox.send(self._worker, self._processes(holders, replica), self._topic, {key: value})

    def _processes(self, roles: frozenset[str], replica: int | None = None) -> frozenset[str]:
        """Addresses of those on this cluster that such members share. A roster of thousands is gone through once."""
        roster: dict[str, str] = MAILBOX.get(self._topic, "roster")
        known_of, known = self._known
        if known_of is not roster:  # one that was begun again is elsewhere
            known = {}
            self._known = roster, known
        if (roles, replica) not in known:
            parted = ((member.rpartition("-"), address) for member, address in roster.items())
            known[roles, replica] = frozenset(
                address for (role, _, number), address in parted if role in roles and replica in {None, int(number)}
            )
        return known[roles, replica]

    def offered(self, member: str, name: str) -> Any:
        """What a member offered before the start."""
        return MAILBOX.get(self._topic, "offers")[member][name]

    def offers(self, name: str) -> dict[str, Any]:
        """What members offered under a name before the start, by member; without those that did not."""
        every: dict[str, dict[str, Any]] = MAILBOX.get(self._topic, "offers")
        return {member: offered[name] for member, offered in every.items() if name in offered}

    def host_of(self, member: str) -> str:
        """The address under which a member's host is reached."""
        return _host_of(MAILBOX.get(self._topic, "roster")[member])

    def abandon(self, reason: str) -> None:
        """Tell whoever plays another half of a gang's member in this process to leave."""
        MAILBOX.post(self._topic, {"leave": reason})

    def found(self, key: str, value: Any) -> None:
        """Hint the members in this process: what a look into storage has found for all of them."""
        MAILBOX.post(self._topic, {key: value})

    def hinted(self, key: str) -> Any:
        """The latest hint of that key, or None."""
        return MAILBOX.get(self._topic, key)

    def wait_hint(self, ready: Callable[[Mapping[str, Any]], bool], timeout_seconds: float) -> bool:
        """Wait for hints alone: `ready` judges them after every change, and once at first; False: the time is over."""
        return MAILBOX.wait(self._topic, ready, timeout_seconds)

    def wake(self) -> None:
        """Let everybody who waits for hints judge again."""
        MAILBOX.post(self._topic, {})

    def check(self) -> None:
        """Raise if it is time to leave; called between rounds."""
        if notice.is_ending(self._worker):
            self.tell(notice.LEFT)
            raise Reschedule(
                f"{self.assignment.member} leaves stage {self.assignment.stage}: its worker was told to end"
            )
        reason = MAILBOX.get(self._topic, "leave")
        if reason is not None:
            raise GangError(f"{self.assignment.member} leaves stage {self.assignment.stage}: {reason}")
        if self._worker.status in _CLOSING:
            # As when its scheduler is gone. Dask waits half a minute for the task before it ends the process.
            raise GangError(f"{self.assignment.member} leaves stage {self.assignment.stage}: its worker is closing")
        task = self._worker.state.tasks.get(self._task)
        if task is None or task.state == "cancelled":
            # Dask can't stop what runs. Left alone, a member that was begun again while its gang was given up, and so
            # was not told to leave, would hold the place of one of the next gang.
            raise GangError(f"{self.assignment.member} leaves stage {self.assignment.stage}: its task was cancelled")
        if self._watcher.lost:
            raise LeaseLostError(
                f"{self.assignment.member} leaves stage {self.assignment.stage} of run '{self.assignment.run}': "
                f"{self._watcher.reason}; `penstock resume {self.assignment.run}` goes on from the last commit"
            )

    def wait(self, hinted: Callable[[Any], bool], look: Callable[[], bool], *, of_all: str | None = None) -> float:
        """Wait until a hint satisfies, or a look into storage does; leave when told to.

        Args:
            hinted: judges the topic's hints.
            look: looks into storage; called if nothing was hinted for a while, then ever more seldom.
            of_all: the hint's key, where all members of the role wait for the same: one in each process looks, and
                says to the others what was `found`.

        Returns:
            Seconds waited.
        """
        start = time.perf_counter()
        lookers = len(self._processes(frozenset({self.assignment.role}))) if of_all else self.assignment.replicas
        # What is made on another cluster is not hinted here, so looking is all there is.
        pause = first_pause_seconds(lookers, far=bool(MAILBOX.get(self._topic, "elsewhere")))
        while not MAILBOX.wait(self._topic, lambda hints: "leave" in hints or hinted(hints), pause):
            self.check()
            if (of_all is None or MAILBOX.may_look(self._topic, of_all, pause)) and look():
                break
            pause = next_pause_seconds(pause, lookers)
        self.check()
        return time.perf_counter() - start


class _FlowHandler(logging.Handler):
    """Sends a member's log records to the flow, which files them under the role's Prefect task run."""

    def __init__(self, member: Membership) -> None:
        super().__init__()
        self._member = member

    def emit(self, record: logging.LogRecord) -> None:
        self._member.tell(
            "log", task_run=self._member.assignment.task_run, level=record.levelno, text=record.getMessage()
        )


def _host_of(address: str) -> str:
    """Of `tcp://10.0.0.7:40001`."""
    return address.split("://", 1)[1].rsplit(":", 1)[0].strip("[]")


def _logger(member: Membership) -> logging.Logger:
    # Not from the registry: it belongs to one member and is gone with it.
    logger = logging.Logger(f"penstock.{member.assignment.member}", logging.INFO)  # noqa: LOG001
    logger.addHandler(_FlowHandler(member))
    return logger


def _watch(assignment: Assignment, store: Store) -> LeaseWatcher:
    """One watcher serves all members of a run in this process."""
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

"""A stage's gang, seen from the flow: admitted whole or not at all, started together, told to leave together.

What it costs does not grow with the number of members but for one line in a graph and one event each: members of a role
are submitted in one graph, report through Dask's event stream, and are started by one broadcast.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from distributed import as_completed
from distributed.scheduler import KilledWorker

from storage.errors import GangError, MemberLostError, PenstockError
from tasks import mailbox
from tasks.placement import works_in_step
from tasks.places import move_blocked, worker_addresses
from tasks.replica import run_member

if TYPE_CHECKING:
    from distributed import Client, Future

    from tasks.assignment import Assignment
    from tasks.policies import DistributionPolicy, Role

logger = logging.getLogger(__name__)

# Long enough to tell who lives; who is dead needs no telling.
_LEAVE_SECONDS = 1.0
_MOVE_SECONDS = 1.0
_CAUSE_SECONDS = 3.0
_LOOK_SECONDS = 0.05

EventHandler = Callable[[dict[str, Any]], None]


@dataclass(slots=True)
class Member:
    """What is known of a member: where it runs, since its latest report."""

    address: str
    host: str
    pid: int
    reports: int = 1
    offers: dict[str, Any] = field(default_factory=dict)
    """What the other members have to know of it."""


@dataclass(slots=True)
class Gang:
    """All members of one attempt at one stage. `submit` and `results` are called by role tasks, in their threads."""

    client: Client
    policy: DistributionPolicy
    template: Assignment
    """Every member's assignment but for role, replica and task run."""
    on_event: EventHandler
    """Gets the members' events that the gang has no use for: progress and log records."""
    members: dict[str, Member] = field(default_factory=dict)
    error: BaseException | None = None
    """The first thing that went wrong with any member."""
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _settling: threading.Lock = field(default_factory=threading.Lock)
    _futures: list[Future[Any]] = field(default_factory=list)
    _started: bool = False
    _closed: threading.Event = field(default_factory=threading.Event)
    _flow_run: Context = field(default_factory=copy_context)

    @property
    def expected(self) -> list[str]:
        """Names of all members."""
        return [f"{role.name}-{replica}" for role in self.policy.roles for replica in range(role.replicas)]

    def listen(self) -> None:
        """Begin to hear the members; before any is submitted."""
        self.client.subscribe_topic(self.template.topic, self._hear)
        threading.Thread(target=self._keep_moving, name="gang-places", daemon=True).start()

    def close(self) -> None:
        """Stop hearing, and let Dask forget the members."""
        self._closed.set()
        self.client.unsubscribe_topic(self.template.topic)
        if self.error is not None:
            self.leave(str(self.error))
            self.client.cancel(self._futures)
        self._futures.clear()

    def submit(self, role: Role, task_run: str) -> list[Future[Any]]:
        """One Dask task a replica, on the role's resources, logging under a Prefect task run."""
        assignments = [
            replace(self.template, role=role.name, replica=replica, replicas=role.replicas, task_run=task_run).to_json()
            for replica in range(role.replicas)
        ]
        topic = self.template.topic
        futures: list[Future[Any]] = self.client.map(
            run_member,
            assignments,
            key=[f"{role.name}-{replica} {topic} {task_run}" for replica in range(role.replicas)],
            resources=dict(role.resources),
            # Impure: what a member does depends on what is stored. If its process dies Dask runs it again (at most
            # `distributed.scheduler.allowed-failures` times), and it goes on from what is stored.
            pure=False,
            retries=0,
        )
        with self._changed:
            self._futures += futures
        return futures

    def results(self, futures: list[Future[Any]]) -> list[dict[str, Any]]:
        """What the members of a role return; the first failure of any makes all leave."""
        try:
            collected = [result for _, result in as_completed(futures, loop=self.client.loop, with_results=True)]
        except BaseException as error:
            # One after the other: while a cause is looked for, members that are told to leave say no more than that.
            with self._settling:
                explained = self._cause_of(explain(error))
                self.fail(explained)
            told = self.error or explained
            if told is error:
                raise
            raise told from error
        return sorted(collected, key=lambda result: int(result["member"].rsplit("-", 1)[1]))

    def start(self, gang_seconds: float) -> None:
        """Wait until every member has reported, then start them together.

        Raises:
            GangError: not all reported in time; names who is missing.
        """
        deadline = time.monotonic() + gang_seconds
        with self._changed:
            while self.error is None and len(self.members) < len(self.expected):
                if not self._changed.wait(deadline - time.monotonic()):
                    missing = [name for name in self.expected if name not in self.members]
                    self.error = GangError(
                        f"stage {self.template.stage}: {', '.join(missing)} did not report within {gang_seconds:g} s; "
                        f"{len(self.members)} of {len(self.expected)} members did. Look at the Dask workers, or raise "
                        f"cluster.gang_seconds"
                    )
            if self.error is not None:
                raise self.error
            self._started = True
        self._broadcast(self._roster())

    def fail(self, error: BaseException) -> None:
        """Remember the first error, and tell all members to leave."""
        with self._changed:
            first = self.error is None
            self.error = self.error or error
            self._changed.notify_all()
        if first:
            self.leave(str(error))

    def _cause_of(self, error: BaseException) -> BaseException:
        """Why a member lost another one: what the other one failed with, or who is gone from the cluster.

        Members that work in step feel it when one leaves, often before the flow hears of the one that left.
        """
        if not isinstance(error, MemberLostError):
            return error
        self.leave(str(error))
        deadline = time.monotonic() + _CAUSE_SECONDS
        while time.monotonic() < deadline and self.error is None:
            failed = [future.exception() for future in list(self._futures) if future.status == "error"]
            causes = [cause for cause in failed if cause is not None and not isinstance(cause, GangError)]
            if causes:
                return explain(causes[0])
            there = set(self.client.run_on_scheduler(worker_addresses))
            gone = [name for name, member in self.members.items() if member.address not in there]
            if gone:
                return _lost(gone)
            time.sleep(_LOOK_SECONDS)
        return self.error or error

    def leave(self, reason: str) -> None:
        """Tell all members to leave between rounds."""
        if self.members:
            self._broadcast({"leave": reason}).join(_LEAVE_SECONDS)

    def _keep_moving(self) -> None:
        """As long as the gang is there, see that no member waits for a place on a full worker."""
        while not self._closed.wait(_MOVE_SECONDS):
            try:
                moved = self.client.run_on_scheduler(move_blocked, topic=self.template.topic)
            except Exception as error:  # noqa: BLE001  (the client may be closing; the next look will tell)
                logger.debug("could not look at places topic=%s error=%s", self.template.topic, error)
                continue
            for key in moved:
                self._warn("moved member=%s to a worker with room", key.split(" ", 1)[0])

    def _broadcast(self, entries: dict[str, Any]) -> threading.Thread:
        """Post into the members' mailboxes, in a thread: to reach a worker that has just died takes Dask 30 s."""
        thread = threading.Thread(target=self._deliver, args=(entries,), name="gang-broadcast", daemon=True)
        thread.start()
        return thread

    def _deliver(self, entries: dict[str, Any]) -> None:
        addresses = sorted({member.address for member in self.members.values()})
        try:
            self.client.run(
                mailbox.deliver, self.template.topic, entries, workers=addresses, wait=False, on_error="ignore"
            )
        except Exception as error:  # noqa: BLE001  (a hint; and the client may be closing)
            logger.debug("broadcast lost topic=%s error=%s", self.template.topic, error)

    def _hear(self, stamped: tuple[float, dict[str, Any]]) -> None:
        """Runs in the client's event loop: quick, and never raising."""
        event = stamped[1]
        if event["event"] != "reported":
            self.on_event(event)
            return
        name = event["member"]
        with self._changed:
            earlier = self.members.get(name)
            moved = earlier is None or (earlier.address, earlier.pid) != (event["address"], event["pid"])
            if moved:
                reports = earlier.reports + 1 if earlier else 1
                self.members[name] = Member(event["address"], event["host"], event["pid"], reports, event["offers"])
            started = self._started
            if started and moved and works_in_step(self.policy):
                self.error = self.error or _lost([name])
            error = self.error
            self._changed.notify_all()
        if started and error is not None and moved:
            self._broadcast({"leave": str(error)})
            return
        if started and error is None:
            # It was restarted, or has not heard the start: either way it waits for the roster.
            if moved:
                self._warn("member=%s came back on worker=%s", name, event["address"])
            self._broadcast(self._roster())

    def _warn(self, text: str, *values: str) -> None:
        """Log under the flow run that made the gang, from whichever thread."""
        self._flow_run.copy().run(logger.warning, text, *values)

    def _roster(self) -> dict[str, Any]:
        return {
            "roster": {name: member.address for name, member in self.members.items()},
            "offers": {name: member.offers for name, member in self.members.items()},
        }


def _lost(names: list[str]) -> MemberLostError:
    return MemberLostError(
        f"{', '.join(names)} was lost with the process that ran it, and who works in step with it can't go on; a "
        f"worker that keeps dying is often out of memory. The last commit stands: look at the worker's log, then resume"
    )


def explain(error: BaseException) -> BaseException:
    """What a member's failure means, for people; errors of ours say it themselves."""
    if isinstance(error, PenstockError):
        return error
    if isinstance(error, KilledWorker):
        return GangError(
            f"{str(error.task).split(' ', 1)[0]} was lost {error.allowed_failures + 1} times with the process that ran "
            f"it, lastly on {error.last_worker.address}; a worker that keeps dying is often out of memory. The last "
            f"commit stands: look at the worker's log, then resume"
        )
    return GangError(f"a member failed with {type(error).__name__}: {error}")

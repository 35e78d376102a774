"""A stage's gang, driven by the flow: admitted whole or not at all, started together and stopped together.

Its cost grows with the number of members only by one graph entry and one event each: members of a role are submitted in
one graph, report through Dask's event stream, and are started by one broadcast.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import CancelledError
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from distributed import as_completed, span

from penstock.storage.errors import GangError, MemberLeftError, MemberLostError, MemberStoppedError
from penstock.storage.records import RecordError
from penstock.tasks.driver.admission import rpc
from penstock.tasks.driver.failures import explain, gone, lost
from penstock.tasks.driver.forgetting import SPAN
from penstock.tasks.driver.worker_slots import reschedule_blocked, unschedulable_tasks, worker_addresses
from penstock.tasks.roles.worker.entrypoint import run_member
from penstock.tasks.runtime import mailbox
from penstock.tasks.runtime.events import LogRecord, Preempted, Reported, decode_event
from penstock.tasks.setup.distribution.dataflow import works_in_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from distributed import Future

    from penstock.tasks.driver.admission import Allocation
    from penstock.tasks.driver.cluster import Cluster, Clusters
    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.events import MemberEvent
    from penstock.tasks.runtime.results import MemberResult
    from penstock.tasks.setup.distribution.policies import DistributionPolicy, Role

logger = logging.getLogger(__name__)

# Long enough to notify all members that still run.
_LEAVE_SECONDS = 1.0
_RESCHEDULE_SECONDS = 1.0
_WORKERS = "all"
"""Topic on which Dask's schedulers announce workers that join and leave."""
# A nanny restarts a worker that died within this time.
_SLOT_SECONDS = 10.0
_ROSTER_SECONDS = 0.05
"""Reports of so long are answered by one roster: all members of a lost worker report again at once, and members of a
large gang, which repeat their reports until the roster comes, report until it has arrived everywhere."""
_CAUSE_SECONDS = 3.0
_POLL_SECONDS = 0.05
_SHOWN_MEMBERS = 20


@dataclass(slots=True)
class Member:
    """A member's process, as of its latest report."""

    cluster: Cluster
    address: str
    host: str
    pid: int
    reports: int = 1
    advertised: Mapping[str, object] = field(default_factory=dict)
    """Facts by name that the other members need."""


@dataclass(slots=True)
class Gang:
    """All members of one attempt at one stage. `submit` and `results` are called by role tasks, in their threads."""

    clusters: Clusters
    policy: DistributionPolicy
    template: Assignment
    """The assignment of every member, except role, replica and task run."""
    on_event: Callable[[MemberEvent], None]
    """Called with the members' progress and log events."""
    allocation: Allocation = field(default_factory=dict)
    """By role, the cluster of each member; known once the gang is admitted."""
    members: dict[str, Member] = field(default_factory=dict)
    error: BaseException | None = None
    """The first error of any member."""
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _settling: threading.Lock = field(default_factory=threading.Lock)
    _futures: list[Future[Any]] = field(default_factory=list)
    _gone: set[str] = field(default_factory=set)
    """Addresses of workers that were removed, until a member reports from there again."""
    _started: bool = False
    _ended: set[str] = field(default_factory=set)
    """Members whose worker was preempted, and will not be restarted."""
    _closed: threading.Event = field(default_factory=threading.Event)
    _roster_is_due: bool = False
    _flow_run: Context = field(default_factory=copy_context)
    _ahead: dict[str, list[Future[Any]]] = field(default_factory=dict)
    """By role, the members that were submitted before their role had a task run."""
    _task_runs: dict[str, str] = field(default_factory=dict)
    """By role, the task run of members that were submitted before it."""
    _unfiled: list[LogRecord] = field(default_factory=list)
    """Records of members whose role has no task run yet."""

    @property
    def expected(self) -> list[str]:
        """Return the names of all members."""
        return [f"{role}-{replica}" for role, taken in self.allocation.items() for replica in range(len(taken))]

    def listen(self) -> None:
        """Subscribe to the members' events; called before any is submitted."""
        for cluster in self.clusters.every:
            rpc(
                cluster,
                partial(cluster.client.subscribe_topic, self.template.topic, partial(self._on_message, cluster)),
            )
            rpc(cluster, partial(cluster.client.subscribe_topic, _WORKERS, self._on_worker_event))
        threading.Thread(target=self._keep_rescheduling, name="gang-slots", daemon=True).start()

    def close(self) -> None:
        """Unsubscribe, and make Dask forget the members."""
        self._closed.set()
        if self.error is not None:
            self.leave(str(self.error))
        for cluster, futures in self._by_cluster(self._futures):
            with suppress(Exception):  # the cluster was lost, and the subscriptions with it
                cluster.client.unsubscribe_topic(_WORKERS)
                cluster.client.unsubscribe_topic(self.template.topic)
            if self.error is not None:
                self._cancel(cluster, futures)
        self._futures.clear()

    def _cancel(self, cluster: Cluster, futures: list[Future[Any]]) -> None:
        try:
            if futures and cluster.client.status == "running":
                cluster.client.cancel(futures)
        except Exception as error:  # noqa: BLE001  (the cluster was just lost, and its tasks with it)
            logger.debug("could not cancel address=%s error=%s", cluster.address, error)

    def submit_ahead(self, role: Role) -> None:
        """Submit a role before it has a Prefect task run: `submit` returns its members later, and files their logs."""
        self._ahead[role.name] = self._submit(role, "")

    def submit(self, role: Role, task_run: str) -> list[Future[Any]]:
        """Submit one Dask task a replica, with the role's resources; their logs go to a Prefect task run."""
        futures = self._ahead.pop(role.name, None)
        if futures is None:
            try:
                return self._submit(role, task_run)
            except BaseException as error:
                self.fail(explain(error))  # the other roles wait for these members
                raise
        with self._changed:
            self._task_runs[role.name] = task_run
            records, self._unfiled = self._unfiled, []
        for record in records:
            self._file(record)
        return futures

    def enter_flow_run(self) -> None:
        """Log to the flow run that calls this from now on: the gang was made before it."""
        self._flow_run = copy_context()

    def _submit(self, role: Role, task_run: str) -> list[Future[Any]]:
        allocation, topic = self.allocation[role.name], self.template.topic
        futures: list[Future[Any]] = []
        for cluster in dict.fromkeys(allocation):
            replicas = [replica for replica, allocated in enumerate(allocation) if allocated is cluster]
            assignments = [
                replace(
                    self.template, role=role.name, replica=replica, replicas=len(allocation), task_run=task_run
                ).to_json()
                for replica in replicas
            ]
            with span(SPAN):
                futures += cluster.client.map(
                    run_member,
                    assignments,
                    key=[f"{role.name}-{replica} {topic} {task_run}" for replica in replicas],
                    resources=dict(role.resources),
                    # Impure: a member depends on stored objects. If its process dies, Dask runs it again (at most
                    # `distributed.scheduler.allowed-failures` times), and it continues from what is stored.
                    pure=False,
                    retries=0,
                )
        with self._changed:
            self._futures += futures
        return futures

    def results(self, futures: list[Future[Any]]) -> list[MemberResult]:
        """Return the results of a role's members; the first failure of any makes all leave."""
        try:
            # Not `with_results`: it never returns for a member that lost its result with its process and then fails.
            done = as_completed(futures, loop=futures[0].client.loop).batches()
            collected = [
                result
                for batch in done
                for cluster, own in self._by_cluster(batch)
                for result in self._gather(cluster, own)
            ]
        except BaseException as error:
            # Under a lock: while one thread searches for the cause, other members fail because they were made to leave.
            with self._settling:
                explained = explain(error)
                try:
                    explained = self._cause_of(explained)
                except Exception as unanswered:  # noqa: BLE001  (a scheduler was lost too)
                    logger.debug("could not read the cause topic=%s error=%s", self.template.topic, unanswered)
                self.fail(explained)
            first = self.error or explained
            if first is error:
                raise
            raise first from error
        return sorted(collected, key=lambda result: int(result.member.rsplit("-", 1)[1]))

    def _by_cluster(self, futures: list[Future[Any]]) -> Iterator[tuple[Cluster, list[Future[Any]]]]:
        for cluster in self.clusters.every:
            yield cluster, [future for future in futures if future.client is cluster.client]

    def _gather(self, cluster: Cluster, futures: list[Future[Any]]) -> list[MemberResult]:
        try:
            results: list[MemberResult] = cluster.client.gather(futures)
        except CancelledError as error:
            if self.error is not None:
                raise
            raise gone(cluster) from error
        return results

    def start(self, gang_seconds: float) -> None:
        """Wait until every member has reported, then start them together.

        Raises:
            GangError: not all reported in time; names the missing members.
        """
        deadline, expected = time.monotonic() + gang_seconds, self.expected
        with self._changed:
            while self.error is None and len(self.members) < len(expected):
                if not self._changed.wait(deadline - time.monotonic()):
                    missing = [name for name in expected if name not in self.members]
                    shown = ", ".join(missing[:_SHOWN_MEMBERS])
                    if len(missing) > _SHOWN_MEMBERS:
                        shown += f" and {len(missing) - _SHOWN_MEMBERS} more"
                    self.error = GangError(
                        f"stage {self.template.stage}: {shown} did not report within {gang_seconds:g} s; "
                        f"{len(self.members)} of {len(expected)} members did. Check the Dask workers, each of which "
                        f"needs a thread for each of its slots (`--nthreads`), or raise cluster.gang_seconds"
                    )
            if self.error is not None:
                raise self.error
            self._started = True
        self._broadcast(self._roster)

    def fail(self, error: BaseException) -> None:
        """Record the first error, and make all members leave."""
        with self._changed:
            first = self.error is None
            self.error = self.error or error
            self._changed.notify_all()
        if first:
            self.leave(str(error) or type(error).__name__)  # an interrupt has no message

    def _cause_of(self, error: BaseException) -> BaseException:
        """Return the cause for which a member lost another one: the other's error, or members whose workers were lost.

        Members that synchronise within a round notice the loss of another one, often before the flow does; those in
        the process of one that failed are told to leave, and may be heard first.
        """
        if not isinstance(error, MemberLostError | MemberStoppedError):
            return error
        self.leave(str(error))
        deadline = time.monotonic() + _CAUSE_SECONDS
        while time.monotonic() < deadline and self.error is None:
            failed = [future.exception() for future in list(self._futures) if future.status == "error"]
            causes = [cause for cause in failed if cause is not None and not isinstance(cause, GangError)]
            if causes:
                return explain(causes[0])
            addresses = {cluster: cluster.client.run_on_scheduler(worker_addresses) for cluster in self.clusters.every}
            missing = [
                name for name, member in list(self.members.items()) if member.address not in addresses[member.cluster]
            ]
            if missing:
                return lost(missing)
            time.sleep(_POLL_SECONDS)
        return self.error or error

    def leave(self, reason: str) -> None:
        """Make all members leave between rounds."""
        deadline = time.monotonic() + _LEAVE_SECONDS
        for thread in self._broadcast(lambda _: {"leave": reason}):
            thread.join(max(0.0, deadline - time.monotonic()))

    def _keep_rescheduling(self) -> None:
        """While members are missing, reschedule those on full workers, and give up those that fit on no worker.

        After an error, members are told to leave until all have: one that did not hear it would wait for ever.
        """
        waiting: dict[str, float] = {}
        telling: list[threading.Thread] = []
        while not self._closed.wait(_RESCHEDULE_SECONDS):
            if (error := self.error) is not None and not any(thread.is_alive() for thread in telling):
                reason = str(error) or type(error).__name__
                telling = self._broadcast(lambda _, reason=reason: {"leave": reason})  # type: ignore[misc]
            # A scheduler logs every function that it is asked to run, so it is asked only while members are missing.
            if self._whole():
                waiting.clear()
                continue
            without: list[str] = []
            for cluster in self.clusters.every:
                try:
                    moved = cluster.client.run_on_scheduler(reschedule_blocked, topic=self.template.topic)
                    without += cluster.client.run_on_scheduler(unschedulable_tasks, topic=self.template.topic)
                except Exception as error:  # noqa: BLE001  (the client may be closing; the next poll will show)
                    logger.debug("could not read the slots topic=%s error=%s", self.template.topic, error)
                    continue
                for key in moved:
                    self._warn("rescheduled member=%s on a worker with a free slot", key.split(" ", 1)[0])
            now = time.monotonic()
            waiting = {member: waiting.get(member, now) for member in (key.split(" ", 1)[0] for key in without)}
            self._shrink([name for name in waiting if name in self._ended or now - waiting[name] > _SLOT_SECONDS])
            if self.error is not None:
                # They will not run, and so can't be made to leave.
                for cluster, futures in self._by_cluster(list(self._futures)):
                    self._cancel(cluster, [future for future in futures if future.key in without])

    def _shrink(self, names: list[str]) -> None:
        """Restart the stage with fewer members if some fit on no worker, and their role may shrink."""
        needed = {role.name: role.needed for role in self.policy.roles}
        if any(len(self.allocation[role]) > needed[role] for role in (name.rsplit("-", 1)[0] for name in names)):
            self.fail(MemberLeftError(f"no worker has a slot for {', '.join(names)}, and their role may shrink"))

    def _whole(self) -> bool:
        """Return whether every member runs, according to their events and those of the schedulers."""
        with self._changed:
            running = [self.members[name] for name in self.expected if name in self.members and name not in self._ended]
            return len(running) == len(self.expected) and all(member.address not in self._gone for member in running)

    def _on_worker_event(self, stamped: tuple[float, Mapping[str, str]]) -> None:
        """Handle a scheduler's event about a worker, in the client's event loop."""
        _, event = stamped
        if event.get("action") == "remove-worker":
            with self._changed:
                self._gone.add(event["worker"])

    def _broadcast(self, entries: Callable[[Cluster], Mapping[str, object]]) -> list[threading.Thread]:
        """Post into the members' mailboxes, in threads: Dask takes 30 s to notice that a worker has just died."""
        threads = []
        for cluster in self.clusters.every:
            # Copied at once: before the start, members are added by the client's event loop.
            members = list(self.members.values())
            addresses = sorted({member.address for member in members if member.cluster is cluster})
            if addresses:
                arguments = (cluster, addresses, entries(cluster))
                threads.append(
                    threading.Thread(target=self._deliver, args=arguments, name="gang-broadcast", daemon=True)
                )
                threads[-1].start()
        return threads

    def _deliver(self, cluster: Cluster, addresses: list[str], entries: Mapping[str, object]) -> None:
        try:
            cluster.client.run(
                mailbox.deliver, self.template.topic, entries, workers=addresses, wait=False, on_error="ignore"
            )
        except Exception as error:  # noqa: BLE001  (notifications may be lost; and the client may be closing)
            logger.debug("broadcast lost topic=%s error=%s", self.template.topic, error)

    def _on_message(self, cluster: Cluster, stamped: tuple[float, object]) -> None:
        """Handle a member's event, in the client's event loop: quick, and never raising."""
        try:
            event = decode_event(stamped[1])
        except RecordError as error:
            self._warn("ignored an event of another version of Penstock: %s", str(error))
            return
        if isinstance(event, Preempted):
            self._left(event)
        elif isinstance(event, Reported):
            self._reported(cluster, event)
        elif isinstance(event, LogRecord) and not event.task_run:
            self._file(event)
        else:
            self.on_event(event)

    def _file(self, record: LogRecord) -> None:
        """Pass on a record of a member that was submitted ahead, once its role has a task run."""
        with self._changed:
            task_run = self._task_runs.get(record.member.rsplit("-", 1)[0])
            if task_run is None:
                self._unfiled.append(record)
                return
        self.on_event(replace(record, task_run=task_run))

    def _reported(self, cluster: Cluster, event: Reported) -> None:
        """Handle the report of a member that runs, for the first time or again."""
        name = event.member
        with self._changed:
            earlier = self.members.get(name)
            moved = earlier is None or (earlier.address, earlier.pid) != (event.address, event.pid)
            if moved:
                reports = earlier.reports + 1 if earlier else 1
                self.members[name] = Member(cluster, event.address, event.host, event.pid, reports, event.advertised)
                self._gone.discard(event.address)
            started = self._started
            if started and moved and works_in_step(self.policy):
                self.error = self.error or lost([name])
            error = self.error
            self._ended.discard(name)
            self._changed.notify_all()
        if started and error is not None and moved:
            self._broadcast(lambda _: {"leave": str(error)})
            return
        if started and error is None:
            # It was restarted, or has not received the start: either way it waits for the roster.
            if moved:
                self._warn("member=%s was restarted on worker=%s", name, event.address)
            self._send_roster_soon()

    def _send_roster_soon(self) -> None:
        """Send the roster to all members, once for all that report meanwhile."""
        with self._changed:
            if self._roster_is_due:
                return
            self._roster_is_due = True
        threading.Thread(target=self._send_due_roster, name="gang-roster", daemon=True).start()

    def _send_due_roster(self) -> None:
        if self._closed.wait(_ROSTER_SECONDS):
            return
        with self._changed:
            self._roster_is_due = False
        self._broadcast(self._roster)

    def _left(self, event: Preempted) -> None:
        """Handle a preempted member: it resumes elsewhere, or the stage restarts if members synchronise in a round."""
        name = event.member
        with self._changed:
            latest = self.members.get(name)
            if name in self._ended or (latest is not None and latest.address != event.address):
                return  # both the worker and the member say so, and maybe when its successor has reported
            self._ended.add(name)
        self._warn("member=%s leaves a preempted worker", name)
        if not works_in_step(self.policy):
            return
        with self._changed:
            self.error = self.error or MemberLeftError(
                f"{name} left its preempted worker, and the members that synchronise with it can't continue"
            )
            error = self.error
            self._changed.notify_all()
        self._broadcast(lambda _: {"leave": str(error)})

    def _warn(self, text: str, *values: str) -> None:
        """Log to the flow run that made the gang, from any thread."""
        self._flow_run.copy().run(logger.warning, text, *values)

    def _roster(self, cluster: Cluster) -> Mapping[str, object]:
        """Return the roster of a cluster: notifications stay within it, as clusters may share nothing but storage."""
        near = {name: member for name, member in list(self.members.items()) if member.cluster is cluster}
        return {
            "roster": {name: member.address for name, member in near.items()},
            "advertised": {name: member.advertised for name, member in near.items()},
            "elsewhere": len(near) < len(self.members),
        }

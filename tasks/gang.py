"""A stage's gang, seen from the flow: admitted whole or not at all, started together, told to leave together.

What it costs does not grow with the number of members but for one line in a graph and one event each: members of a role
are submitted in one graph, report through Dask's event stream, and are started by one broadcast.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from distributed import as_completed
from distributed.scheduler import KilledWorker

from storage.errors import GangError, MemberLeftError, MemberLostError, PenstockError
from tasks import mailbox
from tasks.admission import asked
from tasks.notice import LEFT
from tasks.placement import works_in_step
from tasks.places import move_blocked, placeless, worker_addresses
from tasks.replica import run_member

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distributed import Future

    from tasks.admission import Seats
    from tasks.assignment import Assignment
    from tasks.cluster import Cluster, Clusters
    from tasks.policies import DistributionPolicy, Role

logger = logging.getLogger(__name__)

# Long enough to tell who lives; who is dead needs no telling.
_LEAVE_SECONDS = 1.0
_MOVE_SECONDS = 1.0
_WORKERS = "all"
"""Where Dask's schedulers say which workers come and go."""
# In which a nanny brings a worker back that died.
_PLACE_SECONDS = 10.0
_CAUSE_SECONDS = 3.0
_LOOK_SECONDS = 0.05

EventHandler = Callable[[dict[str, Any]], None]


@dataclass(slots=True)
class Member:
    """What is known of a member: where it runs, since its latest report."""

    cluster: Cluster
    address: str
    host: str
    pid: int
    reports: int = 1
    offers: dict[str, Any] = field(default_factory=dict)
    """What the other members have to know of it."""


@dataclass(slots=True)
class Gang:
    """All members of one attempt at one stage. `submit` and `results` are called by role tasks, in their threads."""

    clusters: Clusters
    policy: DistributionPolicy
    template: Assignment
    """Every member's assignment but for role, replica and task run."""
    on_event: EventHandler
    """Gets the members' events that the gang has no use for: progress and log records."""
    seats: Seats = field(default_factory=dict)
    """By role, the cluster of each member; known when it is admitted."""
    members: dict[str, Member] = field(default_factory=dict)
    error: BaseException | None = None
    """The first thing that went wrong with any member."""
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _settling: threading.Lock = field(default_factory=threading.Lock)
    _futures: list[Future[Any]] = field(default_factory=list)
    _gone: set[str] = field(default_factory=set)
    """Addresses of workers that left, until a member reports from there again."""
    _started: bool = False
    _ended: set[str] = field(default_factory=set)
    """Members whose worker was told to end, and will not be brought back."""
    _closed: threading.Event = field(default_factory=threading.Event)
    _flow_run: Context = field(default_factory=copy_context)

    @property
    def expected(self) -> list[str]:
        """Names of all members."""
        return [f"{role}-{replica}" for role, places in self.seats.items() for replica in range(len(places))]

    def listen(self) -> None:
        """Begin to hear the members; before any is submitted."""
        for cluster in self.clusters.every:
            asked(cluster, partial(cluster.client.subscribe_topic, self.template.topic, partial(self._hear, cluster)))
            asked(cluster, partial(cluster.client.subscribe_topic, _WORKERS, self._hear_of_workers))
        threading.Thread(target=self._keep_moving, name="gang-places", daemon=True).start()

    def close(self) -> None:
        """Stop hearing, and let Dask forget the members."""
        self._closed.set()
        if self.error is not None:
            self.leave(str(self.error))
        for cluster, futures in self._by_cluster(self._futures):
            with suppress(Exception):  # of a cluster that is gone; what it had is gone with it
                cluster.client.unsubscribe_topic(_WORKERS)
                cluster.client.unsubscribe_topic(self.template.topic)
            if self.error is not None:
                self._cancel(cluster, futures)
        self._futures.clear()

    def _cancel(self, cluster: Cluster, futures: list[Future[Any]]) -> None:
        try:
            if futures and cluster.client.status == "running":
                cluster.client.cancel(futures)
        except Exception as error:  # noqa: BLE001  (the cluster has just gone, and they with it)
            logger.debug("could not cancel address=%s error=%s", cluster.address, error)

    def submit(self, role: Role, task_run: str) -> list[Future[Any]]:
        """One Dask task a replica, on the role's resources, logging under a Prefect task run."""
        seats, topic = self.seats[role.name], self.template.topic
        futures: list[Future[Any]] = []
        for cluster in dict.fromkeys(seats):
            replicas = [replica for replica, seat in enumerate(seats) if seat is cluster]
            futures += cluster.client.map(
                run_member,
                [
                    replace(
                        self.template, role=role.name, replica=replica, replicas=len(seats), task_run=task_run
                    ).to_json()
                    for replica in replicas
                ],
                key=[f"{role.name}-{replica} {topic} {task_run}" for replica in replicas],
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
            # Not `with_results`: it waits for ever for one whose process died with its result, if it then fails.
            done = as_completed(futures, loop=futures[0].client.loop).batches()
            collected = [
                result
                for batch in done
                for cluster, own in self._by_cluster(batch)
                for result in self._gather(cluster, own)
            ]
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

    def _by_cluster(self, futures: list[Future[Any]]) -> Iterator[tuple[Cluster, list[Future[Any]]]]:
        for cluster in self.clusters.every:
            yield cluster, [future for future in futures if future.client is cluster.client]

    def _gather(self, cluster: Cluster, futures: list[Future[Any]]) -> list[dict[str, Any]]:
        try:
            results: list[dict[str, Any]] = cluster.client.gather(futures)
        except CancelledError as error:
            if self.error is not None:
                raise
            raise gone(cluster) from error
        return results

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
        self._broadcast(self._roster)

    def fail(self, error: BaseException) -> None:
        """Remember the first error, and tell all members to leave."""
        with self._changed:
            first = self.error is None
            self.error = self.error or error
            self._changed.notify_all()
        if first:
            self.leave(str(error) or type(error).__name__)  # an interrupt says nothing of itself

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
            there = {cluster: cluster.client.run_on_scheduler(worker_addresses) for cluster in self.clusters.every}
            missing = [name for name, member in self.members.items() if member.address not in there[member.cluster]]
            if missing:
                return _lost(missing)
            time.sleep(_LOOK_SECONDS)
        return self.error or error

    def leave(self, reason: str) -> None:
        """Tell all members to leave between rounds."""
        deadline = time.monotonic() + _LEAVE_SECONDS
        for thread in self._broadcast(lambda _: {"leave": reason}):
            thread.join(max(0.0, deadline - time.monotonic()))

    def _keep_moving(self) -> None:
        """While members are missing, see that none waits for a place on a full worker, or for one in vain."""
        waiting: dict[str, float] = {}
        while not self._closed.wait(_MOVE_SECONDS):
            # A scheduler logs whatever it is asked to run, so it is asked only where there is something to find.
            if self._whole():
                waiting.clear()
                continue
            without: list[str] = []
            for cluster in self.clusters.every:
                try:
                    moved = cluster.client.run_on_scheduler(move_blocked, topic=self.template.topic)
                    without += cluster.client.run_on_scheduler(placeless, topic=self.template.topic)
                except Exception as error:  # noqa: BLE001  (the client may be closing; the next look will tell)
                    logger.debug("could not look at places topic=%s error=%s", self.template.topic, error)
                    continue
                for key in moved:
                    self._warn("moved member=%s to a worker with room", key.split(" ", 1)[0])
            now = time.monotonic()
            waiting = {member: waiting.get(member, now) for member in (key.split(" ", 1)[0] for key in without)}
            self._shrink([name for name in waiting if name in self._ended or now - waiting[name] > _PLACE_SECONDS])
            if self.error is not None:
                # They will not run, and so can't be told to leave.
                for cluster, futures in self._by_cluster(list(self._futures)):
                    self._cancel(cluster, [future for future in futures if future.key in without])

    def _shrink(self, names: list[str]) -> None:
        """Have the stage begin again with fewer members where some wait in vain for a place, if it may."""
        needed = {role.name: role.needed for role in self.policy.roles}
        if any(len(self.seats[role]) > needed[role] for role in (name.rsplit("-", 1)[0] for name in names)):
            self.fail(MemberLeftError(f"no place is left for {', '.join(names)}, and fewer will do"))

    def _whole(self) -> bool:
        """Whether every member runs, for all that was heard of them and of their workers."""
        with self._changed:
            running = [self.members[name] for name in self.expected if name in self.members and name not in self._ended]
            return len(running) == len(self.expected) and all(member.address not in self._gone for member in running)

    def _hear_of_workers(self, stamped: tuple[float, dict[str, Any]]) -> None:
        """Runs in the client's event loop."""
        _, event = stamped
        if event.get("action") == "remove-worker":
            with self._changed:
                self._gone.add(event["worker"])

    def _broadcast(self, entries: Callable[[Cluster], dict[str, Any]]) -> list[threading.Thread]:
        """Post into the members' mailboxes, in threads: to reach a worker that has just died takes Dask 30 s."""
        threads = []
        for cluster in self.clusters.every:
            addresses = sorted({member.address for member in self.members.values() if member.cluster is cluster})
            if addresses:
                arguments = (cluster, addresses, entries(cluster))
                threads.append(
                    threading.Thread(target=self._deliver, args=arguments, name="gang-broadcast", daemon=True)
                )
                threads[-1].start()
        return threads

    def _deliver(self, cluster: Cluster, addresses: list[str], entries: dict[str, Any]) -> None:
        try:
            cluster.client.run(
                mailbox.deliver, self.template.topic, entries, workers=addresses, wait=False, on_error="ignore"
            )
        except Exception as error:  # noqa: BLE001  (a hint; and the client may be closing)
            logger.debug("broadcast lost topic=%s error=%s", self.template.topic, error)

    def _hear(self, cluster: Cluster, stamped: tuple[float, dict[str, Any]]) -> None:
        """Runs in the client's event loop: quick, and never raising."""
        event = stamped[1]
        if event["event"] == LEFT:
            self._left(event["member"])
            return
        if event["event"] != "reported":
            self.on_event(event)
            return
        name = event["member"]
        with self._changed:
            earlier = self.members.get(name)
            moved = earlier is None or (earlier.address, earlier.pid) != (event["address"], event["pid"])
            if moved:
                reports = earlier.reports + 1 if earlier else 1
                at, offers = (event["address"], event["host"], event["pid"]), event["offers"]
                self.members[name] = Member(cluster, *at, reports, offers)
                self._gone.discard(event["address"])
            started = self._started
            if started and moved and works_in_step(self.policy):
                self.error = self.error or _lost([name])
            error = self.error
            self._ended.discard(name)
            self._changed.notify_all()
        if started and error is not None and moved:
            self._broadcast(lambda _: {"leave": str(error)})
            return
        if started and error is None:
            # It was restarted, or has not heard the start: either way it waits for the roster.
            if moved:
                self._warn("member=%s came back on worker=%s", name, event["address"])
            self._broadcast(self._roster)

    def _left(self, name: str) -> None:
        """A member's worker was told to end: it goes on elsewhere, or where members work in step, all begin again."""
        self._warn("member=%s leaves a worker that was told to end", name)
        self._ended.add(name)
        if not works_in_step(self.policy):
            return
        with self._changed:
            self.error = self.error or MemberLeftError(
                f"{name} left with a worker that was told to end, and who works in step with it can't go on"
            )
            error = self.error
            self._changed.notify_all()
        self._broadcast(lambda _: {"leave": str(error)})

    def _warn(self, text: str, *values: str) -> None:
        """Log under the flow run that made the gang, from whichever thread."""
        self._flow_run.copy().run(logger.warning, text, *values)

    def _roster(self, cluster: Cluster) -> dict[str, Any]:
        """Who can be told something: those on the same cluster. Between clusters there may be no way but storage."""
        near = {name: member for name, member in self.members.items() if member.cluster is cluster}
        return {
            "roster": {name: member.address for name, member in near.items()},
            "offers": {name: member.offers for name, member in near.items()},
            "elsewhere": len(near) < len(self.members),
        }


def gone(cluster: Cluster) -> GangError:
    """What is said when a cluster with members of a gang is lost."""
    return GangError(
        f"the Dask scheduler at {cluster.address} is gone, and with it the members that it had. The last commit "
        f"stands: start it and its workers again, or name another one, then resume the run"
    )


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

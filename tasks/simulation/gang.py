"""A simulated gang: starts members on hosts, restarts those that died, and carries their messages.

It stands for Dask, whose guarantees it has and no more: a member that dies is run again a few times, a message may be
lost, late or doubled, and a member that was told to leave may not have heard it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.storage.errors import GangError
from penstock.tasks.runtime.mailbox import Mailbox
from penstock.tasks.simulation.members import SimulatedMembership, run_member
from penstock.tasks.simulation.world import SimulatedProcess, SimulatedThread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.results import MemberResult
    from penstock.tasks.simulation.cluster import SimulatedCluster
    from penstock.tasks.simulation.world import Host

_RESTARTS = 3


class SimulatedGang:
    """The members of one attempt at a stage.

    Args:
        cluster: on which they run.
        template: the assignment of every member, except role, replica and number of replicas.
    """

    def __init__(self, cluster: SimulatedCluster, template: Assignment) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._flow = cluster.world.thread.process
        self._template = template
        self._results: dict[str, MemberResult] = {}
        self._error: BaseException | None = None
        self._waiting: list[SimulatedThread] = []
        self._deaths: dict[str, int] = {}
        self._processes: dict[tuple[str, int], SimulatedProcess] = {}

    def run(self) -> list[MemberResult]:
        """Run all members to their end; raises the first error of any, after which all leave."""
        members = [
            replace(self._template, role=role.name, replica=replica, replicas=role.replicas)
            for role in self._cluster.policy.roles
            for replica in range(role.replicas)
        ]
        for assignment in members:
            self._start(assignment)
        while self._error is None and len(self._results) < len(members):
            self._world.wait_in(self._waiting, None)
        if self._error is not None:
            self._leave(str(self._error))
            raise self._error
        return [self._results[assignment.member] for assignment in members]

    def _start(self, assignment: Assignment) -> None:
        if self._flow.dead or self._error is not None:
            return
        world, cluster = self._world, self._cluster
        process = SimulatedProcess(
            world, self._host_of(assignment), assignment.role, lambda error: self._exited(assignment, error)
        )
        self._processes[assignment.role, assignment.replica] = process
        cluster.joined(process, self._flow)

        def work() -> None:
            mailbox = Mailbox()
            process.memory["mailbox"] = mailbox
            context = cluster.context_on(process.host)
            member = SimulatedMembership(world, assignment, context, mailbox, self._send)
            result = run_member(world, assignment, context, member)
            world.after(world.rng.random() * 0.05, self._finished, result)

        process.start(work)

    def _host_of(self, assignment: Assignment) -> Host:
        hosts = self._cluster.hosts
        return hosts[(assignment.replica + (assignment.role == "act")) % len(hosts)]

    def _finished(self, result: MemberResult) -> None:
        self._results[result.member] = result
        self._end_wait()

    def _exited(self, assignment: Assignment, error: BaseException | None) -> None:
        """Handle the end of a member's process, which may have sent its result before."""
        if error is not None:
            self._world.note(f"{assignment.member} failed: {error}")
            self._world.after(self._world.rng.random() * 0.05, self._failed, error)
            return
        self._world.after(self._world.rng.uniform(0.2, 3.0), self._died, assignment)

    def _failed(self, error: BaseException) -> None:
        self._error = self._error or error
        self._end_wait()

    def _died(self, assignment: Assignment) -> None:
        if assignment.member in self._results or self._flow.dead or self._error is not None:
            return
        deaths = self._deaths[assignment.member] = self._deaths.get(assignment.member, 0) + 1
        if deaths > _RESTARTS:
            self._failed(GangError(f"{assignment.member} was lost {deaths} times"))
        else:
            self._world.note(f"{assignment.member} is run again")
            self._start(assignment)

    def _end_wait(self) -> None:
        for thread in self._waiting:
            thread.wake()

    def _leave(self, reason: str) -> None:
        for role, replica in list(self._processes):
            if self._world.rng.random() < 0.9:
                self._post(self._processes[role, replica], {"leave": reason})

    def _send(self, role: str, replica: int | None, entries: Mapping[str, Any]) -> None:
        """Send a notification to the members of a role, or to one of them; lossy."""
        sender, network = self._world.thread.process, self._cluster.network
        for (to_role, to_replica), process in list(self._processes.items()):
            if to_role != role or replica not in {None, to_replica}:
                continue
            if process is sender:
                process.memory["mailbox"].post(self._template.topic, entries)
            elif self._world.rng.random() >= network.loss:
                self._post(process, entries)
                if self._world.rng.random() < network.repeated:
                    self._post(process, entries)

    def _post(self, process: SimulatedProcess, entries: Mapping[str, Any]) -> None:
        seconds = self._world.rng.random() * self._cluster.network.delay_seconds
        self._world.after(seconds, self._arrive, process, entries)

    def _arrive(self, process: SimulatedProcess, entries: Mapping[str, Any]) -> None:
        mailbox = process.memory.get("mailbox")
        if not process.dead and mailbox is not None:
            SimulatedThread(
                self._world, process, lambda: mailbox.post(self._template.topic, entries), "notification"
            ).start()

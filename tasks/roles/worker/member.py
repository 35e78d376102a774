"""Runs one member of a gang: the components that its role's fragments make up, in one process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from penstock.tasks.data.input.hand_over import HandedRows, HandOver
from penstock.tasks.data.snapshots.handed_versions import HandedVersions
from penstock.tasks.roles.acting.act import act
from penstock.tasks.roles.learning.learn import learn_stage
from penstock.tasks.roles.learning.parameter_server import serve
from penstock.tasks.roles.learning.shard_feed import learned_columns
from penstock.tasks.roles.reducing.gradient_links import GRADIENTS, GradientListener
from penstock.tasks.roles.stepping.server import EnvironmentServer, env, served_tiles
from penstock.tasks.runtime.device import find_device, visible_gpus
from penstock.tasks.runtime.process_group import RENDEZVOUS_PORT, Rendezvous
from penstock.tasks.setup.distribution.dataflow import compose, tiles_of
from penstock.tasks.setup.distribution.gpus import GPUS, VisibleGpus, device_indices

if TYPE_CHECKING:
    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.membership import Advertisement, Membership
    from penstock.tasks.runtime.results import ComponentResult
    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.setup.distribution.dataflow import Component


class Member:
    """A member, composed of its role's fragments. A context manager, whose end closes its server."""

    def __init__(self, assignment: Assignment, context: RunContext) -> None:
        role = next(role for role in context.policy.roles if role.name == assignment.role)
        composition = compose(role.fragments)
        if composition is None:
            raise TypeError(f"no component consists of {sorted(role.fragments)}; check_supported refuses such a policy")
        self.assignment = assignment
        self.context = context
        self.composition = composition
        self._rendezvous: Rendezvous | None = None
        self._server: EnvironmentServer | None = None
        self._listener: GradientListener | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in (self._server, self._listener):
            if server is not None:
                server.close()

    def advertise(self, host: str) -> Advertisement:
        """Return the facts that others need before they begin.

        The GPUs that this member may compute on, and the rendezvous of learners, the address for their gradients or
        the served environments.
        """
        return {**self._gpus(host), **self._servers(host)}

    def _gpus(self, host: str) -> Advertisement:
        components, pools = self.composition.components, self.context.policy.pools
        if not {"learn", "server"} & set(components) and not ("act" in components and pools == "torch"):
            return {}
        seen = visible_gpus(self.assignment.device)
        return {GPUS: VisibleGpus(host, seen).to_json()} if seen else {}

    def _servers(self, host: str) -> Advertisement:
        if "env" in self.composition.components:
            tiles = tiles_of(self.assignment.replica, self.assignment.replicas, self.context.config.environment.tiles)
            last_round = self.context.rounds_of(self.assignment.stage)[-1]
            self._server = EnvironmentServer(
                self.context,
                tiles,
                last_round,
                host,
                self.assignment.member,
                self.context.commit_before(self.assignment),
            )
            return self._server.advertisement()
        if "server" in self.composition.components:
            return self._gradients(host)
        if (
            self.context.policy.reduce == "local"
            or (self.context.policy.reduce == "allreduce" and self.assignment.replicas == 1)
            or self.assignment.replica
            or "learn" not in self.composition.components
        ):
            return {}
        self._rendezvous = Rendezvous(host, self.assignment.gang_seconds)
        return {RENDEZVOUS_PORT: self._rendezvous.port}

    def _gradients(self, host: str) -> Advertisement:
        if self.context.config.distribution.max_staleness is None:
            return {}
        learners = self.context.policy.role_of("learn").replicas
        self._listener = GradientListener(host, self.assignment.member, learners, self.assignment.gang_seconds)
        return {GRADIENTS: self._listener.address.to_json()}

    def play(self, membership: Membership) -> tuple[ComponentResult, ...]:
        """Run all components to the end: the last in this thread, others concurrently.

        Returns:
            The result of each component.

        Raises:
            PenstockError: the first error; the other component has left as well.
        """
        *others, own = self.composition.components
        gpus = membership.advertisements(GPUS)
        if self.assignment.member in gpus:
            index = device_indices(gpus)[self.assignment.member]
            self.assignment = replace(self.assignment, device=f"cuda:{index}")
        hand_over = self._hand_over(membership)
        failed: list[BaseException] = []

        def run(component: Component) -> ComponentResult:
            try:
                return self._play(component, membership, hand_over)
            except BaseException as error:
                failed.append(error)
                membership.abandon(str(error))
                raise

        with ThreadPoolExecutor(max(1, len(others)), thread_name_prefix="component") as threads:
            futures = {component: threads.submit(run, component) for component in others}
            try:
                last = run(own)
                return (*(future.result() for future in futures.values()), last)
            except BaseException as error:
                if failed and failed[0] is not error:
                    raise failed[0] from error
                raise

    def _hand_over(self, membership: Membership) -> HandOver | None:
        """Return the exchange between actor and learner, if this member has both.

        With a quorum below 1, what is learned depends on what is stored, so there is none.
        """
        context, assignment = self.context, self.assignment
        if not {"act", "learn"} <= set(self.composition.components) or not context.config.requires_full_round:
            return None
        lag, first_round = context.config.schedule.lag, context.rounds_of(assignment.stage).start
        versions = HandedVersions(
            context.algorithm.actor_groups,
            context.config.distribution.snapshot_dtype,
            find_device(assignment.device if context.policy.pools == "torch" else "cpu"),
            lag,
            membership.wake,
        )
        return HandOver(HandedRows(learned_columns(context), first_round, lag, membership.wake), versions)

    def _play(self, component: Component, membership: Membership, hand_over: HandOver | None) -> ComponentResult:
        assignment, context = self.assignment, self.context
        if component == "act":
            served = served_tiles(membership) if self.composition.pools == "remote" else None
            return act(assignment, context, membership, served, hand_over)
        if component == "server":
            return serve(assignment, context, membership, self._listener)
        if component == "learn":
            return learn_stage(assignment, context, membership, self._rendezvous, hand_over)
        if self._server is None:
            raise RuntimeError("environments are served only after they were advertised")
        return env(assignment, self._server, membership)

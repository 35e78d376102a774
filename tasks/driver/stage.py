"""Runs one stage: admits its gang, which acts and learns, evaluates the snapshot, and commits the results.

A stage needs Prefect from its first task run on, and imports it then: a gang that is started ahead needs none.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from uuid import uuid4

from penstock.storage.errors import GangError, LeaseLostError
from penstock.storage.runs.commits import commit_ref
from penstock.storage.runs.timings import MemberPlace, StageTimings
from penstock.tasks.driver.admission import admitted
from penstock.tasks.driver.attempts import current_attempt, repeat_until_done
from penstock.tasks.driver.early_stopping import EvaluatedReturns
from penstock.tasks.driver.forgetting import EndedGangs
from penstock.tasks.driver.gang import Gang
from penstock.tasks.driver.results import (
    by_component,
    check_agreement,
    check_sources,
    league_after,
    merge_learned,
    stage_commit,
    sum_edges,
    usage_by_process,
)
from penstock.tasks.setup.config.run import TrainConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from prefect.futures import PrefectFuture

    from penstock.storage.refs import SnapshotRef
    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.runs.lease import LeaseKeeper
    from penstock.storage.runs.run import RunFolder
    from penstock.tasks.driver.admission import Allocation
    from penstock.tasks.driver.cluster import Clusters
    from penstock.tasks.driver.gang import Member
    from penstock.tasks.driver.results import GangResults, Learned
    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.events import MemberEvent
    from penstock.tasks.runtime.results import ActResult, MemberResult
    from penstock.tasks.setup.config.run import RunConfig
    from penstock.tasks.setup.distribution.policies import DistributionPolicy, Role


@dataclass(frozen=True, slots=True)
class GatheredGang:
    """A gang whose members were started."""

    gang: Gang
    started: float
    """Start of its stage, by `time.perf_counter`; the seconds below count from it."""
    started_at: float
    """The same as a time since the epoch."""
    admitted_seconds: float
    gathered_seconds: float
    running: list[PrefectFuture[list[MemberResult]]]
    """The task runs of its roles; none if they have not begun yet."""
    taken_over_seconds: float | None = None
    """Known if it was started ahead of its flow run, and then taken over."""


@dataclass(frozen=True, slots=True)
class EndedGang:
    """A gang whose members have all ended their stage."""

    gathered: GatheredGang
    members: list[MemberResult]
    """In the order of the roles, and of the members in each."""
    results: GangResults

    @property
    def sources(self) -> dict[str, str]:
        """Return the digest of the algorithm's source that each member had."""
        return {one.member: one.source for one in self.members}


@dataclass(frozen=True, slots=True)
class StageDriver:
    """Runs stages of one run on its clusters, one after the other."""

    config: RunConfig
    run: RunFolder
    policy: DistributionPolicy
    clusters: Clusters
    lease: LeaseKeeper
    genesis: str
    """Parent of the first commit: the digest of what determines the run's bytes."""
    template: Assignment
    on_event: Callable[[MemberEvent], None]
    _ended: EndedGangs = field(default_factory=EndedGangs)
    _ahead: list[GatheredGang] = field(default_factory=list)
    """The gang that was started ahead of its stage, if any."""
    _returns: EvaluatedReturns = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_returns", EvaluatedReturns(self.run, self.config.schedule))

    def run_stage(self, before: Commit | None, *, is_first: bool = True) -> tuple[Commit, StageTimings]:
        """Run the stage after a commit, and commit it.

        Args:
            before: the commit; None before the first stage.
            is_first: whether it is the first stage that is run here. Later ones wait longer for workers to return.

        Returns:
            The commit, and the stage's timings.

        Raises:
            PenstockError: the stage failed for good; the commit before it is intact.
        """
        stage = before.stage + 1 if before else 0
        committed = repeat_until_done(
            self.run,
            stage,
            lambda attempt, first: self._run_attempt(stage, attempt, before, was_large_enough=not first),
            is_first=is_first,
            check=self.lease.check,
        )
        from penstock.tasks.driver.prefect_tasks import forget_task_runs  # noqa: PLC0415  (see above)

        forget_task_runs()
        return committed

    def _run_attempt(
        self, stage: int, attempt: int, before: Commit | None, *, was_large_enough: bool
    ) -> tuple[Commit, StageTimings]:
        gathered = self._taken_over(stage) if self._ahead else None
        if gathered is None:
            gathered = self._gather(
                stage,
                attempt,
                before,
                lambda gang, role: _submit(stage, gang, role),
                was_large_enough=was_large_enough,
            )
        ended = self._await_members(stage, gathered)
        learned = merge_learned(stage, ended.results, owners=self.policy.reduce == "agents")
        check_sources(stage, ended.sources)
        check_agreement(stage, learned.shards, ended.results.act, whole=self.config.requires_full_round)
        self.lease.check()
        worked_seconds = time.perf_counter() - gathered.started
        evaluation = self._evaluate(stage, attempt, learned, gathered.gang.allocation)
        evaluated_seconds = time.perf_counter() - gathered.started
        commit = stage_commit(
            self.config.schedule,
            stage,
            commit_ref(before).digest if before else self.genesis,
            before,
            learned,
            ended.results.act,
            evaluation,
            self._returns.until(before),
            self._league_after(stage, before, learned),
        )
        self.lease.check()  # an evaluation may take longer than the ttl
        self.run.log.append(commit)
        return commit, self._timings(stage, attempt, ended, learned, worked_seconds, evaluated_seconds)

    def _await_members(self, stage: int, gathered: GatheredGang) -> EndedGang:
        """Wait until all members have ended, and close their gang; raises the error of a member that failed."""
        gang = gathered.gang
        with self._leaving_on_error(stage, gang):
            results = [future.result(raise_on_failure=False) for future in gathered.running]
            if gang.error is not None:
                raise gang.error  # a member's error ends the gang like any other
            for failed in results:
                if isinstance(failed, BaseException):
                    raise failed
        gang.close()
        self._ended.add(self.clusters, gang.template.topic)  # not after an error, which may be that of a lost cluster
        members = [member for role in results for member in role]
        return EndedGang(gathered, members, by_component(members))

    def _timings(
        self,
        stage: int,
        attempt: int,
        ended: EndedGang,
        learned: Learned,
        worked_seconds: float,
        evaluated_seconds: float,
    ) -> StageTimings:
        """Return the timings of a stage that has just been committed; both seconds count from its start."""
        gathered, results, sources = ended.gathered, ended.results, ended.sources
        placed = gathered.gang.members
        missed, late = self._missed(learned, results.act)
        return StageTimings(
            stage=stage,
            attempt=attempt,
            started_at=gathered.started_at,
            stage_seconds=time.perf_counter() - gathered.started,
            admission_seconds=gathered.admitted_seconds,
            gather_seconds=gathered.gathered_seconds - gathered.admitted_seconds,
            roles_seconds=worked_seconds - gathered.gathered_seconds,
            prefect_seconds=_waited_for_prefect(gathered, results),
            evaluate_seconds=evaluated_seconds - worked_seconds,
            act=tuple(one.times for one in results.act),
            learn=tuple(one.times for one in results.learn),
            env=tuple(one.times for one in results.env) or None,
            server=tuple(one.times for one in results.server) or None,
            processes=usage_by_process(
                ((placed[one.member].host, placed[one.member].pid), one.usage)
                for one in ended.members
                if one.usage is not None
            ),
            members={name: _place(member, sources[name]) for name, member in placed.items()},
            edges=sum_edges(results),
            missed_shards=missed,
            late_shards=late,
        )

    @property
    def ahead_since(self) -> float | None:
        """Return when the gang that works ahead of its stage was started, by `time.perf_counter`; None without one."""
        return self._ahead[0].started if self._ahead else None

    @contextmanager
    def started_ahead(self, before: Commit | None) -> Iterator[None]:
        """Start the gang of the stage after a commit, for the first `run_stage` in this context to take over.

        Its members work meanwhile, also before there is a flow run; their roles' task runs begin when it is taken over.
        The members of a gang that was not taken over leave at the end.

        Raises:
            PenstockError: the gang can't be gathered.
        """
        stage = before.stage + 1 if before else 0
        attempt = current_attempt(self.run, stage)
        self._ahead.append(
            self._gather(stage, attempt, before, lambda gang, role: gang.submit_ahead(role), was_large_enough=False)
        )
        try:
            yield
        finally:
            for left in self._ahead:
                left.gang.fail(GangError(f"stage {stage} ends, since no flow run has begun it"))
                left.gang.close()
            self._ahead.clear()

    def _taken_over(self, stage: int) -> GatheredGang:
        """Return the gang that was started ahead, with its roles' task runs."""
        ahead = self._ahead.pop()
        with self._leaving_on_error(stage, ahead.gang):
            ahead.gang.enter_flow_run()
            seconds = time.perf_counter() - ahead.started
            return replace(
                ahead,
                taken_over_seconds=seconds,
                running=[_submit(stage, ahead.gang, role) for role in self.policy.roles],
            )

    def _gather(
        self,
        stage: int,
        attempt: int,
        before: Commit | None,
        submit: Callable[[Gang, Role], PrefectFuture[list[MemberResult]] | None],
        *,
        was_large_enough: bool,
    ) -> GatheredGang:
        """Admit a gang, submit its roles, and start its members together."""
        started, started_at = time.perf_counter(), time.time()
        cluster = self.config.cluster
        reference = commit_ref(before) if before else None
        assignment = replace(self._assignment(stage, attempt), before=reference.to_json() if reference else None)
        gang = Gang(self.clusters, self.policy, assignment, self.on_event)
        gang.listen()
        with self._leaving_on_error(stage, gang):
            where = (self.clusters, self.policy, self.run.name, cluster.admission_seconds)
            with admitted(*where, was_large_enough=was_large_enough) as gang.allocation:
                admitted_seconds = time.perf_counter() - started
                running = [submit(gang, role) for role in self.policy.roles]
                gang.start(cluster.gang_seconds)
        gathered_seconds = time.perf_counter() - started
        return GatheredGang(
            gang,
            started=started,
            started_at=started_at,
            admitted_seconds=admitted_seconds,
            gathered_seconds=gathered_seconds,
            running=[future for future in running if future is not None],
        )

    @contextmanager
    def _leaving_on_error(self, stage: int, gang: Gang) -> Iterator[None]:
        """Make all members leave, and close the gang, if an error is raised meanwhile."""
        try:
            yield
        except BaseException as error:
            gang.fail(error)
            gang.close()
            if not (isinstance(error, LeaseLostError) and self.lease.problem):
                raise
            # Members see only that the lease was not renewed; why, as a full disk, is known here.
            raise LeaseLostError(
                f"stage {stage} of run '{self.run.name}' ended, because its lease could not be renewed: "
                f"{self.lease.problem}. `{self.run.command('resume')}` resumes from the last commit"
            ) from error

    def _league_after(self, stage: int, before: Commit | None, learned: Learned) -> tuple[SnapshotRef, ...] | None:
        """Return the older versions against which the next stage plays; None without a league."""
        if not isinstance(self.config, TrainConfig):
            return None
        return league_after(self.config.league, stage, before, learned.published.snapshots[-1])

    def _missed(self, learned: Learned, acted: Sequence[ActResult]) -> tuple[int | None, int | None]:
        """Return how many of the stage's shards were missed, and how many of those came late; None with quorum 1."""
        if self.config.requires_full_round:
            return None, None
        planned = self.config.schedule.rounds_per_stage * self.config.environment.tiles
        stored = sum(len(digests) for result in acted for digests in result.shards.values())
        chosen = len(learned.shards)
        return planned - chosen, stored - chosen

    def _assignment(self, stage: int, attempt: int) -> Assignment:
        return replace(self.template, stage=stage, attempt=attempt, gang=uuid4().hex[:8])

    def _evaluate(self, stage: int, attempt: int, learned: Learned, allocation: Allocation) -> dict[str, float] | None:
        from penstock.tasks.driver.prefect_tasks import Evaluation, evaluate  # noqa: PLC0415  (see above)

        schedule = self.config.schedule
        last = stage + 1 == schedule.max_stages
        if (stage + 1) % schedule.evaluate_every_stages and not last:
            return None
        role = self.policy.role_of("act" if self.policy.has_actors else "learn")
        evaluation = Evaluation(
            client=allocation[role.name][0].client,
            assignment=self._assignment(stage, attempt),
            resources=dict(role.resources),
            snapshot=learned.published.snapshots[-1],
            episodes=schedule.evaluation_episodes,
            timeout_seconds=self.config.cluster.admission_seconds,
        )
        result = evaluate(stage, evaluation)
        result.pop("seconds")
        return result


def _waited_for_prefect(gathered: GatheredGang, merged: GangResults) -> float | None:
    """Return how long a gang had ended when its flow run took it over; None if it had not, or began again meanwhile."""
    if gathered.taken_over_seconds is None or any(member.reports > 1 for member in gathered.gang.members.values()):
        return None
    worked_seconds = max(one.times.task_seconds or 0.0 for one in merged.every)
    waited_seconds = gathered.taken_over_seconds - gathered.gathered_seconds - worked_seconds
    return waited_seconds if waited_seconds > 0 else None


def _submit(stage: int, gang: Gang, role: Role) -> PrefectFuture[list[MemberResult]]:
    from penstock.tasks.driver.prefect_tasks import RolePart, submit_role  # noqa: PLC0415  (see above)

    return submit_role(stage, RolePart(gang, role))


def _place(member: Member, source: str) -> MemberPlace:
    return MemberPlace(
        scheduler=member.cluster.address,
        address=member.address,
        host=member.host,
        pid=member.pid,
        reports=member.reports,
        source=source,
    )

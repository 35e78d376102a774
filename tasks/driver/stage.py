"""Runs one stage: admits its gang, which acts and learns, evaluates the snapshot, and commits the results."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from uuid import uuid4

from penstock.storage.errors import LeaseLostError
from penstock.storage.runs.commits import commit_ref
from penstock.storage.runs.timings import MemberPlace, StageTimings
from penstock.tasks.driver.admission import admitted
from penstock.tasks.driver.attempts import repeat_until_done
from penstock.tasks.driver.early_stopping import EvaluatedReturns
from penstock.tasks.driver.forgetting import EndedGangs
from penstock.tasks.driver.gang import Gang
from penstock.tasks.driver.prefect_tasks import Evaluation, RolePart, evaluate, forget_task_runs, submit_role
from penstock.tasks.driver.results import (
    by_component,
    check_agreement,
    check_sources,
    merge_learned,
    stage_commit,
    sum_edges,
    usage_by_process,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.runs.lease import LeaseKeeper
    from penstock.storage.runs.run import RunFolder
    from penstock.tasks.driver.admission import Allocation
    from penstock.tasks.driver.cluster import Clusters
    from penstock.tasks.driver.gang import Member
    from penstock.tasks.driver.results import Learned
    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.events import MemberEvent
    from penstock.tasks.runtime.results import ActResult
    from penstock.tasks.setup.config.run import RunConfig
    from penstock.tasks.setup.distribution.policies import DistributionPolicy


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
        )
        forget_task_runs()
        return committed

    def _run_attempt(
        self, stage: int, attempt: int, before: Commit | None, *, was_large_enough: bool
    ) -> tuple[Commit, StageTimings]:
        started, started_at = time.perf_counter(), time.time()
        cluster = self.config.cluster
        reference = commit_ref(before) if before else None
        assignment = replace(self._assignment(stage, attempt), before=reference.to_json() if reference else None)
        gang = Gang(self.clusters, self.policy, assignment, self.on_event)
        gang.listen()
        try:
            where = (self.clusters, self.policy, self.run.name, cluster.admission_seconds)
            with admitted(*where, was_large_enough=was_large_enough) as gang.allocation:
                admitted_seconds = time.perf_counter() - started
                running = [submit_role(stage, RolePart(gang, role)) for role in self.policy.roles]
                gang.start(cluster.gang_seconds)
            gathered_seconds = time.perf_counter() - started
            results = [future.result(raise_on_failure=False) for future in running]
            if gang.error is not None:
                raise gang.error  # noqa: TRY301  (a member's error ends the gang like any other)
        except LeaseLostError as error:
            gang.fail(error)
            if not self.lease.problem:
                raise
            # Members see only that the lease was not renewed; why, as a full disk, is known here.
            name = self.run.name
            raise LeaseLostError(
                f"stage {stage} of run '{name}' ended, because its lease could not be renewed: {self.lease.problem}. "
                f"`penstock resume {name}` resumes from the last commit"
            ) from error
        except BaseException as error:
            gang.fail(error)
            raise
        finally:
            gang.close()
        self._ended.add(self.clusters, assignment.topic)  # not after an error, which may be that of a lost cluster
        merged = by_component(result for role in results for result in role)
        sources = {result.member: result.source for role in results for result in role}
        learned, acted = merge_learned(stage, merged, owners=self.policy.reduce == "agents"), merged.act
        check_sources(stage, sources)
        check_agreement(stage, learned.shards, acted, whole=self.config.requires_full_round)
        self.lease.check()
        worked_seconds = time.perf_counter() - started
        evaluation = self._evaluate(stage, attempt, learned, gang.allocation)
        evaluated_seconds = time.perf_counter() - started
        parent = reference.digest if reference else self.genesis
        commit = stage_commit(
            self.config.schedule, stage, parent, before, learned, acted, evaluation, self._returns.until(before)
        )
        self.lease.check()  # an evaluation may take longer than the ttl
        self.run.log.append(commit)
        missed, late = self._missed(learned, acted)
        timings = StageTimings(
            stage=stage,
            attempt=attempt,
            started_at=started_at,
            stage_seconds=time.perf_counter() - started,
            admission_seconds=admitted_seconds,
            gather_seconds=gathered_seconds - admitted_seconds,
            roles_seconds=worked_seconds - gathered_seconds,
            evaluate_seconds=evaluated_seconds - worked_seconds,
            act=tuple(one.times for one in acted),
            learn=tuple(one.times for one in merged.learn),
            env=tuple(one.times for one in merged.env) or None,
            server=tuple(one.times for one in merged.server) or None,
            processes=usage_by_process(
                ((gang.members[one.member].host, gang.members[one.member].pid), one.usage)
                for role in results
                for one in role
                if one.usage is not None
            ),
            members={name: _place(member, sources[name]) for name, member in gang.members.items()},
            edges=sum_edges(merged),
            missed_shards=missed,
            late_shards=late,
        )
        return commit, timings

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


def _place(member: Member, source: str) -> MemberPlace:
    return MemberPlace(
        scheduler=member.cluster.address,
        address=member.address,
        host=member.host,
        pid=member.pid,
        reports=member.reports,
        source=source,
    )

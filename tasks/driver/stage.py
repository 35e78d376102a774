"""Runs one stage: admits its gang, which acts and learns, evaluates the snapshot, and commits the results."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from uuid import uuid4

from penstock.storage.digest import canonical_json, parse_json
from penstock.storage.errors import (
    CorruptObjectError,
    LeaseLostError,
    MemberLeftError,
    MemberLostError,
    ObjectNotFoundError,
    StageMismatchError,
)
from penstock.storage.runs.commit_schema import Commit
from penstock.storage.runs.commits import commit_ref
from penstock.storage.runs.timings import MemberPlace, StageTimings
from penstock.tasks.driver.admission import admitted
from penstock.tasks.driver.gang import Gang
from penstock.tasks.driver.prefect_tasks import Evaluation, RolePart, evaluate, submit_role
from penstock.tasks.driver.results import by_component, check_agreement, check_sources, merge_learned, sum_edges

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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


_MOST_ATTEMPTS = 10**6


def _name(stage: int) -> str:
    return f"attempts/{stage:08d}.json"


def current_attempt(run: RunFolder, stage: int) -> int:
    """Return the number of a stage's current attempt: 0 unless earlier ones were given up."""
    try:
        text = run.store.read(_name(stage))
    except ObjectNotFoundError:
        return 0
    try:
        attempt = parse_json(text)["attempt"]
        if type(attempt) is not int or not 0 <= attempt < _MOST_ATTEMPTS:
            raise ValueError(f"'attempt' is {attempt!r}")  # noqa: TRY301  (any fault of the file gets the message below)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptObjectError(
            f"'{_name(stage)}' of run '{run.name}' can't be read ({error}), expected the stage's attempt. "
            f'Write {{"attempt": n}} with n above every folder shards/{stage:08d}.n'
        ) from error
    return attempt


def give_up(run: RunFolder, stage: int, attempt: int, reason: str) -> None:
    """Start the next attempt; the reason is stored."""
    run.store.write(_name(stage), [canonical_json({"attempt": attempt + 1, "reason": reason})], durable=True)


logger = logging.getLogger(__name__)
_TRIES = 3


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
        tries_left = _TRIES
        while True:
            attempt = current_attempt(self.run, stage)
            tries_left -= 1
            try:
                return self._run_attempt(stage, attempt, before, was_large_enough=not is_first)
            except StageMismatchError as error:
                if not tries_left:
                    raise
                give_up(self.run, stage, attempt, str(error))
            except (CorruptObjectError, ObjectNotFoundError):
                # The reader that finds a damaged shard removes it, and later readers find none; the next try acts its
                # round again.
                if not tries_left:
                    raise
            except MemberLostError as error:
                # The same attempt: its stored objects remain, and are learned from again.
                if isinstance(error, MemberLeftError):
                    tries_left += 1
                elif not tries_left:
                    raise
                is_first = False
                logger.warning("stage=%d restarts: %s", stage, error)

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
        merged = by_component(result for role in results for result in role)
        sources = {result.member: result.source for role in results for result in role}
        learned, acted = merge_learned(stage, merged), merged.act
        check_sources(stage, sources)
        check_agreement(stage, learned.shards, acted, whole=self.config.requires_full_round)
        self.lease.check()
        worked_seconds = time.perf_counter() - started
        evaluation = self._evaluate(stage, attempt, learned, gang.allocation)
        evaluated_seconds = time.perf_counter() - started
        parent = reference.digest if reference else self.genesis
        commit = self._commit(stage, parent, before, learned, acted, evaluation)
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

    def _commit(
        self,
        stage: int,
        parent: str,
        before: Commit | None,
        learned: Learned,
        acted: Sequence[ActResult],
        evaluation: dict[str, float] | None,
    ) -> Commit:
        schedule = self.config.schedule
        finished = None
        if evaluation and schedule.target_return is not None and evaluation["mean_return"] >= schedule.target_return:
            finished = f"target_return {schedule.target_return:g} reached"
        elif stage + 1 >= schedule.max_stages:
            finished = f"max_stages {schedule.max_stages} done"
        rounds = schedule.rounds_per_stage
        states = (state for result in acted for state in result.states)
        return Commit(
            stage=stage,
            parent=parent,
            rounds=(stage * rounds, (stage + 1) * rounds - 1),
            version=learned.published.version,
            env_steps=learned.env_steps + (before.env_steps if before else 0),
            episodes=learned.episodes + (before.episodes if before else 0),
            shards=learned.shards,
            states=tuple(sorted(states, key=lambda state: state.tile)),
            snapshots=learned.published.snapshots,
            checkpoint=learned.published.checkpoint,
            metrics=learned.metrics,
            evaluation=evaluation,
            finished=finished,
        )


def _place(member: Member, source: str) -> MemberPlace:
    return MemberPlace(
        scheduler=member.cluster.address,
        address=member.address,
        host=member.host,
        pid=member.pid,
        reports=member.reports,
        source=source,
    )

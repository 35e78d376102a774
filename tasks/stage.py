"""One stage: its gang is admitted, acts and learns, is evaluated, and what it made becomes one commit."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from storage.commit_form import FORMAT
from storage.commits import commit_ref
from storage.errors import CorruptObjectError, MemberLeftError, MemberLostError, ObjectNotFoundError, StageMismatchError
from tasks.admission import admitted
from tasks.agreement import check_agreement, check_sources
from tasks.attempts import current_attempt, give_up
from tasks.gang import Gang
from tasks.parts import by_half, merge_learned, sum_edges
from tasks.roles import Evaluation, RolePart, evaluate, submit_role

if TYPE_CHECKING:
    from collections.abc import Callable

    from storage.lease import LeaseKeeper
    from storage.run import RunFolder
    from tasks.admission import Seats
    from tasks.assignment import Assignment
    from tasks.cluster import Clusters
    from tasks.config import RunConfig
    from tasks.policies import DistributionPolicy

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
    on_event: Callable[[dict[str, Any]], None]

    def run_stage(
        self, before: dict[str, Any] | None, *, is_first: bool = True
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Run the stage after a commit, and commit it.

        Args:
            before: the commit; None before the first stage.
            is_first: whether it is the first stage that is run here. Later ones wait longer for workers to come back.

        Returns:
            The commit, and the stage's timings.

        Raises:
            PenstockError: the stage failed for good; the commit before it stands.
        """
        stage = before["stage"] + 1 if before else 0
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
                # A damaged shard is removed by who finds it, and missed by who comes next; its round is acted again in
                # the next try.
                if not tries_left:
                    raise
            except MemberLostError as error:
                # The same attempt: what is stored of it stays, and is learned again.
                if isinstance(error, MemberLeftError):
                    tries_left += 1
                elif not tries_left:
                    raise
                is_first = False
                logger.warning("stage=%d begins again: %s", stage, error)

    def _run_attempt(
        self, stage: int, attempt: int, before: dict[str, Any] | None, *, was_large_enough: bool
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        started, started_at = time.perf_counter(), time.time()
        cluster = self.config.cluster
        reference = commit_ref(before) if before else None
        assignment = replace(self._assignment(stage, attempt), before=reference.to_json() if reference else None)
        gang = Gang(self.clusters, self.policy, assignment, self.on_event)
        gang.listen()
        try:
            where = (self.clusters, self.policy, self.run.name, cluster.admission_seconds)
            with admitted(*where, was_large_enough=was_large_enough) as gang.seats:
                admitted_seconds = time.perf_counter() - started
                running = [submit_role(stage, RolePart(gang, role)) for role in self.policy.roles]
                gang.start(cluster.gang_seconds)
            gathered_seconds = time.perf_counter() - started
            results = [future.result(raise_on_failure=False) for future in running]
            if gang.error is not None:
                raise gang.error  # noqa: TRY301  (a member's error ends the gang like any other)
        except BaseException as error:
            gang.fail(error)
            raise
        finally:
            gang.close()
        halves = by_half(result for role in results for result in role)
        sources = {result["member"]: result["source"] for role in results for result in role}
        learned, acted = merge_learned(stage, halves), halves.get("act", [])
        check_sources(stage, sources)
        check_agreement(stage, learned["shards"], acted, whole=self.config.waits_for_all)
        self.lease.check()
        worked_seconds = time.perf_counter() - started
        evaluation = self._evaluate(stage, attempt, learned, gang.seats)
        evaluated_seconds = time.perf_counter() - started
        parent = reference.digest if reference else self.genesis
        commit = self._commit(stage, parent, before, learned, acted, evaluation)
        self.run.log.append(commit)
        timings = {
            "stage": stage,
            "attempt": attempt,
            "started_at": started_at,
            "stage_seconds": time.perf_counter() - started,
            "admission_seconds": admitted_seconds,
            "gather_seconds": gathered_seconds - admitted_seconds,
            "roles_seconds": worked_seconds - gathered_seconds,
            "evaluate_seconds": evaluated_seconds - worked_seconds,
            "members": {
                name: {
                    "scheduler": member.cluster.address,
                    "address": member.address,
                    "host": member.host,
                    "pid": member.pid,
                    "reports": member.reports,
                    "source": sources[name],
                }
                for name, member in gang.members.items()
            },
            "edges": sum_edges(halves),
            **self._missed(learned, acted),
            **{half: [_times(part) for part in halves.get(half, [])] for half in {"act", "learn", *halves}},
        }
        return commit, timings

    def _missed(self, learned: dict[str, Any], acted: list[dict[str, Any]]) -> dict[str, int]:
        """How many of the stage's shards were not learned from, and how many of those came late; if some may be."""
        if self.config.waits_for_all:
            return {}
        planned = self.config.schedule.rounds_per_stage * self.config.environment.tiles
        stored = sum(len(digests) for result in acted for digests in result["shards"].values())
        chosen = len(learned["shards"])
        return {"missed_shards": planned - chosen, "late_shards": stored - chosen}

    def _assignment(self, stage: int, attempt: int) -> Assignment:
        return replace(self.template, stage=stage, attempt=attempt, gang=uuid4().hex[:8])

    def _evaluate(self, stage: int, attempt: int, learned: dict[str, Any], seats: Seats) -> dict[str, Any] | None:
        schedule = self.config.schedule
        last = stage + 1 == schedule.max_stages
        if (stage + 1) % schedule.evaluate_every_stages and not last:
            return None
        role = self.policy.role_of("act" if self.policy.acts else "learn")
        what = Evaluation(
            client=seats[role.name][0].client,
            assignment=self._assignment(stage, attempt),
            resources=dict(role.resources),
            snapshot=learned["snapshots"][-1],
            episodes=schedule.evaluation_episodes,
            timeout_seconds=self.config.cluster.admission_seconds,
        )
        result: dict[str, Any] = evaluate(stage, what)
        result.pop("seconds")
        return result

    def _commit(
        self,
        stage: int,
        parent: str,
        before: dict[str, Any] | None,
        learned: dict[str, Any],
        acted: list[dict[str, Any]],
        evaluation: dict[str, Any] | None,
    ) -> dict[str, Any]:
        schedule = self.config.schedule
        finished = None
        if evaluation and schedule.target_return is not None and evaluation["mean_return"] >= schedule.target_return:
            finished = f"target_return {schedule.target_return:g} reached"
        elif stage + 1 >= schedule.max_stages:
            finished = f"max_stages {schedule.max_stages} done"
        rounds = schedule.rounds_per_stage
        return {
            "format": FORMAT,
            "stage": stage,
            "parent": parent,
            "rounds": [stage * rounds, (stage + 1) * rounds - 1],
            "version": learned["version"],
            "env_steps": learned["env_steps"] + (before["env_steps"] if before else 0),
            "episodes": learned["episodes"] + (before["episodes"] if before else 0),
            "shards": learned["shards"],
            "states": sorted(
                (state for result in acted for state in result["states"]), key=lambda state: state["tile"]
            ),
            "snapshots": learned["snapshots"],
            "checkpoint": learned["checkpoint"],
            "metrics": learned["metrics"],
            "evaluation": evaluation,
            "finished": finished,
        }


def _times(result: dict[str, Any]) -> dict[str, Any]:
    kept = ("member", "env_steps", "first_step_at", "spans", "update_rows", "cache", "pipeline", "edges")
    return {name: value for name, value in result.items() if name in kept or name.endswith("_seconds")}

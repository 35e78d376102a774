"""A stage is committed by the flow that drives its run, or not at all; shards that a quorum left out are counted."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from penstock.storage.errors import ConfigError, LeaseLostError, StageMismatchError
from penstock.storage.refs import Ref, ShardRef
from penstock.storage.runs.lease import acquire
from penstock.storage.runs.timings import ActTimes
from penstock.tasks.driver import prefect_tasks, stage
from penstock.tasks.driver.attempts import current_attempt
from penstock.tasks.driver.cluster import Cluster, Clusters
from penstock.tasks.driver.results import Learned
from penstock.tasks.driver.stage import StageDriver
from penstock.tasks.runtime.results import ActResult, Published

from ...support.services.worker_here import worker_here
from ...support.stored.leases import make_lease, put
from ..conftest import first_stage_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from penstock.storage.runs.lease import LeaseKeeper
    from penstock.tasks.driver.gang import Gang
    from penstock.tasks.driver.prefect_tasks import Evaluation
    from penstock.tasks.runtime.results import MemberResult
    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.setup.distribution.policies import Role

    from ..conftest import MakeContext

PATIENCE_SECONDS = 150.0


def driver_of(context: RunContext, lease: Any, **clusters: tuple[Cluster, ...]) -> StageDriver:
    run = context.run
    generation = lease.generation if lease else 1
    template = first_stage_of("", store=run.root.url, generation=generation, cache_folder=str(context.cache.folder))
    return StageDriver(
        config=context.config,
        run=run,
        policy=context.policy,
        clusters=Clusters(clusters),
        lease=lease,
        genesis=run.genesis(),
        template=template,
        on_event=lambda _: None,
    )


@dataclass
class Flow:
    """A flow without Prefect: role tasks run in a thread, and evaluations in the flow's own."""

    driver: StageDriver
    lease: LeaseKeeper
    threads: ThreadPoolExecutor
    evaluated: list[int] = field(default_factory=list)
    altered: Callable[[MemberResult], MemberResult] = lambda result: result
    after_work: Callable[[], object] = lambda: None
    after_evaluation: Callable[[], object] = lambda: None

    def submit(self, _: int, gang: Gang, role: Role) -> TaskRun:
        is_last = role is self.driver.policy.roles[-1]
        return TaskRun(self.threads.submit(self._play, gang, role), self.after_work if is_last else lambda: None)

    def _play(self, gang: Gang, role: Role) -> list[MemberResult]:
        return [self.altered(result) for result in gang.results(gang.submit(role, ""))]

    def evaluate(self, number: int, evaluation: Evaluation) -> dict[str, float]:
        self.evaluated.append(number)
        result = self.play_episodes(number, evaluation)
        self.after_evaluation()
        return result

    play_episodes = staticmethod(prefect_tasks.evaluate.fn)

    def lose_lease(self) -> None:
        """Let another flow take the run over."""
        put(self.driver.run.store, make_lease(generation=self.lease.generation + 1))
        self.lease.renew()
        assert self.lease.lost


@dataclass
class TaskRun:
    """The run of a role task, at whose end the flow does something."""

    future: Future[list[MemberResult]]
    then: Callable[[], object]

    def result(self, *, raise_on_failure: bool) -> list[MemberResult]:
        assert not raise_on_failure
        found = self.future.result(PATIENCE_SECONDS)
        self.then()
        return found


@pytest.fixture
def flow(make_context: MakeContext, monkeypatch: pytest.MonkeyPatch) -> Iterator[Flow]:
    """Yield a flow that drives a run of an actor and a learner, on a worker in this process."""
    context = make_context({"distribution": {"act_tasks": 1}})
    with (
        worker_here(nthreads=2, resources={"actor": 1.0, "learner": 1.0}) as client,
        acquire(context.run.store, "this flow", 30.0) as lease,
        ThreadPoolExecutor(2) as threads,
    ):
        told = client.scheduler_info(n_workers=0)
        cluster = Cluster(client, told["id"], told["address"], is_here=True)
        flow = Flow(driver_of(context, lease, act=(cluster,), learn=(cluster,)), lease, threads)
        monkeypatch.setattr(stage, "_submit", flow.submit)
        monkeypatch.setattr(prefect_tasks, "evaluate", flow.evaluate)
        yield flow


def test_a_stage_is_acted_learned_evaluated_and_committed(flow: Flow):
    """The commit is that of the log, with the evaluation of the parameters that were learned; no shard is missed."""
    commit, timings = flow.driver.run_stage(None)
    assert flow.driver.run.log.newest() == commit
    assert commit.evaluation is not None
    assert commit.evaluation["version"] == commit.version == 2
    assert (timings.missed_shards, timings.late_shards) == (None, None)
    assert flow.evaluated == [0]


def test_the_wait_of_a_gang_that_has_ended_before_its_flow_run_is_in_the_timings(flow: Flow):
    """The first stage has worked ahead by then, and is committed as it is; the second one does not wait."""
    with flow.driver.started_ahead(None):
        gang = flow.driver._ahead[0].gang
        worked = [part.times for result in gang.results(list(gang._futures)) for part in result.components]
        time.sleep(max(times.task_seconds or 0.0 for times in worked))
        commit, first = flow.driver.run_stage(None)
    _, second = flow.driver.run_stage(commit, is_first=False)
    assert first.prefect_seconds is not None
    assert 0.0 < first.prefect_seconds < first.stage_seconds
    assert second.prefect_seconds is None
    assert flow.evaluated == [0, 1]


def test_a_flow_that_lost_its_lease_while_members_worked_does_not_evaluate(flow: Flow):
    """Another flow drives the run by then: the stage is its, and an evaluation would only take its worker."""
    flow.after_work = flow.lose_lease
    with pytest.raises(LeaseLostError, match="taken over"):
        flow.driver.run_stage(None)
    assert flow.evaluated == []
    assert flow.driver.run.log.newest() is None


def test_a_flow_that_lost_its_lease_while_it_evaluated_commits_nothing(flow: Flow):
    """An evaluation may take longer than a lease lasts."""
    flow.after_evaluation = flow.lose_lease
    with pytest.raises(LeaseLostError, match="taken over"):
        flow.driver.run_stage(None)
    assert flow.evaluated == [0]
    assert flow.driver.run.log.newest() is None


def test_a_stage_whose_shards_differ_from_the_learned_ones_is_tried_again(flow: Flow):
    """Each of three attempts has its own objects; none is committed, and the error is raised at last."""

    def with_other_shards(result: MemberResult) -> MemberResult:
        (part,) = result.components
        return replace(result, components=(replace(part, shards={}),)) if isinstance(part, ActResult) else result

    flow.altered = with_other_shards
    with pytest.raises(StageMismatchError, match=r"for the tiles \[0, 1\], the shards that were learned from"):
        flow.driver.run_stage(None)
    assert current_attempt(flow.driver.run, 0) == 2
    assert flow.driver.run.log.newest() is None


def test_a_stage_of_two_versions_of_the_algorithm_is_not_committed(flow: Flow):
    """Members on hosts with other versions of Penstock are named."""
    flow.altered = lambda result: replace(result, source="other") if result.member == "act-0" else result
    with pytest.raises(ConfigError, match=r"different versions of the algorithm \(.*act-0: other"):
        flow.driver.run_stage(None)
    assert flow.driver.run.log.newest() is None


@pytest.mark.parametrize(("learned", "stored", "missed"), [(4, 4, (0, 0)), (3, 4, (1, 1)), (2, 3, (2, 1))])
def test_shards_that_were_not_learned_are_missed_and_late_if_they_are_stored(
    make_context: MakeContext, learned: int, stored: int, missed: tuple[int, int]
):
    """Two rounds of two tiles have four shards; some of those that were missed came after the choice."""
    driver = driver_of(make_context({"distribution": {"quorum": 0.5}, "algorithm": {"minibatches": 1}}), None)
    places = [(round_, tile) for round_ in range(2) for tile in range(2)]
    shards = tuple(ShardRef(f"{round_}-{tile}", "d", 1, round_, tile, 8) for round_, tile in places[:learned])
    parts = Learned(shards, Published((), Ref("c", "d", 1), 2), {}, episodes=0, env_steps=0)
    times = ActTimes(member="act-0", env_steps=8, act_seconds=1.0, wait_seconds=0.0)
    acted = [ActResult((), {0: ("d",) * 2}, times), ActResult((), {1: ("d",) * (stored - 2)}, times)]
    assert driver._missed(parts, acted) == missed

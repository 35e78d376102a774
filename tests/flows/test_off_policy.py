"""Windows of many rounds under several policies: the same parameters, and the same bytes after any loss."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

import numpy as np
import pytest

from .conftest import Bench, Settings
from .processes import Cluster
from .stored import StoredRun, assert_same, assert_whole
from .test_several_learners import ALONE, IN_STEP, TOLERANCE, parameters

ALGORITHMS = {
    "dqn": 'id = "CartPole-v1"\n[algorithm]\nname = "dqn"\nhidden = [8]\npriority_exponent = 0.6\nreturn_steps = 3\n'
    "target_minibatches = 5\nepsilon_minibatches = 60\nwindow_rows = 600\nwarm_up_rows = 200\nminibatch_rows = 16\n"
    "minibatches = 4",
    "sac": 'id = "Pendulum-v1"\n[algorithm]\nname = "sac"\nhidden = [8]\nwindow_rows = 600\nwarm_up_rows = 200\n'
    "minibatch_rows = 16\nminibatches = 4",
}


@dataclass(frozen=True)
class OffPolicy(Settings):
    """A small run whose window holds nine of its sixteen rounds; learning begins in the fourth."""

    algorithm: str = "dqn"
    stages: int = 2
    rounds: int = 8

    def toml(self) -> str:
        before, _, rest = super().toml().partition("[algorithm]")
        schedule = rest[rest.index("[schedule]") :]
        return f"{before}\n{ALGORITHMS[self.algorithm]}\n{schedule}"


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A cluster that holds any policy's gang: one process to act, two to learn, one to serve parameters."""
    cluster = Cluster(1, 2, {}, tmp_path_factory.mktemp("places"), learners=2, servers=1)
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def bench(places, flow_environment, tmp_path_factory):
    bench = Bench(tmp_path_factory.mktemp("off-policy"), flow_environment, places.address)
    yield bench
    bench.close()


def train(bench: Bench, algorithm: str, policy: str, name: str):
    learners = () if policy == ALONE else ("--learn-tasks", "2")
    return bench.train(name, OffPolicy(algorithm=algorithm), "--policy", policy, *learners)


@pytest.fixture(scope="module", params=list(ALGORITHMS))
def undisturbed(bench, request) -> tuple[str, dict[str, StoredRun]]:
    """An algorithm, and a run of it under each policy."""
    for policy in (ALONE, *IN_STEP):
        train(bench, request.param, policy, f"{request.param}-{policy}").succeed()
    runs = {policy: bench.run(f"{request.param}-{policy}") for policy in (ALONE, *IN_STEP)}
    return request.param, runs


def test_the_policy_changes_no_parameter(undisturbed):
    """At lag 0, after every stage: those of one learner, though they are rounded otherwise. All of them learn."""
    algorithm, runs = undisturbed
    settings = OffPolicy(algorithm=algorithm)
    for policy in IN_STEP:
        assert_whole(runs[policy], settings.all_rounds, settings.tiles, settings.rows)
        for stage in range(settings.stages):
            expected, found = parameters(runs[ALONE], stage), parameters(runs[policy], stage)
            assert found.keys() == expected.keys()
            for name, value in expected.items():
                np.testing.assert_allclose(found[name], value, rtol=0, atol=TOLERANCE, err_msg=f"{policy} {name}")
    before, after = parameters(runs[ALONE], 0), parameters(runs[ALONE], 1)
    assert max(float(np.abs(after[name] - before[name]).max()) for name in before) > 100 * TOLERANCE


def test_losing_a_learner_or_the_flow_changes_no_byte(bench, places, undisturbed):
    """In the second stage, whose window begins in the first: rows, draws and priorities are those of the other run."""
    algorithm, runs = undisturbed
    flow, run = train(bench, algorithm, ALONE, f"{algorithm}-killed"), bench.run(f"{algorithm}-killed")
    run.wait_for_round(10, flow)
    os.kill(places.members.pid_of("learn-0", f"{algorithm}-killed"), signal.SIGKILL)
    run.wait_for_round(13, flow)
    flow.kill()
    bench.resume(f"{algorithm}-killed").succeed()
    assert_same(run, runs[ALONE].content())

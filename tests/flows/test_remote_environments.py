"""Environments in processes of their own: the learners' bytes, whatever happens to who steps them."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from .conftest import Bench, Settings
from .processes import Cluster
from .stored import StoredRun, assert_as_predicted, assert_same, assert_whole
from .test_several_learners import actions, parameters

SETTINGS = Settings(stages=2, rounds=24)
ALONE = "single_learner_coarse"
REMOTE = {"single_learner_fine": ("--env-tasks", "2"), "environments": ("--env-tasks", "2", "--learn-tasks", "2")}
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Two processes to step environments, two to learn, started as one starts a cluster."""
    cluster = Cluster(2, 1, {}, tmp_path_factory.mktemp("places"), learners=2, cold=True)
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def undisturbed(places, flow_environment, tmp_path_factory) -> dict[str, StoredRun]:
    """A run under each policy that nothing disturbed."""
    bench = Bench(tmp_path_factory.mktemp("undisturbed"), flow_environment, places.address)
    options = {ALONE: (), **REMOTE}
    try:
        flows = [bench.train(name, SETTINGS, "--policy", name, *more) for name, more in options.items()]
        for flow in flows:
            flow.succeed()
    finally:
        bench.close()
    return {name: bench.run(name) for name in options}


@pytest.fixture
def runs(places, flow_environment, tmp_path):
    """Where a test makes its runs; afterwards, the cluster is whole and idle again."""
    bench = Bench(tmp_path, flow_environment, places.address)
    yield bench
    bench.close()
    places.members.wait_whole(places.workers)
    places.members.wait_idle()


@pytest.mark.parametrize("policy", REMOTE)
def test_the_policy_changes_no_parameter(undisturbed, policy):
    """At lag 0: actions of round 0, parameters after each stage, and the counts of its commit."""
    run, alone = undisturbed[policy], undisturbed[ALONE]
    assert_whole(run, SETTINGS.all_rounds, SETTINGS.tiles, SETTINGS.rows)
    for mine, theirs in zip(actions(run, 0), actions(alone, 0), strict=True):
        assert np.array_equal(mine, theirs)
    for stage in range(SETTINGS.stages):
        expected, found = parameters(alone, stage), parameters(run, stage)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=0, atol=TOLERANCE, err_msg=name)
        mine, theirs = run.commits()[stage], alone.commits()[stage]
        assert mine.keys() == theirs.keys()
        for name in ("rounds", "version", "env_steps", "episodes", "finished"):
            assert mine[name] == theirs[name], name


def test_one_learner_gets_the_same_bytes(undisturbed):
    """Where environments are stepped alters no shard, state, snapshot or checkpoint of a run with one learner."""
    fine, alone = undisturbed["single_learner_fine"], undisturbed[ALONE]
    for mine, theirs in zip(fine.commits(), alone.commits(), strict=True):
        for kind in ("shards", "states", "snapshots", "checkpoint", "metrics", "evaluation"):
            assert mine[kind] == theirs[kind], kind


@pytest.mark.parametrize("policy", REMOTE)
def test_what_crosses_processes_is_what_was_predicted(undisturbed, policy):
    """For every edge, and for no other: messages to the last one, bytes to what episodes add to the ends of rounds."""
    assert_as_predicted(undisturbed[policy], SETTINGS)
    observations = SETTINGS.rounds * (SETTINGS.round_steps - 1) * SETTINGS.tiles + SETTINGS.tiles
    for timings in undisturbed[policy].timings():
        assert timings["edges"]["env -> act"]["bytes"] == observations * SETTINGS.envs_per_tile * 16


def test_killed_environments_change_nothing(runs, places, undisturbed):
    """Kill -9 of who steps environments, in mid-stage: the stage begins again and ends with the same bytes."""
    flow = runs.train("killed", SETTINGS, "--policy", "environments", *REMOTE["environments"])
    run, pid = runs.run("killed"), places.members.pid_of("env-0", "killed")
    run.wait_for_round(1, flow)
    os.kill(pid, signal.SIGKILL)
    flow.succeed()
    assert "stage=0 begins again: env-0 was lost" in flow.output
    assert_same(run, undisturbed["environments"].content())


def test_more_environment_tasks_than_tiles_are_refused(runs):
    """Before anything starts, in one line."""
    flow = runs.train("crowded", SETTINGS, "--policy", "single_learner_fine", "--env-tasks", "5")
    flow.refuse("placement.env_tasks = 5, but there are only 4 tiles")

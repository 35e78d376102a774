"""The same algorithm under several learners: the same parameters, the same files, and the same bytes after any loss."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from storage.shards import decode_shard
from storage.tensors import load_tensors

from .conftest import Bench, Settings
from .processes import Cluster
from .stored import StoredRun, assert_same, assert_whole

SETTINGS = Settings(stages=2, rounds=8)
ALONE = "single_learner_coarse"
IN_STEP = ("multiple_learners", "central")
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A cluster that holds any policy's gang: one process to act, two to learn, one to serve parameters."""
    cluster = Cluster(1, 2, {}, tmp_path_factory.mktemp("places"), learners=2, servers=1)
    yield cluster
    cluster.close()


class Runs:
    """Where the runs of this module are made, on its own cluster."""

    def __init__(self, bench: Bench, places: Cluster) -> None:
        self.bench = bench
        self.places = places

    def train(self, name: str, policy: str, *options: str, settings: Settings = SETTINGS):
        learners = () if policy == ALONE else ("--learn-tasks", "2")
        return self.bench.train(name, settings, "--policy", policy, *learners, *options)

    def kill(self, member: str, run: str) -> None:
        os.kill(self.places.members.pid_of(member, run), signal.SIGKILL)


@pytest.fixture(scope="module")
def undisturbed(places, flow_environment, tmp_path_factory) -> dict[str, StoredRun]:
    """A run under each policy that nothing disturbed."""
    bench = Bench(tmp_path_factory.mktemp("undisturbed"), flow_environment, places.address)
    runs = Runs(bench, places)
    try:
        flows = {policy: runs.train(policy.replace("_", "-"), policy) for policy in (ALONE, *IN_STEP)}
        for flow in flows.values():
            flow.succeed()
    finally:
        bench.close()
    return {policy: bench.run(policy.replace("_", "-")) for policy in flows}


@pytest.fixture
def runs(places, flow_environment, tmp_path):
    """Afterwards, the cluster is whole and idle again."""
    bench = Bench(tmp_path, flow_environment, places.address)
    yield Runs(bench, places)
    bench.close()
    places.members.wait_whole(places.workers)
    places.members.wait_idle()


def parameters(run: StoredRun, stage: int) -> dict[str, np.ndarray]:
    ref = run.commits()[stage]["checkpoint"]
    tensors, _ = load_tensors(run.store.view(ref["name"]), ref["name"], ref["digest"])
    return {name: np.asarray(value) for name, value in tensors.items() if name.startswith("params/")}


def actions(run: StoredRun, round_: int) -> list[np.ndarray]:
    refs = [ref for ref in run.commits()[0]["shards"] if ref["round"] == round_]
    shards = [decode_shard(run.store.view(ref["name"]), None, ref["name"], ref["digest"]) for ref in refs]
    return [np.asarray(shard.columns["action"]) for shard in shards]


@pytest.mark.parametrize("policy", IN_STEP)
def test_the_policy_changes_no_parameter(undisturbed, policy):
    """At lag 0, after eight rounds and after sixteen: those of one learner, though they are rounded otherwise."""
    run, alone = undisturbed[policy], undisturbed[ALONE]
    for stage in range(SETTINGS.stages):
        expected, found = parameters(alone, stage), parameters(run, stage)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=0, atol=TOLERANCE, err_msg=name)
    before, after = parameters(alone, 0), parameters(alone, 1)
    moved = max(float(np.abs(after[name] - before[name]).max()) for name in before)
    assert moved > 100 * TOLERANCE, "a run that learns nothing shows nothing"


@pytest.mark.parametrize("policy", IN_STEP)
def test_the_policy_changes_no_action_before_anything_is_learned(undisturbed, policy):
    """In round 0, of every tile, as they are stored."""
    found, expected = actions(undisturbed[policy], 0), actions(undisturbed[ALONE], 0)
    assert len(found) == SETTINGS.tiles
    for mine, theirs in zip(found, expected, strict=True):
        assert np.array_equal(mine, theirs)


@pytest.mark.parametrize("policy", IN_STEP)
def test_the_policy_changes_nothing_of_what_a_commit_has(undisturbed, policy):
    """The same fields and counts, every shard once in the order of rounds and tiles, metrics to rounding."""
    run, alone = undisturbed[policy], undisturbed[ALONE]
    assert_whole(run, SETTINGS.all_rounds, SETTINGS.tiles, SETTINGS.rows)
    for commit, expected in zip(run.commits(), alone.commits(), strict=True):
        assert commit.keys() == expected.keys()
        for name in ("rounds", "version", "env_steps", "episodes", "finished"):
            assert commit[name] == expected[name], name
        for kind in ("shards", "states"):
            order = [(ref["round"], ref["tile"]) for ref in commit[kind]]
            assert order == [(ref["round"], ref["tile"]) for ref in expected[kind]]
        assert commit["metrics"].keys() == expected["metrics"].keys()
        for name, value in expected["metrics"].items():
            assert commit["metrics"][name] == pytest.approx(value, rel=1e-2, abs=1e-6), name


@pytest.mark.parametrize(
    ("policy", "victims"),
    [
        ("multiple_learners", (("worker-1", 3), ("worker-0", 12))),
        ("central", (("server-0", 5), ("worker-0", 11))),
    ],
)
def test_losing_a_member_begins_the_stage_again(runs, undisturbed, policy, victims):
    """Whoever is killed, a learner, the one that others meet at, or the server: the flow ends with the same bytes."""
    flow, run = runs.train("killed", policy), runs.bench.run("killed")
    for member, round_ in victims:
        run.wait_for_round(round_, flow)
        runs.kill(member, "killed")
    flow.succeed()
    assert_same(run, undisturbed[policy].content())


def test_a_killed_flow_is_resumed_by_as_many_learners(runs, undisturbed):
    """To the same bytes; with another number it is refused, since that would round otherwise."""
    flow, run = runs.train("killed", "multiple_learners"), runs.bench.run("killed")
    run.wait_for_round(11, flow)
    flow.kill()
    runs.bench.resume("killed", "--learn-tasks", "1").refuse("placement.learn_tasks")
    runs.bench.resume("killed").succeed()
    assert_same(run, undisturbed["multiple_learners"].content())


def test_workers_of_its_own_are_those_of_the_policy(runs, undisturbed):
    """A run that brings its own workers has one process a learner and one for the server, and the same bytes."""
    runs.bench.train_alone("alone", SETTINGS, "--policy", "central", "--learn-tasks", "2").succeed()
    run = runs.bench.run("alone")
    assert_same(run, undisturbed["central"].content())
    members = run.timings()[-1]["members"]
    assert sorted(members) == ["server-0", "worker-0", "worker-1"]
    assert len({member["pid"] for member in members.values()}) == 3


def test_a_cluster_without_the_places_is_refused(runs):
    """Three learners on two places: with what there is, in one line."""
    flow = runs.bench.train("larger", SETTINGS, "--policy", "central", "--learn-tasks", "3", "--admission-seconds", "2")
    flow.refuse("3 places with learner=1 for 'worker', and there are 2")

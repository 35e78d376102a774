"""The same algorithm under several learners: the same parameters, the same files, and the same bytes after any loss."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import numpy as np
import pytest

from storage.shards import decode_shard
from storage.tensors import load_tensors

from .conftest import BRIEF, Bench, Settings
from .processes import Cluster
from .stored import StoredRun, assert_as_predicted, assert_same, assert_whole

SETTINGS = Settings(stages=2, rounds=8)
ALONE = "single_learner_coarse"
IN_STEP = ("multiple_learners", "gpu_only", "central")
TOLERANCE = 1e-5
NORMALIZED = ("--normalize-observation", "true", "--normalize-reward", "true")
"""So that learners also share what is kept from round to round."""


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A cluster that holds any policy's gang: one process to act, two to learn, one to serve parameters."""
    cluster = Cluster(1, 2, {}, tmp_path_factory.mktemp("places"), learners=2, servers=1)
    yield cluster
    cluster.close()


class Runs:
    """Where the runs of this module are made."""

    def __init__(self, bench: Bench, places: Cluster) -> None:
        self.bench = bench
        self.places = places

    def train(self, name: str, policy: str):
        learners = () if policy == ALONE else ("--learn-tasks", "2")
        return self.bench.train(name, SETTINGS, "--policy", policy, *learners, *NORMALIZED)

    def kill(self, member: str, run: str) -> None:
        os.kill(self.places.members.pid_of(member, run), signal.SIGKILL)


@pytest.fixture(scope="module")
def undisturbed(places, flow_environment, tmp_path_factory) -> dict[str, StoredRun]:
    """A run under each policy that nothing disturbed; that of `central` on workers of its own."""
    bench = Bench(tmp_path_factory.mktemp("undisturbed"), flow_environment, places.address)
    runs = Runs(bench, places)
    try:
        for policy in (ALONE, "multiple_learners", "gpu_only"):
            runs.train(policy, policy).succeed()
        bench.train_alone("central", SETTINGS, "--policy", "central", "--learn-tasks", "2", *NORMALIZED).succeed()
    finally:
        bench.close()
    return {policy: bench.run(policy) for policy in (ALONE, *IN_STEP)}


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
    return {name: np.asarray(value) for name, value in tensors.items() if name.startswith(("params/", "targets/"))}


def actions(run: StoredRun, round_: int) -> list[np.ndarray]:
    refs = [ref for ref in run.commits()[0]["shards"] if ref["round"] == round_]
    shards = [decode_shard(run.store.view(ref["name"]), None, ref["name"], ref["digest"]) for ref in refs]
    return [np.asarray(shard.columns["action"]) for shard in shards]


@pytest.mark.parametrize("policy", IN_STEP)
def test_the_policy_changes_no_parameter(undisturbed, policy):
    """At lag 0, after eight rounds and after sixteen: those of one learner, though they are rounded otherwise.

    Under `gpu_only`, environments are rounded otherwise as well.
    """
    run, alone = undisturbed[policy], undisturbed[ALONE]
    for stage in range(SETTINGS.stages):
        expected, found = parameters(alone, stage), parameters(run, stage)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=0, atol=TOLERANCE, err_msg=name)
    before, after = parameters(alone, 0), parameters(alone, 1)
    moved = max(float(np.abs(after[name] - before[name]).max()) for name in before if name.startswith("params/policy"))
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
    ("policy", "kills"), [("multiple_learners", {"worker-1": 3, "worker-0": 12}), ("gpu_only", {"worker-0": 3})]
)
def test_losing_a_learner_begins_the_stage_again(runs, undisturbed, policy, kills):
    """Whichever is killed, also the one that others meet at: the same flow ends with the same bytes."""
    flow, run = runs.train("killed", policy), runs.bench.run("killed")
    for member, round_ in kills.items():
        run.wait_for_round(round_, flow)
        runs.kill(member, "killed")
    flow.succeed()
    assert_same(run, undisturbed[policy].content())


@pytest.mark.parametrize("policy", [ALONE, *IN_STEP])
def test_what_crosses_processes_is_what_was_predicted(undisturbed, policy):
    """For every edge, and for no other: messages to the last one, bytes to what episodes add to shards."""
    assert_as_predicted(undisturbed[policy], SETTINGS)


def test_losing_the_server_or_the_flow_changes_no_byte(runs, undisturbed):
    """Killed one after the other, on other workers than the undisturbed run: a resume ends with the same bytes.

    A resume with another number of learners is refused, since that would round otherwise.
    """
    flow, run = runs.train("killed", "central"), runs.bench.run("killed")
    run.wait_for_round(3, flow)
    runs.kill("server-0", "killed")
    run.wait_for_round(11, flow)
    flow.kill()
    runs.bench.resume("killed", "--learn-tasks", "1").refuse("placement.learn_tasks")
    runs.bench.resume("killed").succeed()
    assert_same(run, undisturbed["central"].content())


def test_several_agents_survive_a_kill_and_another_policy(runs):
    """MAPPO with its learner killed ends with the same bytes, and two learners find the parameters of one."""
    agents = ("--environment.id", "simple_spread_v3", "--algorithm.name", "mappo")
    runs.bench.train("alone", BRIEF, *agents).succeed()
    alone = runs.bench.run("alone")
    flow, killed = runs.bench.train("killed", BRIEF, *agents), runs.bench.run("killed")
    killed.wait_for_round(3, flow)
    runs.kill("learn-0", "killed")
    flow.succeed()
    assert_same(killed, alone.content())
    runs.bench.train("split", BRIEF, *agents, "--policy", "multiple_learners", "--learn-tasks", "2").succeed()
    found = parameters(runs.bench.run("split"), 1)
    for name, value in parameters(alone, 1).items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=TOLERANCE, err_msg=name)


def test_a_policy_can_be_left_to_us(runs):
    """What was measured and chosen is said, and is part of the run; nothing of it is left open."""
    output = runs.bench.train("left", replace(SETTINGS, stages=1), "--policy", "auto", "--learn-tasks", "2").succeed()
    run = runs.bench.run("left")
    stored = run.folder.load()
    best = stored["chosen"]["candidates"][0]
    assert len(stored["chosen"]["candidates"]) >= 6
    for name in ("policy", "act_tasks", "env_tasks", "learn_tasks"):
        assert (
            stored["config"]["placement"][name] == stored["identity"]["placement"].get(name, best[name]) == best[name]
        )
    assert f"policy {best['policy']}: a round is predicted to take {best['policy']}" in " ".join(output.split())
    assert_whole(run, SETTINGS.rounds, SETTINGS.tiles, SETTINGS.rows // SETTINGS.stages)


def test_members_have_processes_of_their_own(undisturbed):
    """On the workers that a run brings along: one a learner, and one for the server."""
    members = undisturbed["central"].timings()[-1]["members"]
    assert sorted(members) == ["server-0", "worker-0", "worker-1"]
    assert len({member["pid"] for member in members.values()}) == 3


def test_learners_of_a_replay_end_as_one(runs, undisturbed):
    """Implicit Q-learning from chosen rows, of which shards have more or fewer: parameters of one learner."""
    source = undisturbed[ALONE]
    options = ("--from", ALONE, "--min-return", "20", "--algorithm.name", "iql", "--hidden", "[8]")
    portions = ("--shards-per-round", "5", "--rounds-per-stage", "4", "--max-stages", "1", "--evaluation-episodes", "4")
    where = ("--store", source.url, "--scheduler", runs.places.address)
    replays = {}
    for policy in ("learner_over_storage", "multiple_learners", "central"):
        learners = () if policy == "learner_over_storage" else ("--learn-tasks", "2")
        name = f"replayed-{policy.replace('_', '-')}"
        placed = ("--policy", policy, *learners)
        runs.bench.penstock("replay", name, *options, *portions, *placed, *where).succeed()
        replays[policy] = StoredRun(source.url, name)
    alone = replays.pop("learner_over_storage")
    expected = parameters(alone, 0)
    for policy, run in replays.items():
        found = parameters(run, 0)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=0, atol=TOLERANCE, err_msg=f"{policy} {name}")
        for count in ("env_steps", "version"):
            assert run.commits()[0][count] == alone.commits()[0][count]
        members = {part["member"] for half in ("learn", "server") for part in run.timings()[0].get(half, [])}
        assert members == {"worker-0", "worker-1"} | ({"server-0"} if policy == "central" else set())

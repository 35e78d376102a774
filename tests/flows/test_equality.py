"""Every algorithm under every policy: the same actions, the same parameters, and the same bytes after any loss."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from storage.errors import ConfigError
from tasks.config import build_config
from tasks.context import _load
from tasks.replay_config import build_replay_config
from tasks.start import check_placement
from tasks.streams import Purpose, seed_of
from tasks.tile import RoundBuffers, TileActor

from .conftest import Bench
from .equality_runs import ALGORITHMS, ALONE, NATIVE, POLICIES, Runs, Small, columns, parameters, policies_of, sources
from .processes import Cluster
from .stored import StoredRun, assert_as_predicted, assert_same, assert_whole

TOLERANCE = 1e-5
FLOW = "flow"
LAGS = {0: ALONE, 1: "single_learner_fine", 2: "multiple_learners", 4: "central"}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A cluster that holds any policy's gang: two processes act or step environments, two learn, one has parameters."""
    cluster = Cluster(2, 1, {}, tmp_path_factory.mktemp("places"), learners=2, servers=1)
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def runs(places, flow_environment, tmp_path_factory):
    """The runs that nothing disturbed."""
    bench = Bench(tmp_path_factory.mktemp("undisturbed"), flow_environment, places.address)
    yield Runs(bench)
    bench.close()


@pytest.fixture
def bench(places, flow_environment, tmp_path):
    """Where a test makes runs of its own; afterwards, the cluster is whole and idle again."""
    bench = Bench(tmp_path, flow_environment, places.address)
    yield bench
    bench.close()
    places.members.wait_whole(places.workers)
    places.members.wait_idle()


def assert_near(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], what: str) -> None:
    """The same names; choices and flags equal, numbers within the tolerance."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        tolerance = TOLERANCE if value.dtype.kind == "f" else 0
        np.testing.assert_allclose(found[name], value, rtol=0, atol=tolerance, err_msg=f"{what} {name}")


@pytest.mark.parametrize(
    ("algorithm", "policy"),
    [(algorithm, policy) for algorithm in ALGORITHMS for policy in policies_of(algorithm) if policy != ALONE],
)
def test_the_policy_changes_nothing(runs, algorithm, policy):
    """At lag 0, against one learner with actors: every row of every round, parameters and counts after each stage.

    Choices, flags, episodes and versions are equal, numbers to 1e-5, as sums are rounded otherwise; with one learner,
    every byte is equal. All members, in a process each, played the algorithm from the same text.
    """
    run, alone, small = runs.of(algorithm, policy), runs.of(algorithm, ALONE), Small(algorithm=algorithm)
    assert_whole(run, small.all_rounds, small.tiles, small.rows)
    expected = columns(alone)
    for place, found in columns(run).items():
        assert_near(found, expected[place], f"round, tile {place}")
    for stage, (mine, theirs) in enumerate(zip(run.commits(), alone.commits(), strict=True)):
        assert_near(parameters(run, stage), parameters(alone, stage), f"stage {stage}")
        assert mine.keys() == theirs.keys()
        for name in ("rounds", "version", "env_steps", "episodes", "finished"):
            assert mine[name] == theirs[name], name
        assert mine["metrics"].keys() == theirs["metrics"].keys()
        for name, value in theirs["metrics"].items():
            assert mine["metrics"][name] == pytest.approx(value, rel=1e-2, abs=1e-5), name
        if policy == "single_learner_fine":
            for kind in ("shards", "states", "snapshots", "checkpoint", "metrics", "evaluation"):
                assert mine[kind] == theirs[kind], kind
    before, after = parameters(alone, 0), parameters(alone, 1)
    moved = max(float(np.abs(after[name] - before[name]).max()) for name in before if name.startswith("params/"))
    assert moved > 100 * TOLERANCE, "a run that learns nothing shows nothing"
    assert sources(run) == sources(alone)
    assert len(sources(alone)) == 1
    members = run.timings()[0]["members"]
    assert len({member["pid"] for member in members.values()}) == len(members) > 1


@pytest.mark.parametrize("algorithm", ["behaviour_cloning", "iql"])
def test_learners_of_a_replay_end_as_one(runs, places, algorithm):
    """From chosen rows, of which shards have more or fewer: parameters of one learner, and the same counts."""
    source = runs.of("ppo", ALONE)
    rows = ("--from", source.name, "--min-return", "12", "--shards-per-round", "5", "--hidden", "[8]")
    portions = ("--rounds-per-stage", "4", "--max-stages", "2", "--evaluation-episodes", "1")
    where = ("--store", source.url, "--scheduler", places.address)
    replays: dict[str, StoredRun] = {}
    for policy in ("learner_over_storage", "multiple_learners", "central"):
        name = f"{algorithm}-{policy}".replace("_", "-")
        placed = ("--policy", policy, *POLICIES.get(policy, ()))
        runs.bench.penstock("replay", name, *rows, "--algorithm.name", algorithm, *portions, *placed, *where).succeed()
        replays[policy] = StoredRun(source.url, name)
    alone = replays.pop("learner_over_storage")
    for policy, run in replays.items():
        for stage, (mine, theirs) in enumerate(zip(run.commits(), alone.commits(), strict=True)):
            assert_near(parameters(run, stage), parameters(alone, stage), f"{policy}, stage {stage}")
            assert [mine[name] for name in ("env_steps", "version")] == [theirs["env_steps"], theirs["version"]]
        assert sources(run) == sources(alone)
        members = {part["member"] for half in ("learn", "server") for part in run.timings()[0].get(half, [])}
        assert members == {"worker-0", "worker-1"} | ({"server-0"} if policy == "central" else set())
    before, after = parameters(alone, 0), parameters(alone, 1)
    assert max(float(np.abs(after[name] - before[name]).max()) for name in before) > 100 * TOLERANCE


def test_a_replay_that_loses_a_learner_changes_no_byte(runs, bench, places):
    """Whenever that is: before the learners meet, while they do, while they learn, or between two stages."""
    source = runs.of("ppo", ALONE)
    rows = ("--from", source.name, "--shards-per-round", "5", "--algorithm.name", "iql", "--hidden", "[8]")
    portions = ("--rounds-per-stage", "4", "--max-stages", "3", "--evaluation-episodes", "1")
    where = (
        "--store",
        source.url,
        "--scheduler",
        places.address,
        "--policy",
        "multiple_learners",
        "--learn-tasks",
        "2",
    )
    for name, losses in (("whole", 0), ("disturbed", 2)):
        flow = bench.penstock("replay", name, *rows, *portions, *where)
        for _ in range(losses):
            places.members.wait_whole(places.workers)
            os.kill(places.members.pid_of("worker-1", name), signal.SIGKILL)
        flow.succeed()
    assert_same(StoredRun(source.url, "disturbed"), StoredRun(source.url, "whole").content())


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if policies_of(name) == NATIVE])
def test_what_torch_can_not_step_is_refused(algorithm):
    """Before anything starts, with the environments that it can."""
    settings = {"environment": {"id": "simple_spread_v3"}, "algorithm": {"name": algorithm}}
    with pytest.raises(ConfigError, match=r"'simple_spread_v3' has no torch version.*CartPole-v1, Pendulum-v1"):
        check_placement(build_config({**settings, "placement": {"policy": "gpu_only"}}))


@pytest.mark.parametrize("policy", ["single_learner_fine", "gpu_only", "environments"])
def test_a_replay_has_no_environments_to_place(policy):
    """So what is special about such a policy is refused, with those that are left."""
    with pytest.raises(ConfigError, match=f"placement.policy = '{policy}': a replay only learns, expected learner_"):
        build_replay_config({"source": {"runs": ["any"]}, "placement": {"policy": policy}})


@pytest.mark.parametrize(
    ("algorithm", "policy", "lost"),
    [
        ("impala", "single_learner_fine", ("env-1", "learn-0")),
        ("mappo", "multiple_learners", ("worker-1", "worker-0")),
        ("ppo", "gpu_only", (None, "worker-0")),
        ("sac", "environments", (None, "env-0")),
        ("dqn", "central", ("server-0", FLOW)),
    ],
)
def test_losing_a_process_changes_no_byte(runs, bench, places, algorithm, policy, lost):
    """Whoever is killed within the first stage or the second, whose window begins in the first: all bytes are the same.

    A member that is lost makes its stage begin again; a flow that is lost is resumed, and not with another number of
    learners, since that would round otherwise.
    """
    expected, small = runs.of(algorithm, policy).content(), Small(algorithm=algorithm)
    flow, run, said = Runs(bench).start("killed", algorithm, policy), bench.run("killed"), ""
    for stage, member in enumerate(lost):
        if stage:
            run.wait_for_commit(stage - 1, flow)
        if member is None:
            continue
        pid = flow.pid if member == FLOW else places.members.pid_of(member, "killed")
        run.wait_for_round(stage * small.rounds + 1, flow)
        os.kill(pid, signal.SIGKILL)
        if member == FLOW:
            assert flow.wait() == -signal.SIGKILL
            assert len(run.commits()) == stage
            said += flow.output
            bench.resume("killed", "--learn-tasks", "1").refuse("placement.learn_tasks")
            flow = bench.resume("killed")
    flow.succeed()
    said += flow.output
    for stage, member in enumerate(lost):
        assert member in (None, FLOW) or f"stage={stage} begins again: {member} was lost" in said
    assert_same(run, expected)


@pytest.mark.parametrize(("lag", "policy"), LAGS.items())
def test_rows_are_as_old_as_the_lag_and_no_older(runs, bench, tmp_path, lag, policy):
    """Round r of every tile, which makes version r + 1 of version r, says version r - lag, and is acted with it.

    So rounds 0 to lag are those of the first parameters, step for step, and the one after is not.
    """
    run = runs.of("impala", ALONE)
    if lag:
        Runs(bench).start("late", "impala", policy, lag=lag).succeed()
        run = bench.run("late")
    found, small = columns(run), Small(lag=lag)
    assert len(found) == small.all_rounds * small.tiles
    for (round_, _), shard in found.items():
        assert (shard["policy_version"] == max(0, round_ - lag)).all()
    context = _load(run.url, run.name, str(tmp_path / "cache"))
    params = context.algorithm.init(seed_of(context.config.seed, Purpose.PARAMETERS)).params
    for tile in range(small.tiles):
        actor, buffers = TileActor(context, tile), RoundBuffers(context, tile)
        actor.start()
        same = []
        for round_ in range(lag + 2):
            actor.act_round(0, params, buffers)
            same.append(
                all(
                    np.array_equal(buffers.arrays[name], found[round_, tile][name])
                    for name in ("action", "log_probability")
                )
            )
        actor.close()
        assert same == [True] * (lag + 1) + [False]


@pytest.mark.parametrize("policy", POLICIES)
def test_what_crosses_processes_is_what_was_predicted(runs, policy):
    """For every edge, and for no other: messages to the last one, bytes to what episodes add to shards and rounds."""
    run, small = runs.of("ppo", policy), Small()
    assert_as_predicted(run, small)
    if policy in ("single_learner_fine", "environments"):
        observations = (small.rounds * (small.round_steps - 1) + 1) * small.tiles
        for timings in run.timings():
            assert timings["edges"]["env -> act"]["bytes"] == observations * small.envs_per_tile * 16


def test_a_policy_can_be_left_to_us(bench):
    """What was measured and chosen is said, and is part of the run; nothing of it is left open."""
    small = Small(stages=1)
    output = bench.train("left", small, "--policy", "auto", "--learn-tasks", "2").succeed()
    run = bench.run("left")
    stored = run.folder.load()
    best = stored["chosen"]["candidates"][0]
    assert len(stored["chosen"]["candidates"]) >= 6
    for name in ("policy", "act_tasks", "env_tasks", "learn_tasks"):
        assert (
            stored["config"]["placement"][name] == stored["identity"]["placement"].get(name, best[name]) == best[name]
        )
    assert f"policy {best['policy']}: a round is predicted to take {best['policy']}" in " ".join(output.split())
    assert_whole(run, small.all_rounds, small.tiles, small.rows)

"""Every algorithm gives the same actions and parameters under every policy."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.storage.errors import ConfigError
from penstock.tasks.roles.acting.tile import RoundBuffers, TileActor
from penstock.tasks.runtime.run_context import _load
from penstock.tasks.seeds import Purpose, seed_of
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.planning.preflight import check_distribution

from ...support.stored.stored_run import assert_as_predicted, assert_whole
from .equality_runs import (
    ALGORITHMS,
    ALONE,
    APART,
    POLICIES,
    TOLERANCE,
    Small,
    assert_near,
    columns,
    parameters,
    policies_of,
    sources,
    start,
)

LAGS = {0: ALONE, 1: "single_learner_fine", 2: "multiple_learners", 4: "central"}


@pytest.mark.parametrize(
    ("algorithm", "policy"),
    [
        pytest.param(algorithm, policy, marks=[] if algorithm == "ppo" else [pytest.mark.slow])
        for algorithm in ALGORITHMS
        for policy in policies_of(algorithm)
        if policy != ALONE
    ],
)
def test_every_policy_gives_the_same_run(policy_runs, algorithm, policy):
    """At lag 0, rows, parameters and counts equal those of one learner with actors, in every round and stage.

    Choices, flags, episodes and versions are equal, numbers to 1e-5, as sums are rounded differently; with one learner,
    and with learners that own agents and so add up nothing, every byte is equal. All members, in a process each, run
    the same source of the algorithm.
    """
    runs = policy_runs.get_all(algorithm, (ALONE, policy) if policy == "agents" else policies_of(algorithm))
    run, alone, small = runs[policy], runs[ALONE], Small(algorithm=algorithm)
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
        if policy in ("single_learner_fine", "agents"):
            for kind in ("shards", "states", "snapshots", "checkpoint", "metrics", "evaluation"):
                assert mine[kind] == theirs[kind], kind
    before, after = parameters(alone, 0), parameters(alone, 1)
    moved = max(float(np.abs(after[name] - before[name]).max()) for name in before if name.startswith("params/"))
    assert moved > 100 * TOLERANCE, "the parameters must change, or their equality shows nothing"
    if algorithm == "ppo-options":
        learned = sum(learner["update_rows"] for timings in run.timings() for learner in timings["learn"])
        assert small.rows < learned < 3 * small.rows, "some rounds must end early, and some must not"
    assert sources(run) == sources(alone)
    assert len(sources(alone)) == 1
    members = run.timings()[0]["members"]
    assert len({member["pid"] for member in members.values()}) == len(members) > 1


def test_an_environment_that_no_batch_steps_is_refused():
    """The error comes before anything starts and lists the environments that `gpu_only` can step."""
    settings = {"environment": {"id": "gymnasium/CartPole-v1"}, "distribution": {"policy": "gpu_only"}}
    with pytest.raises(ConfigError, match=r"'gymnasium/CartPole-v1' cannot be stepped in tensors.*Acrobot-v1, Cart"):
        check_distribution(build_config(settings))


@pytest.mark.parametrize(
    "policy", [pytest.param(policy, marks=[pytest.mark.slow] if policy == "agents" else []) for policy in POLICIES]
)
def test_traffic_between_processes_is_as_predicted(policy_runs, policy):
    """Every edge, and no other, has exactly the predicted messages, and the bytes but for what episodes add."""
    algorithm = APART if policy == "agents" else "ppo"
    run, small = policy_runs.get(algorithm, policy), Small()
    assert_as_predicted(run, small)
    if policy in ("single_learner_fine", "environments"):
        observations = (small.rounds * (small.round_steps - 1) + 1) * small.tiles
        for timings in run.timings():
            assert timings["edges"]["env -> act"]["bytes"] == observations * small.envs_per_tile * 16


@pytest.mark.parametrize("policy", POLICIES)
def test_rounds_of_the_learners_own_process_are_not_read(policy_runs, policy):
    """A process with both an actor and a learner hands the rows over; the shards are stored all the same."""
    run, small = policy_runs.get(APART if policy == "agents" else "ppo", policy), Small()
    assert_whole(run, small.all_rounds, small.tiles, small.rows)
    read_bytes = [learner["pipeline"]["read_bytes"] for timings in run.timings() for learner in timings["learn"]]
    assert all((nbytes > 0) == (policy in (ALONE, "agents")) for nbytes in read_bytes), read_bytes


@pytest.mark.parametrize(
    ("lag", "policy"),
    [pytest.param(lag, policy, marks=[pytest.mark.slow] if lag != 2 else []) for lag, policy in LAGS.items()],
)
def test_rows_are_exactly_as_old_as_the_lag(policy_runs, policy_bench, tmp_path, lag, policy):
    """Round r of every tile, which makes version r + 1 of version r, records version r - lag and is acted with it.

    So rounds 0 to lag equal those of the first parameters, step for step, and the next one does not.
    """
    if lag:
        start(policy_bench, "late", "impala", policy, lag=lag).succeed()
        run = policy_bench.run("late")
    else:
        run = policy_runs.get("impala", ALONE)
    found, small = columns(run), Small(lag=lag)
    assert len(found) == small.all_rounds * small.tiles
    for (round_, _), shard in found.items():
        assert (shard["policy_version"] == max(0, round_ - lag)).all()
    context = _load(run.url, run.name, "", str(tmp_path / "cache"))
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


@pytest.mark.slow
def test_auto_chooses_a_policy_and_records_it(policy_bench):
    """The measured candidates and the choice are printed and stored with the run, with every number of tasks."""
    small = Small(stages=1)
    output = policy_bench.train("left", small, "--policy", "auto", "--learn-tasks", "2").succeed()
    run = policy_bench.run("left")
    stored = run.folder.load()
    best = stored["chosen"]["candidates"][0]
    assert len(stored["chosen"]["candidates"]) >= 6
    for name in ("policy", "act_tasks", "env_tasks", "learn_tasks"):
        assert (
            stored["config"]["distribution"][name]
            == stored["identity"]["placement"].get(name, best[name])
            == best[name]
        )
    assert f"policy {best['policy']}: a round is predicted to take {best['policy']}" in " ".join(output.split())
    assert_whole(run, small.all_rounds, small.tiles, small.rows)

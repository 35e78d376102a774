"""Replays under policies with several learners equal those of one learner."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from penstock.storage.errors import ConfigError
from penstock.tasks.setup.config.replay import build_replay_config

from ...support.stored.stored_run import StoredRun, assert_same
from .equality_runs import (
    ALONE,
    POLICIES,
    TOLERANCE,
    assert_near,
    parameters,
    sources,
)

MEMORY = ("--network", "recurrent", "--features", "8", "--sequence-steps", "4", "--burn-in-steps", "2")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("behaviour_cloning", ()),
        ("behaviour_cloning", MEMORY),
        ("iql", ()),
        ("iql", ("--activation", "relu", "--anneal-minibatches", "6", "--adam-epsilon", "1e-8")),
        ("iql", MEMORY),
        ("td3_bc", ()),
        ("td3_bc", ("--moment-rounds", "2")),
    ],
    ids=["cloning", "cloning, memory", "iql", "iql, annealed", "iql, memory", "td3_bc", "td3_bc, moments first"],
)
def test_several_learners_of_a_replay_equal_one(policy_runs, policy_cluster, algorithm, settings):
    """Replayed from selected rows, of which shards have different numbers, parameters and counts are those of one."""
    vectors = algorithm == "td3_bc"
    source = policy_runs.get("sac" if vectors else "ppo", ALONE)
    selected = () if vectors else ("--min-return", "12")
    rows = ("--from", source.name, *selected, "--shards-per-round", "5", "--hidden", "[8]")
    portions = ("--rounds-per-stage", "4", "--max-stages", "2", "--evaluation-episodes", "1")
    where = ("--store", source.url, "--scheduler", policy_cluster.address)
    replays: dict[str, StoredRun] = {}
    for policy in ("learner_over_storage", "multiple_learners", "central"):
        name = f"{algorithm}-{policy}-{len(settings)}".replace("_", "-")
        placed = ("--policy", policy, *POLICIES.get(policy, ()))
        policy_runs.bench.penstock(
            "replay", name, *rows, "--algorithm.name", algorithm, *settings, *portions, *placed, *where
        ).succeed()
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [("iql", ()), ("iql", MEMORY), ("behaviour_cloning", ()), ("behaviour_cloning", MEMORY), ("td3_bc", ())],
    ids=["iql", "iql, memory", "cloning", "cloning, memory", "td3_bc"],
)
def test_a_replay_that_loses_a_learner_changes_no_byte(policy_runs, policy_bench, policy_cluster, algorithm, settings):
    """The learner may be killed before the rendezvous, during it, while it learns, or between two stages."""
    source = policy_runs.get("sac" if algorithm == "td3_bc" else "ppo", ALONE)
    learned = ("--algorithm.name", algorithm, "--hidden", "[8]", *settings)
    rows = ("--from", source.name, "--shards-per-round", "5", *learned)
    portions = ("--rounds-per-stage", "4", "--max-stages", "3", "--evaluation-episodes", "1")
    where = (
        "--store",
        source.url,
        "--scheduler",
        policy_cluster.address,
        "--policy",
        "multiple_learners",
        "--learn-tasks",
        "2",
    )
    kind = f"{algorithm}-{len(settings)}"
    for name, losses in ((whole := f"whole-{kind}", 0), (disturbed := f"disturbed-{kind}", 2)):
        flow = policy_bench.penstock("replay", name, *rows, *portions, *where)
        for _ in range(losses):
            policy_cluster.members.wait_whole(policy_cluster.workers)
            os.kill(policy_cluster.members.pid_of("worker-1", name, flow), signal.SIGKILL)
        flow.succeed()
    assert_same(StoredRun(source.url, disturbed), StoredRun(source.url, whole).content())


@pytest.mark.parametrize("policy", ["single_learner_fine", "gpu_only", "environments"])
def test_a_replay_refuses_policies_that_place_environments(policy):
    """The error lists the policies that a replay accepts."""
    with pytest.raises(ConfigError, match=f"distribution.policy = '{policy}': a replay only learns, expected learner_"):
        build_replay_config({"source": {"runs": ["any"]}, "distribution": {"policy": policy}})

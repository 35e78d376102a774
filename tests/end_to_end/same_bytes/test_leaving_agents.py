"""Runs in which one of two agents leaves its episodes: under every policy the same, and after a kill."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from penstock import native

from ...support.environments.leaving import LEAVING
from ...support.stored.stored_run import assert_same, assert_whole
from ..conftest import BRIEF
from .equality_runs import ALONE, ANY, POLICIES, assert_near, columns, parameters

if TYPE_CHECKING:
    from ..conftest import Bench

SETTINGS = replace(BRIEF, tiles=3)
MAPPO = (
    "--algorithm.name",
    "mappo",
    "--algorithm.normalize-observation",
    "true",
    "--algorithm.normalize-value",
    "true",
)
MEMORY = ("--algorithm.network", "recurrent", "--algorithm.features", "8", "--algorithm.sequence-steps", "8")
IPPO = ("--algorithm.name", "ippo", *MEMORY, "--algorithm.value-after-leaving", "false")


def header(bench: Bench) -> tuple[str, ...]:
    """Write the header, and compile it before, so that no member of a run is late."""
    file = bench.folder / "leaving.hpp"
    file.write_text(LEAVING)
    native.load(f"{LEAVING}\n")
    small = ("--algorithm.hidden", "[8]", "--algorithm.epochs", "1", "--algorithm.minibatches", "2")
    return "--environment.header", str(file), *small


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [MAPPO, IPPO], ids=["mappo", "ippo"])
def test_a_killed_run_ends_with_the_same_bytes(bench, algorithm):
    """Masks that allow nothing are in the stored rows, from which the second stage is learned again."""
    options = (*header(bench), *algorithm)
    bench.train("undisturbed", SETTINGS, *options).succeed()
    flow, run = bench.train("killed", SETTINGS, *options), bench.run("killed")
    run.wait_for_round(SETTINGS.rounds + 2, flow)
    flow.kill()
    bench.resume("killed").succeed()
    assert_whole(run, SETTINGS.all_rounds, SETTINGS.tiles, SETTINGS.rows)
    assert_same(run, bench.run("undisturbed").content())


@pytest.mark.slow
def test_every_policy_learns_the_same_of_a_team_whose_agents_leave(policy_bench):
    """Parameters and moments; agents that have left are there in the rows, and take choice 0 with probability 1."""
    options = (*header(policy_bench), *MAPPO)
    names = {policy: f"leaving-{policy.replace('_', '-')}" for policy in ANY}
    flows = [
        policy_bench.train(name, SETTINGS, *options, "--policy", policy, *POLICIES[policy])
        for policy, name in names.items()
    ]
    for flow in flows:
        flow.succeed()
    runs = {policy: policy_bench.run(name) for policy, name in names.items()}
    for policy, run in runs.items():
        for stage in range(SETTINGS.stages):
            assert_near(parameters(run, stage), parameters(runs[ALONE], stage), f"{policy}, stage {stage}:")
    shards = columns(runs[ALONE]).values()
    there, action, log_probability = (
        np.concatenate([shard[name] for shard in shards]) for name in ("observation", "action", "log_probability")
    )
    left = there[..., 3:6].sum(-1) == 0
    assert 0 < left.sum() < left.size
    assert not action[left][:, 1].any()
    assert not log_probability[left][:, 1].any()

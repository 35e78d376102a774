"""Runs of environments of another library, whose state cannot be saved, are resumed to the same bytes too."""

from __future__ import annotations

import os
import signal

import numpy as np

from ..support.stored_run import assert_same, assert_whole
from .conftest import Settings
from .equality_runs import columns

SETTINGS = Settings(stages=2, rounds=12, tiles=2, act_tasks=1)
ENVIRONMENT = ("--environment.id", "gymnasium/CartPole-v1")


def test_a_killed_run_of_gymnasium_environments_ends_with_the_same_bytes(bench, cluster):
    """Act task and flow are killed in the second stage. Each stage starts new episodes and continues their numbers."""
    bench.train("undisturbed", SETTINGS, *ENVIRONMENT).succeed()
    with cluster.members.learners_held():
        flow, run = bench.train("killed", SETTINGS, *ENVIRONMENT), bench.run("killed")
        actor = cluster.members.pid_of("act-0", "killed")
    run.wait_for_round(SETTINGS.rounds + 3, flow)
    os.kill(actor, signal.SIGKILL)
    run.wait_for_round(SETTINGS.rounds + 8, flow)
    flow.kill()
    bench.resume("killed").succeed()
    assert_whole(run, SETTINGS.all_rounds, SETTINGS.tiles, SETTINGS.rows)
    assert_same(run, bench.run("undisturbed").content())
    ids = {stage: [] for stage in range(SETTINGS.stages)}
    for (round_, _), shard in columns(run).items():
        ids[round_ // SETTINGS.rounds].append(shard["episode_id"])
    assert np.min(ids[1]) == SETTINGS.rounds * SETTINGS.round_steps > np.max(ids[0]) > 0

"""Runs of environments of another library are resumed to the same bytes too, whether or not a state can be saved."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from penstock import native

from ...support.environments import structured, structured_environments
from ...support.environments.seeing_teams import SEEING
from ...support.environments.structured import CHOICES, MASKED
from ...support.environments.structured_environments import SCENE
from ...support.services.environment_server import EnvironmentProcess
from ...support.stored.stored_run import assert_same, assert_whole
from ..conftest import BRIEF, Settings
from ..same_bytes.equality_runs import columns

SETTINGS = Settings(stages=2, rounds=12, tiles=2, act_tasks=1)
NORMALIZED = "['gymnasium.wrappers.NormalizeObservation']"
STICKY = "[{name = 'gymnasium.wrappers.StickyAction', settings = {repeat_action_probability = 0.25}}]"
STRUCTURED = ("--environment.structured", "true", "--algorithm.network", "leaves")
SEEN = "{masked = true, leaving = true}"
FAMILIES = {
    "wrappers": ("gymnasium/CartPole-v1", "--wrappers", NORMALIZED),
    "sticky actions": ("gymnasium/Acrobot-v1", "--wrappers", STICKY),
    "minatar": ("MinAtar/Breakout-v1", "--algorithm.network", "small"),
    "box2d": ("LunarLander-v3",),
    "minigrid": ("minigrid/MiniGrid-Empty-5x5-v0", "--algorithm.network", "small"),
    "structured minigrid": ("minigrid/MiniGrid-Empty-5x5-v0", *STRUCTURED),
    "envpool": ("envpool/CartPole-v1",),
    "masked envpool": ("envpool/Knapsack-v1", *STRUCTURED, "--environment.action-mask", "observation"),
    "dm-control": ("dm_control/cartpole-balance",),
    "control-suite": ("dmc/reacher-easy", "--environment.max-episode-steps", "150"),
    "pettingzoo": ("pettingzoo/mpe/simple_speaker_listener_v4", "--algorithm.name", "mappo"),
    "turns": ("pettingzoo/classic/connect_four_v3", "--algorithm.name", "ippo"),
    "structured": (f"{structured_environments.__name__}:{SCENE}", *STRUCTURED),
    "structured team": (SEEING, "--algorithm.name", "mappo", "--environment.settings", SEEN, *STRUCTURED),
    "mjx": ("mjx/CartpoleBalance", "--environment.max-episode-steps", "150"),
    "brax": ("brax/inverted_pendulum",),
}
"""Ids and other options."""


def killed_and_resumed(bench, cluster, *options: str, meanwhile=lambda: None):
    """The killed run and the undisturbed one: act task and flow are killed in the second stage."""
    bench.train("undisturbed", SETTINGS, *options).succeed()
    with cluster.members.learners_held():
        flow, run = bench.train("killed", SETTINGS, *options), bench.run("killed")
        actor = cluster.members.pid_of("act-0", "killed", flow)
    run.wait_for_round(SETTINGS.rounds + 3, flow)
    meanwhile()
    os.kill(actor, signal.SIGKILL)
    run.wait_for_round(SETTINGS.rounds + 8, flow)
    meanwhile()
    flow.kill()
    bench.resume("killed").succeed()
    assert_whole(run, SETTINGS.all_rounds, SETTINGS.tiles, SETTINGS.rows)
    assert_same(run, bench.run("undisturbed").content())
    return run


@pytest.mark.slow
def test_a_killed_run_of_gymnasium_environments_ends_with_the_same_bytes(bench, cluster):
    """Each stage starts new episodes and continues their numbers."""
    run = killed_and_resumed(bench, cluster, "--environment.id", "gymnasium/CartPole-v1")
    ids = {stage: [] for stage in range(SETTINGS.stages)}
    for (round_, _), shard in columns(run).items():
        ids[round_ // SETTINGS.rounds].append(shard["episode_id"])
    assert np.min(ids[1]) == SETTINGS.rounds * SETTINGS.round_steps > np.max(ids[0]) > 0


@pytest.mark.slow
def test_a_run_behind_a_socket_ends_with_the_same_bytes_without_its_server_for_a_while(bench, cluster):
    """The server is killed and started again, twice, between kills of the actor and the flow."""
    with EnvironmentProcess() as server:

        def restarted():
            server.kill()
            server.start()

        address = ("--environment.address", server.address)
        killed_and_resumed(bench, cluster, "--environment.id", "socket/CartPole-v1", *address, meanwhile=restarted)


@pytest.mark.slow
def test_a_run_of_a_served_environment_with_a_mask_ends_with_the_same_bytes_without_flow_and_server(bench):
    """Both are killed in the second stage. Its observations are structured, and it refuses what its mask forbids."""
    options = ("--environment.id", f"socket/{MASKED}", *STRUCTURED, "--environment.action-mask", "info")
    with EnvironmentProcess(f"{structured.__name__}:{MASKED}") as server:
        options = (*options, "--environment.address", server.address)
        bench.train("undisturbed", BRIEF, *options).succeed()
        flow, run = bench.train("killed", BRIEF, *options), bench.run("killed")
        run.wait_for_round(BRIEF.rounds + 1, flow)
        flow.kill()
        server.kill()
        assert len(run.commits()) == 1
        server.start()
        bench.resume("killed").succeed()
    assert_whole(run, BRIEF.all_rounds, BRIEF.tiles, BRIEF.rows)
    assert_same(run, bench.run("undisturbed").content())
    for shard in columns(run).values():
        allowed = shard["observation"][..., :CHOICES]
        assert (allowed.sum(-1) == CHOICES - 1).all()
        assert np.take_along_axis(allowed, shard["action"][..., None], -1).all()


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_killed_run_of_a_family_ends_with_the_same_bytes(bench, cluster, family):
    """Also where generators or wrappers keep something over episodes, and with structured observations and actions."""
    environment_id, *options = FAMILIES[family]
    try:
        native.make(environment_id, 1, one_array=True).close()
    except (ImportError, ValueError) as error:
        pytest.skip(str(error))
    killed_and_resumed(bench, cluster, "--environment.id", environment_id, *options)

"""A quorum below 1 and stale gradients are refused where they are unsupported, and so is what an environment is not."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

from penstock.flows.support.plan import plan
from penstock.flows.sweeps.points import Point, check_points
from penstock.storage.errors import ConfigError
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store
from penstock.tasks.driver.run import describe_run
from penstock.tasks.setup.config.loading import build_config, merge, with_overrides
from penstock.tasks.setup.config.replay import build_replay_config
from penstock.tasks.setup.planning.preflight import check_device, check_distribution
from penstock.tasks.setup.planning.resolve import resolve

FOUR_TILES = {
    "environment": {"num_envs": 8, "envs_per_tile": 2},
    "distribution": {"act_tasks": 4, "quorum": 0.75},
}


def test_four_tiles_in_four_tasks_may_miss_one():
    """`run.json` names the promise that is given up, with the reason."""
    config = build_config(FOUR_TILES)
    check_distribution(config)
    assert config.shards_needed == 3
    promise = describe_run(config)["promise"]
    assert promise["same_bytes"] is False
    assert "quorum 0.75" in promise["because"]
    assert "stored choices" in promise["because"]


@pytest.mark.parametrize(("quorum", "tiles", "needed"), [(0.1, 30, 3), (0.7, 10, 7), (0.34, 3, 2), (0.01, 4, 1)])
def test_a_quorum_counts_whole_shards(quorum, tiles, needed):
    """The number is rounded up without floating-point error, and is at least one."""
    values = {"environment": {"num_envs": tiles, "envs_per_tile": 1}, "distribution": {"quorum": quorum}}
    assert build_config(values).shards_needed == needed


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"distribution": {"policy": "multiple_learners", "act_tasks": 1, "learn_tasks": 2}}, "wait for each other"),
        ({"distribution": {"policy": "central", "act_tasks": 1}}, "wait for each other"),
        ({"distribution": {"policy": "single_learner_fine", "act_tasks": 1, "env_tasks": 4}}, "wait for each other"),
        ({"distribution": {"act_tasks": 2}}, "2 act tasks share 4 tiles.*act_tasks = 4"),
        ({"distribution": {"min_act_tasks": 1}}, "min_act_tasks = 1 lets stages begin with fewer"),
        ({"distribution": {"quorum": 0.9}}, "requires all of a round"),
        ({"algorithm": {"name": "dqn"}}, "'dqn' learns from a window"),
    ],
)
def test_it_is_refused_where_a_round_needs_all(changes, said):
    """The message has the setting, the reason and a remedy."""
    with pytest.raises(ConfigError, match=rf"^distribution.quorum = 0\.\d+: .*{said}"):
        check_distribution(build_config(merge(FOUR_TILES, changes)))


def test_a_quorum_is_refused_for_a_replay():
    """All shards of a replay are stored already."""
    config = build_replay_config(
        {"source": {"runs": ["one"]}, "distribution": {"policy": "learner_over_storage", "quorum": 0.5}}
    )
    with pytest.raises(ConfigError, match="a replay reads stored shards"):
        check_distribution(config)


def test_minibatches_fit_into_the_smallest_round():
    """Two of four tiles are 12 rows: a thirteenth minibatch would be empty."""
    values = {
        "environment": {"num_envs": 8, "envs_per_tile": 2},
        "schedule": {"round_steps": 3},
        "distribution": {"quorum": 0.5},
    }
    assert build_config(merge(values, {"algorithm": {"minibatches": 12}})).shards_needed == 2
    with pytest.raises(ConfigError, match=r"minibatches = 13, but a round has only 12 rows"):
        build_config(merge(values, {"algorithm": {"minibatches": 13}}))


STALE = {
    "environment": {"num_envs": 8, "envs_per_tile": 2},
    "distribution": {"policy": "central", "learn_tasks": 2, "max_staleness": 1},
}


def test_learners_may_be_ahead_at_a_parameter_server():
    """Also in a replay, and for an algorithm with a window; `run.json` names the promise that is given up."""
    config = build_config(STALE)
    check_distribution(config)
    promise = describe_run(config)["promise"]
    assert promise["same_bytes"] is False
    assert "max_staleness 1" in promise["because"]
    assert "stored orders" in promise["because"]
    check_distribution(build_config(merge(STALE, {"algorithm": {"name": "dqn"}})))
    replay = build_replay_config({"source": {"runs": ["one"]}, **STALE})
    check_distribution(replay)
    assert describe_run(replay)["promise"]["same_bytes"] is False


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"distribution": {"policy": "multiple_learners"}}, "'multiple_learners' has no parameter server.*'central'"),
        ({"distribution": {"policy": "single_learner_coarse", "learn_tasks": 1}}, "has no parameter server"),
        ({"distribution": {"learn_tasks": 1}}, "one learner has no other.*learn_tasks = 2"),
        ({"algorithm": {"name": "dqn", "priority_exponent": 0.6}}, "'dqn' draws rows by priority.*exponent = 0"),
        ({"algorithm": {"anneal_rounds": 9}}, "2 learners take 2 times as many.*anneal_rounds = 0"),
    ],
)
def test_max_staleness_is_refused_where_steps_depend_on_all_learners(changes, said):
    """The message has the setting, the reason and a remedy."""
    with pytest.raises(ConfigError, match=rf"^distribution.max_staleness = 1: .*{said}"):
        check_distribution(build_config(merge(STALE, changes)))


def test_max_staleness_is_refused_with_any_annealing():
    """IQL's schedule counts minibatches, of which two learners take twice as many."""
    replay = {
        "source": {"runs": ["any"]},
        "algorithm": {"name": "iql", "anneal_minibatches": 100},
        "distribution": STALE["distribution"],
    }
    with pytest.raises(ConfigError, match=r"distribution.max_staleness = 1: .*algorithm.anneal_minibatches = 0"):
        check_distribution(build_replay_config(replay))


def test_roles_that_act_nowhere_are_for_replays():
    """The message names the fragments that are missing."""
    roles = {"learner": {"fragments": ["buffer", "learn", "sync"]}}
    with pytest.raises(ConfigError, match="no role has the fragments env, act and collect"):
        check_distribution(build_config({"distribution": {"policy": "mine", "roles": roles}}))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_cuda_device_that_is_not_there_is_refused():
    """For workers on this machine; those of a cluster are elsewhere, and `auto` takes what there is."""
    with pytest.raises(ConfigError, match=r"device = .cuda.*no CUDA device.*device .auto.*cluster.scheduler"):
        check_device(build_config({"distribution": {"device": "cuda"}}))
    check_device(build_config({"distribution": {"device": "cuda"}, "cluster": {"scheduler": "tcp://gpu:8786"}}))
    check_device(build_config({"distribution": {"device": "auto"}}))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"environment": {"id": "Pendulum-v1"}, "algorithm": {"name": "dqn"}}, "it needs discrete actions"),
        ({"algorithm": {"name": "sac"}}, "it needs vectors as actions"),
        ({"environment": {"id": "ALE/Pong-v5"}, "algorithm": {"name": "dqn"}}, r"observes images \[4, 84, 84\]"),
        ({"environment": {"settings": {"gravitee": 1.0}}}, "no configuration field 'gravitee'"),
        ({"environment": {"id": "test/Odd-v0"}}, "action space Text.*TransformAction"),
        ({"environment": {"id": "test/Talks-v0"}}, "observation space Sequence.*encodes it as a Box"),
        ({"environment": {"id": "test/Says-v0"}}, r"observes text \('said'\), .*FilterObservation.*TransformObs"),
        (
            {"environment": {"id": "test/Says-v0", "structured": True}},
            r"test/Says-v0 observes text \('said'\), which no network here reads",
        ),
        (
            {"environment": {"id": "test/Sees-v0"}, "algorithm": {"network": "residual"}},
            r"network = 'residual': test/Sees-v0 observes \[20, 20, 3\], .*channels last, .*channels = 'last'",
        ),
    ],
)
def test_plan_refuses_what_train_refuses_with_the_same_line(tmp_path, odd_environments, values, said):
    """No trial is started: the line is that of `train`, and its remedy is one that settings can follow."""
    config = build_config(merge({"store": str(tmp_path)}, values))
    lines = set()
    for refuse in (plan, lambda config: resolve(config, "refuse")):
        with pytest.raises(ConfigError, match=said) as caught:
            refuse(config)
        lines.add(str(caught.value))
    (line,) = lines
    assert "\n" not in line


@pytest.fixture
def odd_environments():
    spaces = gymnasium.spaces

    class Odd(gymnasium.Env):
        observation_space, action_space = spaces.Box(0, 1, (2,)), spaces.Text(3)

    class Talks(gymnasium.Env):
        observation_space, action_space = spaces.Sequence(spaces.Discrete(3)), spaces.Discrete(2)

    class Says(gymnasium.Env):
        observation_space = spaces.Dict(said=spaces.Text(3), seen=spaces.Box(0, 1, (2,)))
        action_space = spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return {"said": "abc", "seen": np.zeros(2, np.float32)}, {}

        def step(self, action):
            return {"said": "abc", "seen": np.zeros(2, np.float32)}, 0.0, False, False, {}

    class Sees(Says):
        observation_space = spaces.Box(0, 255, (20, 20, 3), np.uint8)

        def reset(self, *, seed=None, options=None):
            gymnasium.Env.reset(self, seed=seed)
            return np.zeros((20, 20, 3), np.uint8), {}

        def step(self, action):
            return np.zeros((20, 20, 3), np.uint8), 0.0, False, False, {}

    made = {"test/Odd-v0": Odd, "test/Talks-v0": Talks, "test/Says-v0": Says, "test/Sees-v0": Sees}
    for env_id, entry_point in made.items():
        gymnasium.register(env_id, entry_point)
    yield
    for env_id in made:
        del gymnasium.registry[env_id]


@pytest.mark.parametrize(
    ("env_id", "algorithm"), [("test/Says-v0", {}), ("test/Sees-v0", {"network": "residual", "hidden": [8]})]
)
def test_observations_that_are_refused_do_not_end_a_stored_run(tmp_path, odd_environments, env_id, algorithm):
    """It was begun before they were: neither its resume nor that of a sweep with it is refused, as a new run is."""
    values = {"store": str(tmp_path), "name": "mine", "environment": {"id": env_id}, "algorithm": algorithm}
    config = build_config(values)
    with pytest.raises(ConfigError, match=env_id):
        resolve(config, "refuse")
    with pytest.raises(ConfigError, match=env_id):
        check_points([Point({}, config)])
    RunFolder(open_store(str(tmp_path)), "mine").create({"config": {}})
    assert resolve(config, "resume").exists
    check_points([Point({}, config)])


SPREAD = {
    "environment": {"id": "simple_spread_v3"},
    "algorithm": {"name": "ippo", "shared_parameters": False},
    "distribution": {"policy": "agents", "learn_tasks": 2},
}


LISTED = {
    "policy": "mine",
    "roles": {
        "act": {"fragments": ["env", "act", "collect"]},
        "learn": {
            "fragments": ["buffer", "learn", "sync"],
            "replicas": "learn_tasks",
            "agents": [[0, 1], [1]],
        },
    },
}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"algorithm": {"hidden": [64, 1_000_000]}}, r"algorithm\.hidden\.1 = 1000000: .* 65536"),
        ({"algorithm": {"hidden": [8] * 65}}, r"algorithm\.hidden .* 64"),
        ({"schedule": {"rounds_per_stage": 10**12}}, r"rounds_per_stage = 1000000000000: .* 1048576"),
        ({"schedule": {"round_steps": 10**9}}, r"round_steps = 1,000,000,000 and .*envs_per_tile = 64: .* GiB of obs"),
    ],
)
def test_sizes_that_no_machine_holds_are_refused(values, said):
    """A worker would take all memory first, and then fail with its allocator's words."""
    with pytest.raises(ConfigError, match=said):
        plan(build_config(values))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"algorithm": {"shared_parameters": True}},
            "'ippo': its agents, if any, share all parameters.*or ippo with .* = false",
        ),
        (
            {"algorithm": {"name": "ppo"}, "environment": {"id": "CartPole-v1"}},
            "name = 'ppo': its agents, if any, share all",
        ),
        ({"distribution": {"learn_tasks": 4}}, "4 learners, and simple_spread_v3 only 3 agents"),
        ({"distribution": LISTED}, r"agents = \[\[0, 1\], \[1\]\]: simple_spread_v3 has .*missing: \[2\]; .*: \[1\]"),
    ],
    ids=["shared", "no agents", "too many learners", "listed twice"],
)
def test_agents_that_no_single_learner_can_own_are_refused(changes, said):
    """Before anything starts, with what was found and what to set."""
    with pytest.raises(ConfigError, match=said):
        check_distribution(build_config(with_overrides(SPREAD, changes)))


def test_learners_that_own_agents_may_be_more_than_tiles():
    """Each reads all tiles' rows; three agents can have three learners with one tile."""
    values = merge(SPREAD, {"environment": {"num_envs": 4, "envs_per_tile": 4}, "distribution": {"learn_tasks": 3}})
    assert check_distribution(build_config(values)).learners == 3
    assert build_config(values).identity()["placement"]["learn_tasks"] == 3

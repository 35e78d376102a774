"""Settings of algorithms that learn from stored rows: older runs keep their identity, and mistakes are refused."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import native
from penstock.storage.errors import ConfigError
from penstock.tasks.environments.factory import make_pool
from penstock.tasks.setup.config.algorithm_base import check_bounds
from penstock.tasks.setup.config.loading import (
    PRESETS_FOLDER,
    REPLAY_PRESETS_FOLDER,
    load_preset,
    presets,
    with_overrides,
)
from penstock.tasks.setup.config.offline import BehaviourCloningSettings, IQLSettings, TD3BCSettings
from penstock.tasks.setup.config.replay import ReplayConfig, build_replay_config
from penstock.tasks.setup.planning.preflight import check_acting

LATER = {
    "behaviour_cloning": {"activation": "relu", "adam_epsilon": 1e-8, "bounded_mean": True},
    "iql": {"activation": "relu", "adam_epsilon": 1e-8, "bounded_mean": True, "anneal_minibatches": 9},
    "td3_bc": {"activation": "tanh", "moment_rounds": 1},
}
"""Settings that were added later, with other values than their defaults."""


def replay_of(**values: Any) -> ReplayConfig:
    return build_replay_config({"source": {"runs": ["any"]}, **values})


@pytest.mark.parametrize("name", LATER)
def test_settings_that_were_added_later_keep_older_runs_identities(name: str):
    """At their defaults the identity omits them; with any other value it has it."""
    plain = replay_of(algorithm={"name": name}).identity()["algorithm"]
    assert isinstance(plain, dict)
    assert not {*LATER[name]} & {*plain}
    for setting, value in LATER[name].items():
        assert replay_of(algorithm={"name": name, setting: value}).identity()["algorithm"] == {**plain, setting: value}


def test_activations_are_by_default_those_of_older_runs():
    """Tanh, but TD3+BC's, which always had ReLUs."""
    kinds = (BehaviourCloningSettings, IQLSettings, TD3BCSettings)
    assert [kind().activation for kind in kinds] == ["tanh", "tanh", "relu"]


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        ({"name": "td3_bc", "moment_rounds": 1, "normalize_observation": False}, "moment_rounds = 1: .*expected 0"),
        ({"name": "td3_bc", "network": "nature"}, "normalize_observation = true: network = 'nature' takes pixels"),
        ({"name": "iql", "activation": "gelu"}, "algorithm.activation = 'gelu': input should be 'tanh' or 'relu'"),
        ({"name": "iql", "anneal_minibatches": -1}, "algorithm.anneal_minibatches = -1"),
    ],
)
def test_settings_that_do_not_fit_are_refused(algorithm: dict[str, Any], said: str):
    """Moments that nothing needs, normalised images, and values that do not exist."""
    with pytest.raises(ConfigError, match=said):
        replay_of(algorithm=algorithm)


@pytest.mark.parametrize("name", ["behaviour_cloning", "iql"])
def test_a_mean_within_bounds_needs_bounds(name: str):
    """Choices have none; vectors of Pendulum do."""
    for environment, fits in (("CartPole-v1", False), ("Pendulum-v1", True)):
        config = replay_of(environment={"id": environment}, algorithm={"name": name, "bounded_mean": True})
        if fits:
            make_pool(config, 1).close()
            continue
        with pytest.raises(ConfigError, match=r"bounded_mean = true: CartPole-v1 takes choices, .*leave it out"):
            make_pool(config, 1)


def test_numbers_without_a_range_are_refused_within_bounds():
    """Their distance is 0, by which actions are divided: the policy would be NaN after the first round."""
    environment = native.make("Pendulum-v1", 1).environment
    environment = {**environment, "action": {**environment["action"], "shape": (2,), "low": [-2, 0], "high": [2, 0]}}
    with pytest.raises(ConfigError, match=r"squashed: Pendulum-v1 takes vectors whose numbers \[1\] have no range"):
        check_bounds("squashed", environment)


def test_a_replay_of_choices_is_no_task_of_td3_bc():
    """Before the start, as for a training run, with an algorithm that fits."""
    values = {"environment": {"id": "CartPole-v1"}, "algorithm": {"name": "td3_bc"}}
    with pytest.raises(ConfigError, match=r"'td3_bc': it needs vectors as actions, and CartPole-v1 .*such as iql"):
        check_acting(replay_of(**values))
    check_acting(replay_of(**values | {"algorithm": {"name": "iql"}}))


@pytest.mark.parametrize("name", presets(REPLAY_PRESETS_FOLDER))
def test_presets_of_replays_load(name: str):
    """Each is a checked configuration without an environment; of MuJoCo's, the rate reaches 0 at the end it names."""
    preset = load_preset(name, REPLAY_PRESETS_FOLDER)
    assert not {"environment", "source", "plan"} & {*preset}
    config = build_replay_config(with_overrides(preset, {"source": {"runs": ["any"]}}))
    stages = config.schedule.max_stages
    assert stages is not None
    if name.startswith("floorplan"):
        # Whole passes over 150 blocks, a shard each; the rate is constant.
        assert stages * config.schedule.rounds_per_stage * config.schedule.shards_per_round % 150 == 0
        return
    learned = stages * config.schedule.rounds_per_stage - getattr(config.algorithm, "moment_rounds", 0)
    assert learned == 10
    rows, minibatch = 200_000, config.algorithm.model_dump()["minibatch_rows"]
    updates = learned * config.algorithm.model_dump()["epochs"] * -(-rows // minibatch)
    assert updates == 46_920
    assert getattr(config.algorithm, "anneal_minibatches", updates) == updates


def test_a_preset_of_another_command_is_named_with_its_command():
    """A replay's preset is no training run's, nor the other way round."""
    with pytest.raises(ConfigError, match=r"penstock replay NAME --from RUN --preset halfcheetah-iql"):
        load_preset("halfcheetah-iql")
    with pytest.raises(ConfigError, match=r"there are: floorplan-bc, .*halfcheetah-bc, .*penstock train cartpole\."):
        load_preset("cartpole", REPLAY_PRESETS_FOLDER)
    assert not {*presets(PRESETS_FOLDER)} & {*presets(REPLAY_PRESETS_FOLDER)}


def test_settings_of_a_replays_distribution_leave_its_policy():
    """`--device cpu` alone names no policy, and the default is the one that learns over storage."""
    assert replay_of(distribution={"device": "cpu"}).distribution.policy == replay_of().distribution.policy
    assert replay_of(distribution={"policy": "central", "learn_tasks": 2}).distribution.policy == "central"

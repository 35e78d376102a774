"""An environment's settings keep the types that the environment has for them, in pools and in stored bytes."""

from __future__ import annotations

import tomllib
from contextlib import closing
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest

from penstock.flows.settings.options import parse_overrides
from penstock.storage.digest import canonical_json
from penstock.storage.errors import ConfigError
from penstock.tasks.environments.factory import make_pool
from penstock.tasks.environments.typed_settings import with_typed_settings
from penstock.tasks.roles.acting.tile import RoundBuffers, TileActor
from penstock.tasks.setup.config.environment import EnvironmentSettings
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.planning.preflight import check_acting

if TYPE_CHECKING:
    from ..conftest import MakeContext

MAPS = "FrozenLake-v1"


def configured(env_id: str, settings: dict[str, Any], **environment: Any) -> Any:
    return build_config({"environment": {"id": env_id, "settings": settings, **environment}})


@pytest.mark.parametrize(
    ("option", "line", "value"),
    [
        ("1", "1", 1),
        ("1.0", "1.0", 1.0),
        ("true", "true", True),
        ("8x8", '"8x8"', "8x8"),
        ('["SF", "FG"]', '["SF", "FG"]', ["SF", "FG"]),
        ("[9.8, 1.62]", "[9.8, 1.62]", [9.8, 1.62]),
    ],
)
def test_a_value_has_one_type_from_options_toml_and_python(option: str, line: str, value: Any):
    """The three give the same bytes, and reading them back gives the same again."""
    found = [
        build_config(parse_overrides(["--environment.settings.some", option])).environment,
        build_config(tomllib.loads(f"[environment.settings]\nsome = {line}")).environment,
        EnvironmentSettings(settings={"some": value}),
    ]
    found += [EnvironmentSettings.model_validate_json(one.model_dump_json()) for one in found]
    for one in found:
        assert type(one.settings["some"]) is type(value)
        assert one.identity()["settings"] == {"some": value}
    assert len({canonical_json(one.identity()) for one in found}) == 1


@pytest.mark.parametrize(
    ("env_id", "given", "stored"),
    [
        ("CartPole-v1", {"gravity": 4, "sutton_barto_reward": True}, {"gravity": 4.0, "sutton_barto_reward": True}),
        ("CartPole-v1", {"gravity": [4, 5.5]}, {"gravity": [4.0, 5.5]}),
        ("Ant-v5", {"main_body": 1, "healthy_z_min": 0}, {"main_body": 1, "healthy_z_min": 0.0}),
        ("gymnasium/Hopper-v5", {"frame_skip": 2, "healthy_reward": 2}, {"frame_skip": 2, "healthy_reward": 2.0}),
        ("ALE/Pong-v5", {"frameskip": 4}, {"frameskip": 4}),
        ("toy/FrozenLake-v1", {"desc": ["SFF", "FHG"], "goal_reward": 2}, {"desc": ["SFF", "FHG"], "goal_reward": 2.0}),
        ("Floorplan-v0", {"wirelength_weight": 2}, {"wirelength_weight": 2.0}),
        (MAPS, {"map_name": "8x8"}, {"map_name": "8x8"}),
    ],
)
def test_stored_numbers_have_the_environments_type(env_id: str, given: dict[str, Any], stored: dict[str, Any]):
    """A float's setting has the same bytes as 4 and as 4.0, as in earlier runs; an integer's stays one."""
    typed = with_typed_settings(configured(env_id, given))
    assert canonical_json(typed.environment.identity()["settings"]) == canonical_json(stored)
    assert with_typed_settings(typed) == typed


@pytest.mark.parametrize(
    ("env_id", "settings"),
    [
        ("Ant-v5", {"main_body": 1}),
        ("gymnasium/Hopper-v5", {"frame_skip": 2}),
        (MAPS, {"map_name": "8x8", "is_slippery": False}),
        (MAPS, {"desc": ["SF", "FG"]}),
        ("ALE/Pong-v5", {"frameskip": 2.0}),
    ],
)
def test_right_settings_pass_the_check_and_reach_the_environment(env_id: str, settings: dict[str, Any]):
    """Integers, text and lists are passed on; so is a float that earlier versions stored for ale-py's integers."""
    config = configured(env_id, settings)
    check_acting(config)
    pool = make_pool(config, 2)
    expected = {"8x8": 64}.get(str(settings.get("map_name")), 4)
    if env_id == MAPS:
        assert pool.environment["observation"]["shape"] == (expected,)
    if "frame_skip" in settings:
        assert pool.vector_env.get_attr("frame_skip") == (2, 2)  # type: ignore[attr-defined]
    pool.close()


@pytest.mark.parametrize(
    ("env_id", "settings", "said"),
    [
        ("Ant-v5", {"main_body": 1.5}, "main_body must be int, got 1.5"),
        ("CartPole-v1", {"gravity": "low"}, "gravity must be float, got 'low'"),
        ("CartPole-v1", {"gravitee": 1.0}, "no configuration field 'gravitee'.*did you mean gravity"),
        ("Hopper-v5", {"camera_name": "side"}, "no configuration field 'camera_name'.*'gymnasium/Hopper-v5', takes"),
        ("CartPole-v1", {"gravity": [9.0, 10.0, 11.0]}, "3 values, and envs_per_tile = 64 is not a multiple"),
        ("CartPole-v1", {"gravity": [9.0, True]}, "expected values of one type"),
        ("CartPole-v1", {"num_envs": 3}, "a run chooses it itself"),
        ("CartPole-v1", {"max_episode_steps": 3}, "expected as environment.max_episode_steps"),
        ("gymnasium/Hopper-v5", {"frame_skip": 2.0}, "frame_skip of Hopper-v5 must be int, got 2.0"),
        ("gymnasium/Hopper-v5", {"frame_skp": 2}, "unexpected keyword argument 'frame_skp'.*did you mean frame_skip"),
        ("gymnasium/Hopper-v5", {"frame_skip": 0}, "cannot make Hopper-v5 with .*ZeroDivisionError"),
        (MAPS, {"map_name": 8}, "map_name of FrozenLake-v1 must be str, got 8"),
        (MAPS, {"map_name": "9x9"}, "cannot make FrozenLake-v1 with .*9x9"),
        ("ALE/Pong-v5", {"frame_skip": 4}, "no setting 'frame_skip'.*did you mean frameskip"),
        ("Floorplan-v0", {"wirelength_weight": [1.0, 2.0]}, "expected one value, which all blocks have"),
    ],
)
def test_wrong_settings_are_refused_before_anything_starts(env_id: str, settings: dict[str, Any], said: str):
    """One line names the setting, the value and what it should be or may have been meant."""
    with pytest.raises(ConfigError, match=f"^environment[^\n]*{said}") as caught:
        check_acting(configured(env_id, settings))
    assert "\n" not in str(caught.value)


def test_a_list_gives_each_environment_its_value():
    """Environment i has value i modulo the length, in a pool of any size: a tile, an evaluation, a check."""
    config = configured("CartPole-v1", {"gravity": [9.8, 1.62]})
    for num_envs in (1, 3, 64):
        pool = make_pool(config, num_envs)
        assert pool.get_attr("gravity") == tuple([9.8, 1.62][index % 2] for index in range(num_envs))


def test_a_range_is_one_value_of_each_environment():
    """A pair stands for the fields of its bounds, in a pool of any size, and is stored as numbers with fractions."""
    config = with_typed_settings(configured("Hopper-v5", {"healthy_z_range": [0, 2]}))
    assert repr(config.environment.settings["healthy_z_range"]) == "[0.0, 2.0]"
    for num_envs in (1, 2, 5):
        with closing(make_pool(config, num_envs)) as pool:
            assert pool.get_attr("healthy_z_min") == (0.0,) * num_envs
            assert pool.get_attr("healthy_z_max") == (2.0,) * num_envs
    with pytest.raises(ConfigError, match="healthy_z_range must be a pair of numbers"):
        make_pool(configured("Hopper-v5", {"healthy_z_range": [0.0, 1.0, 2.0]}), 3)


@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "CliffWalking-v1", "Taxi-v4", "Blackjack-v1"])
def test_choices_and_tuples_are_observed_as_one_hot(env_id: str, make_context: MakeContext):
    """A tile acts rounds of environments that observe Discrete or Tuple, and its restored state continues them."""
    context = make_context({"environment": {"id": env_id}})
    actor = TileActor(context, 0)
    actor.start()
    params = context.algorithm.init(3).params
    first = actor.act_round(0, params, RoundBuffers(context, 0))
    observation = first.buffers.arrays["observation"]
    assert observation.dtype == np.float32
    parts = 3 if env_id.startswith("Blackjack") else 1
    assert (observation.sum(axis=-1) == parts).all()
    assert set(np.unique(observation)) == {0.0, 1.0}
    late = TileActor(context, 0)
    late.restore(first.state, 1)
    expected = actor.act_round(1, params, RoundBuffers(context, 0)).buffers.arrays
    found = late.act_round(1, params, RoundBuffers(context, 0)).buffers.arrays
    for name, column in expected.items():
        assert found[name].tobytes() == column.tobytes(), name
    actor.close()
    late.close()


def test_an_environment_that_cannot_be_stepped_is_refused_before_anything_starts():
    """Another library's environment is stepped once: the error names what it raised."""
    gymnasium.register("test/Lame-v0", Lame)
    try:
        with pytest.raises(ConfigError, match=r"test/Lame-v0 was made .* first step \(TypeError: legs is 'two'\)"):
            check_acting(configured("test/Lame-v0", {"legs": "two"}))
    finally:
        del gymnasium.registry["test/Lame-v0"]


class Lame(gymnasium.Env):
    """Steps with a number of legs, and is made with anything."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, legs=2):
        self._legs = legs

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        if not isinstance(self._legs, int):
            raise TypeError(f"legs is {self._legs!r}")
        return np.zeros(2, np.float32), 0.0, False, False, {}


def test_a_map_is_one_value_of_a_whole_pool():
    """A list of rows is not one value for each environment."""
    config = configured("toy/FrozenLake-v1", {"desc": ["SFF", "FHG", "FFF"]}, num_envs=4, envs_per_tile=4)
    pool = make_pool(config, 4)
    assert pool.environment["observation"]["shape"] == (9,)
    pool.close()
    with pytest.raises(ConfigError, match="environment: desc: row 1 has 1 letters, expected 3, as row 0"):
        make_pool(configured("toy/FrozenLake-v1", {"desc": ["SFF", "F"]}), 1)

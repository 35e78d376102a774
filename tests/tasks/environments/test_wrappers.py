"""Gymnasium wrappers that a run names: their order, their errors, what they keep, and what is part of the run."""

import json
import re

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.wrappers import NormalizeObservation, TimeAwareObservation

from penstock.storage.digest import canonical_json
from penstock.storage.errors import ConfigError
from penstock.tasks.environments.factory import make_pool
from penstock.tasks.setup.config.consent import local_code
from penstock.tasks.setup.config.environment import EnvironmentSettings
from penstock.tasks.setup.config.loading import build_config

CARTPOLE = "gymnasium/CartPole-v1"
TIME = "gymnasium.wrappers.TimeAwareObservation"


def config(*wrappers, environment_id=CARTPOLE, **others):
    return build_config({"environment": {"id": environment_id, "wrappers": wrappers, **others}})


def played(pool, steps=40):
    """Play a round; return its observations, and the state after it."""
    shape = (steps, pool.num_envs)
    observation = np.empty(
        (*shape, *pool.environment["observation"]["shape"]), pool.environment["observation"]["dtype"]
    )
    flags = [np.empty(shape, dtype) for dtype in (np.float32, np.uint8, np.uint8, np.int32)]
    pool.begin_round(observation, *flags)
    for t in range(steps):
        pool.step_round(t, np.arange(t, t + pool.num_envs) % 2)
    pool.end_round()
    return observation, pool.save()


def test_wrappers_are_applied_in_order_with_their_arguments():
    """The first is the innermost; what a run observes is what Gymnasium's wrappers give."""
    scaled = {"name": "gymnasium.wrappers.RescaleObservation", "settings": {"min_obs": -1.0, "max_obs": 1.0}}
    clipped = {"name": "gymnasium.wrappers.FrameStackObservation", "settings": {"stack_size": 3}}
    with pytest.raises(ConfigError, match="RescaleObservation"):
        make_pool(config(scaled), 2)  # CartPole has infinite bounds: the wrapper's own refusal is passed on
    pool = make_pool(config({"name": TIME, "settings": {"normalize_time": True}}, clipped), 2)
    env = gymnasium.make("CartPole-v1")
    env = gymnasium.wrappers.FrameStackObservation(TimeAwareObservation(env, normalize_time=True), stack_size=3)
    pool.reset_ids(np.array([7, 8], np.uint64))
    expected, _ = env.reset(seed=7)
    np.testing.assert_array_equal(pool.observation[0], expected)
    assert pool.environment["observation"]["shape"] == (3, 5)
    pool.close()


def test_what_a_wrapper_keeps_ends_with_a_seed_by_ids():
    """Running means of an earlier stage do not reach the next one: it is a function of its seeds and actions alone."""
    seeds = np.array([1, 2], np.uint64)
    used, fresh = (make_pool(config("gymnasium.wrappers.NormalizeObservation"), 2) for _ in range(2))
    used.reset_ids(seeds + 5)
    played(used)
    for pool in (used, fresh):
        pool.reset_ids(seeds)
    wanted, state = played(fresh)
    got, _ = played(used)
    np.testing.assert_array_equal(got, wanted)
    used.restore(state)
    np.testing.assert_array_equal(used.observation, fresh.observation)
    assert not np.array_equal(wanted[-1], make_pool(config(), 2).reset(seed=1)[0])
    assert issubclass(NormalizeObservation, gymnasium.Wrapper)
    for pool in (used, fresh):
        pool.close()


def test_wrappers_are_part_of_a_runs_identity_and_only_if_there_are_some():
    """However they are written; and runs without them keep their bytes."""
    short, long = config(TIME), config({"name": TIME, "settings": {}})
    assert canonical_json(short.identity()) == canonical_json(long.identity())
    assert json.loads(canonical_json(short.identity()))["environment"]["wrappers"] == [TIME]
    assert short.identity() != config(TIME, TIME).identity()
    assert build_config(json.loads(canonical_json(short.model_dump(mode="json")))) == short
    assert "wrappers" not in config().model_dump(mode="json")["environment"]
    assert "wrappers" not in EnvironmentSettings().identity()


@pytest.mark.parametrize(
    ("wrapper", "message"),
    [
        (
            "gymnasium.wrappers.TimeAwareObservations",
            "there is no TimeAwareObservations in gymnasium.wrappers; similar: T",
        ),
        ("gymnasium.wrappers.vector.RecordEpisodeStatistics", "no gymnasium.Wrapper is RecordEpisodeStatistics"),
        ("gymnasium.wrappers.RecordVideo", "writes files, which a stored run must not make its readers do"),
        ("timeit.timeit", "no gymnasium.Wrapper is timeit in timeit"),
        ("no_such_module:Wrapper", "importing no_such_module failed"),
        ({"name": TIME, "settings": {"normalise": True}}, r"TimeAwareObservation\(normalise=True\) can't wrap"),
    ],
)
def test_wrappers_that_cannot_be_applied_are_refused(wrapper, message):
    """By name, with what is wrong."""
    with pytest.raises(ConfigError, match=message):
        make_pool(config(wrapper), 1)


@pytest.mark.parametrize("name", ["TimeAwareObservation", "a:b:c", "a.b c", "", "module:"])
def test_names_that_are_none_are_refused_at_once(name):
    """Before anything is imported."""
    with pytest.raises(ConfigError, match=re.escape(f"found '{name}', expected a class")):
        config(name)


def test_wrappers_are_refused_where_gymnasium_does_not_step():
    """With the id that Gymnasium steps, if there is one; and as a setting of the environment."""
    with pytest.raises(ConfigError, match=r"'CartPole-v1' is not among them; choose environment.id = 'gymnasium/CartP"):
        make_pool(config(TIME, environment_id="CartPole-v1"), 1)
    with pytest.raises(ConfigError, match=r"'ConnectFour-v0' is not among them; leave environment.wrappers out"):
        make_pool(config(TIME, environment_id="ConnectFour-v0"), 1)
    with pytest.raises(ConfigError, match=r"expected as environment.wrappers"):
        make_pool(config(settings={"wrappers": [TIME]}), 1)


SOURCE = """
import gymnasium

class Half(gymnasium.RewardWrapper):
    def reward(self, reward):
        return reward / 2
"""


def test_a_wrapper_of_the_working_directory_is_found_and_needs_consent(tmp_path, monkeypatch):
    """By either spelling; an installed one needs none."""
    (tmp_path / "halving_wrapper.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["", *__import__("sys").path])
    mine = config(TIME, "halving_wrapper:Half")
    pool = make_pool(mine, 1)
    pool.reset(seed=0)
    assert pool.step(np.zeros(1, np.int64))[1] == [0.5]
    pool.close()
    stored = mine.model_dump(mode="json")
    file = tmp_path / "halving_wrapper.py"
    assert local_code(stored) == [("environment.wrappers", "halving_wrapper:Half", file)]
    stored["environment"]["wrappers"] = [{"name": "halving_wrapper.Half", "settings": {}}]
    assert local_code(stored) == [("environment.wrappers", "halving_wrapper.Half", file)]
    assert isinstance(pool.single_observation_space, Box)

"""dm_env's face: its own contract test, and time steps that say what the Gymnasium API says."""

import unittest
from typing import Any

import gymnasium
import numpy as np
import pytest

from penstock import native

from ...support.environments.own_ids import OWN_IDS

pytest.importorskip("dm_env", reason="comes with penstock-rl[dm]")

from dm_env import Environment, StepType, specs, test_utils

SINGLE = [env_id for env_id in OWN_IDS if not native.make(env_id, 1).environment["agents"]]


class Contract(test_utils.EnvironmentTestMixin):
    """dm_env's own test of an environment; below it is run on each, with an episode's end among its actions."""

    __test__ = False
    env_id: str

    def make_object_under_test(self) -> Environment:
        return native.make_dm(self.env_id, seed=1, max_episode_steps=15)

    def make_action_sequence(self) -> Any:
        space = native.make(self.env_id, 1).single_action_space
        space.seed(0)
        for _ in range(40):
            yield space.sample()


for _index, _env_id in enumerate(SINGLE):
    _name = f"TestContract{_index}"
    globals()[_name] = type(_name, (Contract, unittest.TestCase), {"__test__": True, "env_id": _env_id})


@pytest.mark.parametrize("env_id", SINGLE)
def test_one_environment_equals_the_single_interface(env_id: str):
    """Observations, rewards and ends are SingleEnv's; discount 0 where it terminated, 1 where it was cut off."""
    environment = native.make_dm(env_id, seed=3, max_episode_steps=20)
    single = native.SingleEnv(env_id, max_episode_steps=20)
    single.action_space.seed(3)
    first = environment.step(None)  # the first step resets, whatever the action
    assert (first.step_type, first.reward, first.discount) == (StepType.FIRST, None, None)
    assert np.array_equal(first.observation, single.reset(seed=3)[0])
    for _ in range(100):
        action = single.action_space.sample()
        step = environment.step(action)
        observation, reward, terminated, truncated, _ = single.step(action)
        assert np.array_equal(step.observation, observation)
        assert (step.reward, step.last()) == (reward, terminated or truncated)
        assert step.discount == (0.0 if terminated else 1.0)
        if step.last():
            again = environment.step(action)
            assert again.first()
            assert np.array_equal(again.observation, single.reset()[0])


def test_batched_time_steps(counting: str):
    """Each row has its own FIRST, MID and LAST; FIRST rows have reward 0 and discount 1 and ignored their action."""
    pool = native.make_dm(counting, 3, limit=[1, 2, 9], max_episode_steps=4)
    step = pool.step(np.array([4, 4, 4]))  # nothing was reset yet: this does
    assert step.step_type.tolist() == [StepType.FIRST] * 3
    assert (step.reward.tolist(), step.discount.tolist()) == ([0.0] * 3, [1.0] * 3)
    f, m, l = StepType.FIRST, StepType.MID, StepType.LAST  # noqa: E741
    expected = [
        ([l, m, m], [1, 2, 3], [0, 1, 1], [1, 1, 1]),
        ([f, l, m], [0, 2, 3], [1, 0, 1], [0, 2, 2]),
        ([l, f, m], [1, 0, 3], [0, 1, 1], [1, 0, 3]),
        ([f, m, l], [0, 2, 3], [1, 1, 1], [0, 1, 4]),  # the third is cut off by the limit, not at an end
        ([l, l, f], [1, 2, 0], [0, 0, 1], [1, 2, 0]),
    ]
    for types, rewards, discounts, counts in expected:
        step = pool.step(np.array([1, 2, 3]))
        assert step.step_type.tolist() == types
        assert step.reward.tolist() == rewards
        assert step.discount.tolist() == discounts
        assert step.observation.ravel().tolist() == counts
        assert step.first().tolist() == [one == f for one in types]
        assert step.last().tolist() == [one == l for one in types]
        assert pool.infos["count"].tolist() == counts
    assert pool.reset().step_type.tolist() == [f, f, f]


def test_both_ends_in_one_step_discount_to_zero(counting: str):
    """An episode that terminates in the last allowed step has terminated."""
    pool = native.make_dm(counting, 1, limit=4, max_episode_steps=4)
    pool.reset()
    steps = [pool.step(np.array([1])) for _ in range(4)]
    assert [step.discount.tolist() for step in steps] == [[1.0], [1.0], [1.0], [0.0]]


def test_seeds_go_to_the_first_reset():
    """Environment i has seed + i; later resets continue with the generators."""
    pool, gym = native.make_dm("Pendulum-v1", 3, seed=5), native.make("Pendulum-v1", 3)
    for seed in (5, None):
        assert np.array_equal(pool.reset().observation, gym.reset(seed=seed)[0])


@pytest.mark.parametrize("env_id", OWN_IDS)
def test_specs_are_the_spaces(env_id: str):
    """Types, shapes and bounds of one environment's observation and action; actions of the spec can be played."""
    pool = native.make_dm(env_id, 2, seed=0)
    observed, acted = pool.observation_spec(), pool.action_spec()
    space, actions = pool.pool.single_observation_space, pool.pool.single_action_space
    assert (observed.dtype, observed.shape) == (space.dtype, space.shape)
    assert np.array_equal(observed.minimum, space.low)
    assert np.array_equal(observed.maximum, space.high)
    if isinstance(actions, gymnasium.spaces.Discrete):
        assert isinstance(acted, specs.DiscreteArray)
        assert acted.num_values == actions.n
    else:
        assert (acted.dtype, acted.shape) == (actions.dtype, actions.shape)
    pool.reset()
    step = pool.step(np.stack([acted.generate_value()] * 2))
    for row in range(2):
        observed.validate(step.observation[row])
        pool.reward_spec().validate(step.reward[row])
        pool.discount_spec().validate(step.discount[row])
    pool.close()
    with pytest.raises(RuntimeError, match="this pool is closed"):
        pool.reset()


def test_autoreset_modes_other_than_dm_envs_are_refused():
    """The autoreset mode is dm_env's; other errors are those of native.make."""
    with pytest.raises(ValueError, match="make_dm takes no autoreset_mode"):
        native.make_dm("CartPole-v1", 2, autoreset_mode="SameStep")
    with pytest.raises(ValueError, match="no configuration field 'mass'"):
        native.make_dm("CartPole-v1", mass=2.0)
    with pytest.raises(AttributeError, match="no attribute 'make_dn'"):
        _ = native.make_dn

"""Pools as Tianshou environments: equal to its DummyVectorEnv, any choice of environments included, and learning."""

from collections.abc import Iterator

import gymnasium
import numpy as np
import pytest
import torch
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv, VectorEnvNormObs
from tianshou.utils.net.common import Net
from tianshou.utils.torch_utils import policy_within_training_step

from penstock import native
from penstock.native.trainers import tianshou

pytestmark = pytest.mark.slow

NUM_ENVS = 5


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Limit torch to one thread: the networks are tiny, and more threads than cores wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pair(env_id: str) -> tuple[tianshou.PoolVectorEnv, DummyVectorEnv]:
    return tianshou.make(env_id, NUM_ENVS), DummyVectorEnv([lambda: gymnasium.make(env_id)] * NUM_ENVS)


def assert_same(ours: tuple[np.ndarray, ...], theirs: tuple[np.ndarray, ...]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == other.dtype
        assert np.array_equal(mine, other)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_trajectories_equal_dummy_vector_env(env_id: str):
    """Same seeds, actions and choices of environments give DummyVectorEnv's arrays, infos included, over resets."""
    generator = np.random.default_rng(1)
    ours, theirs = pair(env_id)
    assert ours.seed(5) == theirs.seed(5)
    assert_same(ours.reset(), theirs.reset())
    assert ours.action_space == theirs.action_space
    assert len(ours) == len(theirs)
    ended = 0
    for number in range(600):
        rows = None if number % 3 else generator.permutation(NUM_ENVS)[: generator.integers(1, NUM_ENVS + 1)]
        count = NUM_ENVS if rows is None else len(rows)
        actions = generator.integers(0, 2, count)
        if env_id == "Pendulum-v1":
            actions = generator.uniform(-2, 2, (count, 1)).astype(np.float32)
        left, right = ours.step(actions, rows), theirs.step(actions, rows)
        assert_same(left, right)
        over = np.flatnonzero(left[2] | left[3])
        if len(over):
            again = over if rows is None else rows[over]
            assert_same(ours.reset(again), theirs.reset(again))
            ended += len(over)
    assert ended > NUM_ENVS
    assert_same(ours.reset(2, seed=8), theirs.reset(2, seed=8))


def test_collectors_gather_the_same():
    """Collector, with its own wrapper around the environments, fills its buffer with what DummyVectorEnv gives."""
    buffers = []
    for envs in pair("CartPole-v1"):
        torch.manual_seed(0)
        policy = DiscreteQLearningPolicy(
            model=Net(state_shape=(4,), action_shape=2, hidden_sizes=[16]), action_space=envs.action_space[0]
        )
        envs.seed(3)
        collector = Collector(policy, VectorEnvNormObs(envs), VectorReplayBuffer(2000, NUM_ENVS))
        collector.collect(n_step=150, reset_before_collect=True)
        collector.collect(n_episode=7)
        buffers.append(collector.buffer)
    left, right = (buffer.sample(0)[0] for buffer in buffers)
    assert len(left) > 150
    for name in ("obs", "obs_next", "act", "rew", "terminated", "truncated"):
        assert np.array_equal(left[name], right[name]), name


def test_an_algorithm_learns_from_it():
    """A few updates of DQN on collected steps move the network by a finite loss."""
    envs = tianshou.make("CartPole-v1", NUM_ENVS)
    torch.manual_seed(0)
    policy = DiscreteQLearningPolicy(
        model=Net(state_shape=(4,), action_shape=2, hidden_sizes=[16]),
        action_space=envs.action_space[0],
        eps_training=0.5,
    )
    algorithm = DQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-2), target_update_freq=10)
    collector = Collector(algorithm, envs, VectorReplayBuffer(2000, NUM_ENVS))
    collector.collect(n_step=300, reset_before_collect=True)
    before = [one.detach().clone() for one in policy.parameters()]
    with policy_within_training_step(policy):
        losses = [algorithm.update(buffer=collector.buffer, sample_size=64).loss for _ in range(5)]
    assert np.isfinite(losses).all()
    assert any(not torch.equal(old, new) for old, new in zip(before, policy.parameters(), strict=True))
    envs.close()
    with pytest.raises(AssertionError, match="after close"):
        envs.reset()


def test_attributes_go_environment_by_environment():
    """Attributes are read and written as one value for each chosen environment."""
    envs = tianshou.make("CartPole-v1", 3, gravity=[9.0, 9.5, 10.0])
    assert envs.get_env_attr("gravity", [2, 0]) == [10.0, 9.0]
    envs.set_env_attr("gravity", 1.0, 1)
    assert envs.get_env_attr("gravity") == [9.0, 1.0, 10.0]
    assert envs.spec[0].max_episode_steps == 500


def test_pools_that_reset_by_themselves_are_refused():
    """Tianshou would reset them a second time."""
    with pytest.raises(ValueError, match=r"NEXT_STEP.*autoreset_mode='Disabled'"):
        tianshou.PoolVectorEnv(native.make("CartPole-v1", 2))

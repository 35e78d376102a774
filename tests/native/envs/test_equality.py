"""The environments equal Gymnasium's: compared with ==, over whole episodes and the resets between them."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence

from penstock import native

from ...support.environments.playing import play_both, random_actions

ENVIRONMENTS = ["CartPole-v1", "Pendulum-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1"]


def balance(observation: np.ndarray) -> np.ndarray:
    """Keep most poles up for all 500 steps."""
    x, x_dot, angle, angle_dot = observation.T
    return (10 * angle + 2 * angle_dot + 0.2 * x + 0.5 * x_dot > 0).astype(np.int64)


def test_cartpole_equals_gymnasium_under_random_actions():
    """60 seeds, several episodes each: the generator continues through automatic resets."""
    seeds = [7 * index for index in range(60)]

    counts = play_both("CartPole-v1", seeds, 120, random_actions(0, "CartPole-v1", len(seeds)))

    assert counts["terminated"] > 200


def test_cartpole_equals_gymnasium_to_the_time_limit():
    """A policy that reaches step 500: truncation by Gymnasium's own limit, and the episode after it."""
    counts = play_both("CartPole-v1", [3, 4, 5], 520, balance)

    assert counts == {"terminated": 0, "truncated": 3, "both": 0}


def test_position_only_cartpole_is_cartpole_without_velocities():
    """The same episodes, of which positions alone are observed."""
    whole, part = (native.make(name, 20) for name in ("CartPole-v1", "PositionOnlyCartPole-v0"))
    seen, positions = whole.reset(seed=5)[0], part.reset(seed=5)[0]
    generator, ends = np.random.default_rng(1), 0
    for _ in range(100):
        assert np.array_equal(positions, seen[:, [0, 2]])
        action = generator.integers(0, 2, 20)
        (seen, *expected, _), (positions, *found, _) = whole.step(action), part.step(action)
        assert all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))
        ends += int(found[1].sum())
    assert ends > 20


def test_pendulum_equals_gymnasium_over_two_episodes():
    """50 seeds, 200 steps, a reset and 200 steps more, float32 torques as Gymnasium promotes them."""
    seeds = [1000 + index for index in range(50)]

    counts = play_both("Pendulum-v1", seeds, 400, random_actions(1, "Pendulum-v1", len(seeds)))

    assert counts == {"terminated": 0, "truncated": 100, "both": 0}


@pytest.mark.parametrize("env_id", ENVIRONMENTS)
def test_large_seeds_equal_gymnasium(env_id: str):
    """Seeds of one and of two 32-bit words, up to the largest that is taken."""
    seeds = [0, 2**31, 2**32 - 1, 2**32, 2**53 + 1, 2**64 - 1]

    play_both(env_id, seeds, 30, random_actions(2, env_id, len(seeds)))


def test_terminated_and_truncated_both_hold_in_the_last_allowed_step():
    """An episode that falls in exactly the last allowed step reports both flags, as Gymnasium's TimeLimit does."""
    alone = gymnasium.make("CartPole-v1")
    alone.reset(seed=11)
    length = 1
    while not alone.step(np.int64(1))[2]:
        length += 1
    alone.close()

    counts = play_both("CartPole-v1", [11], length, lambda _: np.ones(1, np.int64), max_episode_steps=length)

    assert counts == {"terminated": 1, "truncated": 1, "both": 1}


@pytest.mark.parametrize(("limit", "both"), [(1, 0), (9, 1)])
def test_short_limits_equal_gymnasium(limit: int, both: int):
    """Limits around where episodes fall: every combination of the two flags occurs and equals Gymnasium's."""
    counts = play_both("CartPole-v1", list(range(16)), 60, lambda _: np.ones(16, np.int64), max_episode_steps=limit)

    assert counts["truncated"] > 0
    assert (counts["both"] > 0) == bool(both)


def test_configuration_equals_gymnasium():
    """A configuration that Gymnasium takes too gives the same values."""
    play_both("CartPole-v1", [1, 2, 3], 60, random_actions(3, "CartPole-v1", 3), sutton_barto_reward=True)
    play_both("Pendulum-v1", [1, 2, 3], 60, random_actions(3, "Pendulum-v1", 3), g=9.81)


@pytest.mark.parametrize("env_id", ENVIRONMENTS)
def test_pool_equals_sync_vector_env(env_id: str):
    """Spaces, observations, rewards, flags, infos and a masked reset equal SyncVectorEnv with SAME_STEP autoreset."""
    pool = native.make(env_id, 5, max_episode_steps=23, autoreset_mode="SameStep")
    sync = gymnasium.vector.SyncVectorEnv(
        [lambda: gymnasium.make(env_id, max_episode_steps=23)] * 5,
        autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
    )
    assert pool.observation_space == sync.observation_space
    assert pool.action_space == sync.action_space
    assert pool.single_observation_space == sync.single_observation_space
    assert pool.single_action_space == sync.single_action_space
    assert pool.metadata["autoreset_mode"] == sync.metadata["autoreset_mode"]
    assert data_equivalence(pool.reset(seed=42), sync.reset(seed=42), exact=True)
    pool.action_space.seed(0)
    for step in range(60):
        actions = pool.action_space.sample()
        assert data_equivalence(pool.step(actions), sync.step(actions), exact=True)
        if step == 30:
            mask = np.array([True, False, True, False, False])
            masked = pool.reset(seed=[5, None, None, None, None], options={"reset_mask": mask})
            expected = sync.reset(seed=[5, None, None, None, None], options={"reset_mask": mask})
            assert data_equivalence(masked, expected, exact=True)
    assert data_equivalence(pool.reset(), sync.reset(), exact=True)
    pool.close()
    sync.close()

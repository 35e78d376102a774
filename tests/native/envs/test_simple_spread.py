"""simple_spread equals PettingZoo's (mpe2) with ==: three agents, a reward each, over whole episodes and resets."""

from typing import Any

import numpy as np
import pytest

from penstock import native

pytest.importorskip("mpe2", reason="comes with penstock-rl[mpe2]")

from mpe2 import simple_spread_v3
from pettingzoo.utils.env_logger import EnvLogger

SEEDS = [11 * index for index in range(50)]
BOTH_KINDS = ["simple_spread_v3", "simple_spread_continuous_v3"]


@pytest.fixture(autouse=True)
def quiet_clipping():
    """PettingZoo logs every action that it clips, and pytest's handlers would keep them all."""
    EnvLogger.suppress_output()
    yield
    EnvLogger.unsuppress_output()


def joined(values: dict[str, Any]) -> np.ndarray:
    """Stack PettingZoo's values by agent name into an array with an agent axis."""
    return np.stack([values[f"agent_{index}"] for index in range(3)])


def actions_of(env_id: str, generator: np.random.Generator, num_envs: int) -> np.ndarray:
    """Continuous ones beyond the bounds too: both sides clip."""
    if env_id == "simple_spread_v3":
        return generator.integers(0, 5, (num_envs, 3))
    return generator.uniform(-0.2, 1.2, (num_envs, 3, 5)).astype(np.float32)


def play(env_id: str, seeds: list[int], steps: int, max_cycles: int = 25, **config: Any) -> dict[str, int]:
    """Step a pool and as many of PettingZoo's environments, demanding equality of everything."""
    pool = native.make(env_id, len(seeds), 1, max_cycles, "SameStep", **config)
    continuous = env_id == "simple_spread_continuous_v3"
    singles = [
        simple_spread_v3.parallel_env(
            continuous_actions=continuous,
            max_cycles=max_cycles,
            **{name: value[index] for name, value in config.items()},
        )
        for index in range(len(seeds))
    ]
    generator = np.random.default_rng(0)
    observation, _ = pool.reset(seed=seeds)
    expected = np.stack([joined(env.reset(seed=seed)[0]) for env, seed in zip(singles, seeds, strict=True)])
    assert observation.dtype == expected.dtype == np.float32
    assert np.array_equal(observation, expected)
    counts = {"ended": 0, "collided": 0}
    for _ in range(steps):
        actions = actions_of(env_id, generator, len(seeds))
        observation, reward, terminated, truncated, info = pool.step(actions)
        for index, env in enumerate(singles):
            chosen = {f"agent_{agent}": actions[index, agent] for agent in range(3)}
            seen, rewards, terminations, truncations, _ = env.step(chosen)
            after = joined(seen)
            assert np.array_equal(reward[index], joined(rewards))
            assert {bool(terminated[index])} == set(terminations.values())
            assert {bool(truncated[index])} == set(truncations.values())
            counts["collided"] += len(np.unique(reward[index])) > 1
            if truncated[index]:
                assert np.array_equal(info["final_obs"][index], after)
                counts["ended"] += 1
                after = joined(env.reset()[0])
            assert np.array_equal(observation[index], after)
    pool.close()
    return counts


@pytest.mark.parametrize("number", [10, pytest.param(len(SEEDS), marks=pytest.mark.slow)])
@pytest.mark.parametrize("env_id", BOTH_KINDS)
def test_episodes_equal_pettingzoo(env_id: str, number: int):
    """Two episodes of each seed and some of a third: the generator continues over resets; agents do collide."""
    counts = play(env_id, SEEDS[:number], 60)

    assert counts["ended"] == 2 * number
    assert counts["collided"] > 2 * number


@pytest.mark.parametrize("env_id", BOTH_KINDS)
def test_configuration_equals_pettingzoo(env_id: str):
    """A share of the own reward for each environment, both ends of its range too; a time limit of another length."""
    counts = play(env_id, [1, 2, 3, 4], 90, max_cycles=40, local_ratio=[0.0, 0.3, 0.5, 1.0])

    assert counts["ended"] == 8


def test_large_seeds_equal_pettingzoo():
    """Seeds of one and of two 32-bit words, up to the largest that is taken."""
    play("simple_spread_v3", [0, 2**31, 2**32 - 1, 2**32, 2**53 + 1, 2**64 - 1], 26)


@pytest.mark.parametrize("env_id", BOTH_KINDS)
def test_spaces_have_an_agent_axis(env_id: str):
    """Observations [num_envs, 3, 18], rewards [num_envs, 3], and actions whose parts are PettingZoo's own spaces."""
    pool = native.make(env_id, 4)
    env = simple_spread_v3.parallel_env(continuous_actions=env_id != "simple_spread_v3")
    space, part = env.observation_space("agent_0"), env.action_space("agent_0")

    assert pool.single_observation_space.shape == (3, *space.shape)
    assert np.array_equal(pool.single_observation_space.low[0], space.low)
    assert np.array_equal(pool.single_observation_space.high[2], space.high)
    if env_id == "simple_spread_v3":
        assert pool.single_action_space.nvec.tolist() == [part.n] * 3
    else:
        assert np.array_equal(pool.single_action_space.low, np.stack([part.low] * 3))
        assert np.array_equal(pool.single_action_space.high, np.stack([part.high] * 3))
    pool.reset(seed=0)
    pool.action_space.seed(0)
    observation, reward, *_ = pool.step(pool.action_space.sample())
    assert (observation.shape, reward.shape, reward.dtype) == ((4, 3, 18), (4, 3), np.float64)


@pytest.mark.parametrize("env_id", BOTH_KINDS)
def test_threads_change_nothing(env_id: str):
    """1, 2 and 5 threads give the same bits, and so does a pool that is restored in the middle."""
    pools = [native.make(env_id, 33, threads) for threads in (1, 2, 5)]
    seen = [[pool.reset(seed=9)[0].tobytes()] for pool in pools]
    generator = np.random.default_rng(4)
    for step in range(70):
        actions = actions_of(env_id, generator, 33)
        for pool, bits in zip(pools, seen, strict=True):
            bits.extend(array.tobytes() for array in pool.step(actions)[:4])
        if step == 30:
            state = pools[0].save()
            pools[2] = native.make(env_id, 33, 5)
            pools[2].restore(state)
    assert seen[0] == seen[1] == seen[2]


def test_every_seed_is_another_start():
    """No two of 1,000 seeds show the same to any agent."""
    first = native.make("simple_spread_v3", 1000).reset(seed=0)[0]

    assert len(np.unique(first.reshape(3000, 18), axis=0)) == 3000


def test_share_beyond_its_range_is_refused():
    """As PettingZoo's does."""
    with pytest.raises(ValueError, match="local_ratio must be between 0 and 1"):
        native.make("simple_spread_v3", 2, local_ratio=[0.5, 1.5])

"""Steps a pool next to environments that it must equal, and asserts equality of everything with ==."""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from penstock import native

Policy = Callable[[np.ndarray], np.ndarray]


def random_actions(seed: int, env_id: str, num_envs: int) -> Policy:
    """Discrete actions, or values beyond the bounds of a box too: clipping them is part of the environment."""
    generator = np.random.default_rng(seed)
    with gymnasium.make(env_id) as env:
        space = env.action_space
    if isinstance(space, gymnasium.spaces.Discrete):
        return lambda _: generator.integers(0, space.n, num_envs)
    low, high, shape = 1.25 * space.low, 1.25 * space.high, (num_envs, *space.shape)
    return lambda _: generator.uniform(low, high, shape).astype(space.dtype)


def play(
    pool: native.Pool, singles: Sequence[gymnasium.Env], seeds: Sequence[int], steps: int, policy: Policy
) -> dict[str, int]:
    """Step a pool with SAME_STEP autoreset and as many single environments; count what ended how."""
    observation, _ = pool.reset(seed=seeds)
    expected = np.stack([env.reset(seed=seed)[0] for env, seed in zip(singles, seeds, strict=True)])
    assert observation.dtype == expected.dtype
    assert np.array_equal(observation, expected)
    counts = {"terminated": 0, "truncated": 0, "both": 0}
    for _ in range(steps):
        actions = policy(observation)
        observation, reward, terminated, truncated, info = pool.step(actions)
        for index, env in enumerate(singles):
            seen, wanted_reward, wanted_terminated, wanted_truncated, _ = env.step(actions[index])
            assert reward[index] == wanted_reward
            assert (terminated[index], truncated[index]) == (wanted_terminated, wanted_truncated)
            if wanted_terminated or wanted_truncated:
                assert np.array_equal(info["final_obs"][index], seen)
                counts["terminated"] += wanted_terminated
                counts["truncated"] += wanted_truncated
                counts["both"] += wanted_terminated and wanted_truncated
                seen, _ = env.reset()
            assert np.array_equal(observation[index], seen)
    for env in (*singles, pool):
        env.close()
    return counts


def play_both(
    env_id: str, seeds: Sequence[int], steps: int, policy: Policy, max_episode_steps: int | None = None, **config: Any
) -> dict[str, int]:
    """Step a pool next to `gymnasium.make(env_id, **config)`; a configured list has one value an environment."""
    pool = native.make(env_id, len(seeds), 1, max_episode_steps, "SameStep", **config)
    singles = [
        gymnasium.make(
            env_id,
            max_episode_steps=max_episode_steps,
            **{name: value[index] if isinstance(value, list) else value for name, value in config.items()},
        )
        for index in range(len(seeds))
    ]
    return play(pool, singles, seeds, steps, policy)

"""Rounds of a pool, native or in tensors, with everything that they leave."""

import numpy as np

from penstock import native

Arrays = dict[str, np.ndarray]


def seeds_of(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.uint64) * np.uint64(7919) + np.uint64(2**40)


def buffers_for(pool: native.EnvironmentPool, steps: int) -> Arrays:
    about, shape = pool.environment, (steps, pool.num_envs)
    rewards = (*shape, about["agents"]) if about["agents"] else shape
    dtypes = {"terminated": "uint8", "truncated": "uint8", "episode_id": "int32"}
    observation = np.full((*shape, *about["observation"]["shape"]), 77, dtype=about["observation"]["dtype"])
    columns = {"observation": observation, "reward": np.full(rewards, 77, dtype=np.float32)}
    return columns | {name: np.full(shape, 77, dtype=dtype) for name, dtype in dtypes.items()}


def actions_for(environment_id: str, shape: tuple[int, ...], seed: int = 3) -> np.ndarray:
    """Draw actions, including ones beyond the bounds of a box."""
    generator, action = np.random.default_rng(seed), native.make(environment_id, 1).environment["action"]
    if action["kind"] == "discrete":
        return generator.integers(0, action["n"], (*shape, *action["shape"]))
    low, high = np.array(action["low"]), np.array(action["high"])
    values = generator.uniform(-0.25, 1.25, (*shape, *action["shape"]))
    return (low + (high - low) * values).astype(np.float32)


def left(buffers: Arrays, end: native.RoundEnd) -> Arrays:
    arrays = dict(buffers) | {f"episodes/{name}": array for name, array in end.episodes.items()}
    return arrays | {"bootstrap_rows": end.bootstrap_rows, "bootstrap_observation": end.bootstrap_observation}


def play(pool: native.EnvironmentPool, actions: np.ndarray) -> Arrays:
    """Play a round of these actions, and return all of its results."""
    buffers = buffers_for(pool, len(actions))
    pool.begin_round(**buffers)
    for t, action in enumerate(actions):
        pool.step_round(t, action)
    return left(buffers, pool.end_round())


def assert_same(found: Arrays, expected: Arrays) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (found[name].dtype, found[name].tobytes()) == (array.dtype, array.tobytes()), name

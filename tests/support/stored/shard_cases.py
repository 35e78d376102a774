"""Rounds for tests of shards: any columns, any size, episodes that end here and there."""

from __future__ import annotations

import numpy as np

from penstock.storage.refs import ShardRef
from penstock.storage.shards.codec import ShardColumns, ShardInfo, allocate, encode_shard
from penstock.storage.shards.episode_index import Episodes
from penstock.storage.shards.specs import Spec

PIXELS = Spec("uint8", (4, 40, 40))


def filled(columns, steps, envs, seed=0):
    """Arrays by column; stacks of frames where an observation is declared as stacked, with new episodes in between."""
    rng = np.random.default_rng(seed)
    arrays = allocate(columns, steps, envs)
    for name, spec in columns.items():
        array = arrays[name]
        if spec.stacked:
            frames = rng.integers(0, 200, (steps, envs, *spec.shape[1:])).astype(spec.dtype)
            fresh = rng.random((steps, envs)) < 0.1
            for step in range(steps):
                for env in range(envs):
                    if step == 0 or fresh[step, env]:
                        array[step, env] = rng.integers(0, 200, spec.shape)
                    else:
                        array[step, env, :-1] = array[step - 1, env, 1:]
                    array[step, env, -1] = frames[step, env]
        elif spec.dtype == "bool":
            array[...] = rng.random(array.shape) < 0.5
        else:
            array[...] = rng.integers(0, 100, array.shape)
    return arrays


def some_episodes(steps, envs):
    """Environment 1 ends after half of the round, environment 0 at its end, which it began long before."""
    rows = np.array([(steps // 2) * envs + 1, (steps - 1) * envs])
    return Episodes.from_flags(
        row=rows,
        env_id=rows % envs,
        episode_id=np.array([0, 3]),
        length=np.array([steps // 2, 5 * steps]),
        return_=np.array([1.0, 2.5]),
        terminated=np.array([1, 0], dtype=np.uint8),
        truncated=np.array([0, 1], dtype=np.uint8),
        first_policy_version=np.array([20, 15]),
        last_policy_version=np.array([20, 20]),
    )


def a_shard(columns, steps, envs, seed=0):
    """(arrays, bootstrap rows, bootstrap observations, encoded shard)."""
    arrays = filled(columns, steps, envs, seed)
    rows = np.array([(steps // 2) * envs + 1, *range((steps - 1) * envs, steps * envs)])
    observation = columns["observation"]
    bootstrap = np.random.default_rng(seed).integers(0, 100, (len(rows), *observation.shape)).astype(observation.dtype)
    info = ShardInfo(7, 2, 21, 3, steps, envs, 20, 20, "CartPole-v1", {"gravity": 9.8}, some_episodes(steps, envs))
    return arrays, rows, bootstrap, encode_shard(ShardColumns(columns, arrays), rows, bootstrap, info)


def stored(store, shard, name="shards/x.arrow", rows=0):
    """Write a shard; its reference."""
    store.write(name, shard.parts)
    return ShardRef(name, shard.digest, shard.nbytes, 21, 3, rows)

"""The evaluate role: how good a snapshot is, acting greedily on seeds that training never saw."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode

from tasks.environments import make_pool
from tasks.snapshots import load_snapshot
from tasks.streams import Purpose, environment_seeds

if TYPE_CHECKING:
    from storage.refs import SnapshotRef
    from storage.store import Store
    from tasks.context import RunContext


def evaluate_snapshot(context: RunContext, store: Store, ref: SnapshotRef, episodes: int, key: int) -> dict[str, Any]:
    """Mean return of `episodes` episodes with zero noise, one environment each.

    Args:
        context: the run.
        store: the run's.
        ref: of the snapshot.
        episodes: how many.
        key: which set of seeds; the same key gives the same seeds and so the same result.

    Returns:
        `version`, `episodes`, `mean_return`, `min_return`, `max_return`, `mean_length`: all deterministic, and
        `seconds`, which is not. With several agents, a step's reward is the mean of theirs.
    """
    torch.set_num_threads(1)
    started = time.perf_counter()
    params = load_snapshot(context.cache.get_buffer(store, ref), ref)
    # Reset in the step that ends an episode: nobody has to act where it is over, and nothing may be allowed any more.
    pool = make_pool(context.config, episodes, AutoresetMode.SAME_STEP)
    pool.reset_ids(environment_seeds(context.config.seed, Purpose.EVALUATION, key, env_ids=range(episodes)))
    noise = torch.zeros((episodes, *context.algorithm.noise.shape))
    carry = context.algorithm.initial_carry(episodes)
    returns, lengths = np.zeros(episodes), np.zeros(episodes, dtype=np.int64)
    running = np.ones(episodes, dtype=bool)
    observation = pool.observation
    with torch.inference_mode():
        while running.any():
            rows, carry = context.algorithm.act(params, carry, torch.from_numpy(observation), noise)
            observation, reward, terminated, truncated, _ = pool.step(rows["action"].numpy())
            team_reward = reward.mean(-1) if reward.ndim > 1 else reward
            returns += np.where(running, team_reward, 0.0)
            lengths += running
            running &= ~(terminated | truncated)
    return {
        "version": ref.version,
        "episodes": episodes,
        "mean_return": float(returns.mean()),
        "min_return": float(returns.min()),
        "max_return": float(returns.max()),
        "mean_length": float(lengths.mean()),
        "seconds": time.perf_counter() - started,
    }

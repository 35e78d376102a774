"""Prints by how many bytes a process grew; test_memory.py runs it in a fresh interpreter, whose heap has no room."""

import gc
import sys
from collections import deque

import numpy as np
import psutil

from penstock import native

NUM_ENVS = 1000


def resident_bytes() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def step_a_million_times(mode: str) -> int:
    """1000 environments, 1000 steps after 200 that warm up; some batches dropped at once, some kept for a while."""
    pool = native.make("CartPole-v1", NUM_ENVS, autoreset_mode=mode, record_episode_statistics=True)
    pool.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, 2, (10, NUM_ENVS))
    kept: deque = deque(maxlen=20)
    before = 0
    for step in range(1200):
        if step == 200:
            before = resident_bytes()
        result = pool.step(actions[step % 10])
        if step % 3 == 0:
            kept.append(result)
        if step % 100 == 0:
            kept.clear()
    del result
    kept.clear()
    return resident_bytes() - before


def make_pools() -> int:
    """Make, step, save, restore and drop 60 pools after 20 that warm up, closed and not."""
    before = 0
    for number in range(80):
        if number == 20:
            before = resident_bytes()
        pool = native.make("CartPole-v1", NUM_ENVS, num_threads=2)
        pool.reset(seed=number)
        pool.step(np.zeros(NUM_ENVS, np.int64))
        pool.restore(pool.save())
        if number % 2:
            pool.close()
    return resident_bytes() - before


print(make_pools() if sys.argv[1] == "pools" else step_a_million_times(sys.argv[1]))  # noqa: T201

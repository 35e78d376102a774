"""A million steps leave no memory behind."""

import gc
from collections import deque

import numpy as np
import psutil
import pytest
from gymnasium.vector import AutoresetMode

import native

NUM_ENVS = 1000
SLACK_BYTES = 4 * 2**20
"""A batch of observations is 16 kB: 0.5 % of what a thousand of them would leave, if they were not given back."""


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_a_million_steps_do_not_grow(mode: AutoresetMode):
    """1000 environments, 1000 steps after 200 that warm up; some batches are dropped at once, some kept for a while.

    Infos with final observations and statistics come with about every step. Leaking only the four arrays of a step
    would be 26 MB.
    """
    pool = native.make("CartPole-v1", NUM_ENVS, autoreset_mode=mode, record_episode_statistics=True)
    pool.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, 2, (10, NUM_ENVS))
    kept: deque = deque(maxlen=20)
    process = psutil.Process()
    before = 0
    for step in range(1200):
        if step == 200:
            gc.collect()
            before = process.memory_info().rss
        result = pool.step(actions[step % 10])
        if step % 3 == 0:
            kept.append(result)
        if step % 100 == 0:
            kept.clear()
    kept.clear()
    gc.collect()
    assert process.memory_info().rss - before < SLACK_BYTES


def test_pools_that_are_dropped_give_their_memory_back():
    """Making, stepping, copying and dropping pools, with and without closing them."""
    process = psutil.Process()
    before = 0
    for number in range(60):
        if number == 20:
            gc.collect()
            before = process.memory_info().rss
        pool = native.make("CartPole-v1", NUM_ENVS, num_threads=2)
        pool.reset(seed=number)
        pool.step(np.zeros(NUM_ENVS, np.int64))
        pool.restore(pool.save())
        if number % 2:
            pool.close()
    gc.collect()
    assert process.memory_info().rss - before < SLACK_BYTES

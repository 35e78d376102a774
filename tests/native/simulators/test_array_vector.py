"""Environments of a program on arrays: states of one mode in another, and states that are none."""

import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode

from penstock import native
from penstock.native.adapters.vector_env import WrappedSource
from penstock.native.simulators.array_vector import ArrayVector
from penstock.native.simulators.state_pool import StatePool

LENGTHS = np.array([2, 5], np.int32)


class Counting:
    """Two environments that count their steps, and end after two and after five of them; a state is a count."""

    num_envs = 2
    leaves = (((2,), np.dtype(np.int32)),)
    observation_shape, observation_dtype = (1,), np.dtype(np.float32)

    def fresh(self, keys, episodes):
        return np.zeros(2, np.int32)

    def step(self, state, action):
        return state + np.int32(1)

    def replace(self, state, keys, episodes, over):
        return np.where(over, np.int32(0), state)

    def observation(self, state):
        return state.astype(np.float32)[:, None]

    def rewards(self, state):
        return np.ones(2, np.float32)

    def dones(self, state):
        return state == LENGTHS

    def arrays(self, state):
        return [state.copy()]

    def state_of(self, arrays):
        return arrays[0].copy()


def made(mode: str) -> StatePool:
    def build(autoreset_mode):
        return ArrayVector(Counting(), Box(-1, 1, (1,)), autoreset_mode, None)

    return StatePool(WrappedSource("counting", build, None, None), AutoresetMode(mode))


def stepped(pool: StatePool, steps: int) -> list:
    """Return observations, rewards and ends of so many steps."""
    return [tuple(part.tolist() for part in pool.step(np.zeros((2, 1), np.float32))[:3]) for _ in range(steps)]


def test_a_state_with_ended_episodes_is_for_next_step_mode():
    """There the ended one begins anew in the next step; a same-step pool would count it with the next episode."""
    pool, other, same = made("NextStep"), made("NextStep"), made("SameStep")
    pool.reset(seed=[0, 1])
    stepped(pool, 2)
    with pytest.raises(native.StateNotSupportedError, match=r"has ended episodes, .*autoreset_mode='NextStep'"):
        same.restore(pool.save())
    other.restore(pool.save())
    assert stepped(other, 2) == [
        ([[0.0], [3.0]], [0.0, 1.0], [False, False]),
        ([[1.0], [4.0]], [1.0, 1.0], [False, False]),
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"state.0": None},
        {"state.0": np.zeros(3, np.int32)},
        {"state.0": [1.0, 2.0]},
        {"own.over": np.zeros(1, np.bool_)},
        {"count.length": None},
    ],
)
def test_a_refused_state_leaves_the_pool_as_it_was(changes):
    """Whatever is wrong with it: its environments play on."""
    pool = made("SameStep")
    pool.reset(seed=[0, 1])
    stepped(pool, 1)
    state = {**pool.save(), **changes}
    with pytest.raises(native.StateNotSupportedError):
        pool.restore({name: array for name, array in state.items() if array is not None})
    assert stepped(pool, 1) == [([[0.0], [2.0]], [1.0, 1.0], [True, False])]


def test_a_refused_reset_changes_nothing():
    """Neither what comes next, nor that a round is open."""
    pool = made("NextStep")
    pool.reset_ids(np.arange(2, dtype=np.uint64))
    columns = np.zeros((1, 2), np.float32), *(np.zeros((1, 2), np.uint8) for _ in range(2)), np.zeros((1, 2), np.int32)
    pool.begin_round(np.zeros((1, 2, 1), np.float32), *columns)
    with pytest.raises(ValueError, match=r"reset options \['level'\]: these environments take none but reset_mask"):
        pool.reset(options={"level": 7})
    pool.step_round(0, np.zeros((2, 1), np.float32))
    pool.end_round()
    pool.save()

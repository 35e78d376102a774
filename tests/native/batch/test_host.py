"""Kernels over arrays of the caller's: their layout, their environments, and what they refuse."""

import ctypes

import numpy as np
import pytest

from penstock import native
from penstock.native.batch.host import batch_ids, host_kernels
from penstock.native.batch.kernels import BatchArrays, BatchError, BatchKernels, BatchStep
from penstock.native.batch.layout import Layout, empty_columns, read_member, write_members
from penstock.native.pool.generators import seeded_words

BUILT_IN = (
    "Acrobot-v1", "CartPole-v1", "ConnectFour-v0", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1",
    "PositionOnlyCartPole-v0", "simple_spread_continuous_v3", "simple_spread_v3", "toy/Blackjack-v1",
)  # fmt: skip


class Batch:
    """Three CartPoles in NumPy's memory, just begun."""

    def __init__(self) -> None:
        kernels = host_kernels("CartPole-v1")
        assert kernels is not None
        self.kernels = kernels
        self.words = np.zeros((kernels.layout.state_columns()[0], 3), np.int64)
        self.words[kernels.layout.generator] = seeded_words([7, 8, 9]).view(np.int64).T
        config = native.make("CartPole-v1", 3)
        assert isinstance(config, native.Pool)
        self.config = kernels.layout.config_arrays(config.config)
        self.observation = np.zeros((3, 4), np.float32)
        self.reward, self.ends = np.full(3, 7.0), np.ones((2, 3), np.bool_)
        addresses = (array.ctypes.data for array in (*self.config, self.words))
        self.arrays = BatchArrays(3, 0, *addresses, 0, 0)
        kernels.begin(self.arrays, np.ones(3, np.bool_).ctypes.data, self.observation.ctypes.data)

    def step(self, actions: np.ndarray, skipped: np.ndarray | None = None) -> None:
        addresses = (array.ctypes.data for array in (self.reward, *self.ends, self.observation))
        out = BatchStep(None if skipped is None else skipped.ctypes.data, *addresses)
        self.kernels.step(self.arrays, actions.ctypes.data, out)


def test_environments_of_plain_state_can_be_stepped_in_batches():
    """All built-in ones can; those that share a model, and those that others step, cannot."""
    assert set(BUILT_IN) <= set(batch_ids())
    assert all(isinstance(host_kernels(name), BatchKernels) for name in BUILT_IN)
    for name in ("Ant-v5", "ALE/Pong-v5", "gymnasium/CartPole-v1", "nothing"):
        assert host_kernels(name) is None


@pytest.mark.parametrize("environment_id", BUILT_IN)
def test_the_layout_names_what_a_pool_saves(environment_id: str):
    """Members have the names, types and lengths of the native pool's saved state, and columns of their own."""
    kernels, pool = host_kernels(environment_id), native.make(environment_id, 2)
    assert kernels is not None
    pool.reset(seed=1)
    saved, layout = pool.save(), kernels.layout
    found = {member.name: (member.dtype, member.length) for member in (*layout.config, *layout.state)}
    assert found == {
        name: (value.dtype, value.shape[1] if value.ndim > 1 else 0)
        for name, value in saved.items()
        if name.startswith(("config.", "state."))
    }
    for members in (layout.config, layout.state):
        columns = [(member.is_flag, column) for member in members for column in range(100)[member.columns]]
        assert len(columns) == len(set(columns))


def test_members_are_read_as_they_were_written():
    """Numbers of every type, single or in arrays, keep their bits."""
    layout = Layout.parse("config.a float64 0\nstate.b bool 2\nstate.c int64 0\nstate.d float64 3\nstate.e bool 0\n")
    assert [(member.name, member.first) for member in layout.state] == [
        ("state.b", 0), ("state.c", 0), ("state.d", 1), ("state.e", 2),
    ]  # fmt: skip
    assert layout.state_columns() == (4 + 3 + 5, 3)
    values = {
        "state.b": np.array([[True, False], [False, True]]),
        "state.c": np.array([-1, 2**62]),
        "state.d": np.array([[np.nan, -0.0, 1.5], [np.inf, 5e-324, -2.0]]),
        "state.e": np.array([False, True]),
    }
    words, flags = empty_columns(layout.state, 2)
    write_members(layout.state, values, words, flags)
    for member in layout.state:
        found = read_member(member, words, flags)
        assert (found.dtype, found.tobytes()) == (values[member.name].dtype, values[member.name].tobytes())


def test_a_batch_needs_nothing_but_its_arrays():
    """Two copies of a batch's memory continue alike; skipped environments stay as they are, with reward 0."""
    batch = Batch()
    before = batch.words.copy()
    batch.step(np.array([0, 1, 1]), np.array([False, True, False]))
    after = batch.words.copy()
    assert (after != before).any(axis=0).tolist() == [True, False, True]
    assert batch.reward.tolist() == [1.0, 0.0, 1.0]
    assert not batch.ends.any()
    batch.words[:] = before
    batch.step(np.array([0, 1, 1]))
    assert np.array_equal(batch.words[:, [0, 2]], after[:, [0, 2]])
    assert (batch.words[:, 1] != before[:, 1]).any()


def test_actions_are_checked_before_anything_moves():
    """The error names the first environment with one that is out of range; no memory is touched."""
    batch = Batch()
    before = batch.words.copy()
    with pytest.raises(BatchError, match="action 2 of environment 1 is out of range: expected 0 to 1"):
        batch.step(np.array([0, 2, -1]))
    assert np.array_equal(batch.words, before)


def test_structures_have_the_headers_sizes():
    """A structure that lacks a member would shift all addresses behind it."""
    assert ctypes.sizeof(BatchArrays) == 7 * 8
    assert ctypes.sizeof(BatchStep) == 5 * 8


@pytest.mark.slow
def test_the_library_of_a_header_has_kernels(drift: native.Library):
    """`load` compiles them along; an environment that throws stays as it was, and the others are stepped."""
    assert drift.environment_ids == ("Drift-v0",)
    kernels = host_kernels("Drift-v0")
    assert kernels is not None
    assert [(member.name, member.length) for member in kernels.layout.state] == [
        ("state.begun", 0), ("state.place", 2), ("state.moves", 2), ("state.away", 2), ("state.gust", 0),
    ]  # fmt: skip
    wind = np.array([0.5, 1e9, 0.5])
    config = kernels.layout.config_arrays({"mirrored": np.zeros(3), "wind": wind, "stride": np.ones(3)})
    columns = kernels.layout.state_columns()
    words, flags = np.zeros((columns[0], 3), np.int64), np.zeros((columns[1], 3), np.bool_)
    words[kernels.layout.generator] = seeded_words([1, 2, 3]).view(np.int64).T
    arrays = BatchArrays(3, 0, *(array.ctypes.data for array in (*config, words, flags)), 0)
    observation, rewards, ends = np.zeros((3, 2, 3)), np.zeros((3, 2)), np.zeros((2, 3), np.bool_)
    kernels.begin(arrays, np.ones(3, np.bool_).ctypes.data, observation.ctypes.data)
    before = words.copy()
    out = BatchStep(None, *(array.ctypes.data for array in (rewards, *ends, observation)))
    with pytest.raises(BatchError, match="environment 1 of Drift-v0 failed: the gust was "):
        kernels.step(arrays, np.ones((3, 2), np.int64).ctypes.data, out)
    place = kernels.layout.state[1].columns
    assert (words[place] != before[place]).any(axis=0).tolist() == [True, False, True]

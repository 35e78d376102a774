"""The hand-off to torch: the same memory both ways, and nothing that is kept is ever overwritten."""

import gc
import tracemalloc

import numpy as np
import pytest
import torch

from penstock import native
from penstock.native.trainers.torch import as_tensors


def started(env_id: str, num_envs: int = 6) -> native.Pool:
    pool = native.make(env_id, num_envs, 1, 30, "SameStep")
    pool.reset(seed=0)
    return pool


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_tensors_share_the_memory_of_a_step(env_id: str):
    """Each tensor lies where the array lies, at a multiple of 64 bytes, and a write through one shows in the other."""
    pool = started(env_id)
    step = pool.step(pool.action_space.sample())
    tensors = as_tensors(step)
    for array, tensor in zip(step[:4], tensors[:4], strict=True):
        assert tensor.data_ptr() == array.ctypes.data
        assert tensor.data_ptr() % 64 == 0
        assert (tuple(tensor.shape), str(tensor.dtype)) == (array.shape, f"torch.{array.dtype}")
    tensors.observation[2] = 7.0
    assert (step[0][2] == 7.0).all()
    assert tensors.infos is step[4]


def test_kept_tensor_is_never_overwritten():
    """Tensors outlive the arrays, the steps that follow and the pool; memory comes back only when they are dropped."""
    pool = started("CartPole-v1")
    kept, copies, addresses = [], [], set()
    for _ in range(40):
        tensors = as_tensors(pool.step(np.ones(6, np.int64)))
        kept.append(tensors.observation)
        copies.append(tensors.observation.clone())
        addresses.add(tensors.observation.data_ptr())
    assert len(addresses) == 40
    pool.close()
    del pool, tensors
    gc.collect()
    assert all(torch.equal(one, copy) for one, copy in zip(kept, copies, strict=True))


def test_dropped_tensors_give_their_memory_back():
    """A caller that keeps no arrays reuses the same few slabs."""
    pool = started("CartPole-v1")
    addresses = {as_tensors(pool.step(np.ones(6, np.int64))).observation.data_ptr() for _ in range(100)}
    assert len(addresses) <= 2


@pytest.mark.parametrize(
    ("env_id", "actions"),
    [
        ("CartPole-v1", torch.tensor([0, 1, 1, 0, 1, 0])),
        ("Pendulum-v1", torch.linspace(-2, 2, 6).reshape(6, 1)),
        ("Pendulum-v1", torch.linspace(-2, 2, 6, dtype=torch.float64).reshape(6, 1)),
    ],
)
def test_actions_come_as_tensors(env_id: str, actions: torch.Tensor):
    """CPU tensors do what the same arrays do; NumPy sees them without a copy."""
    left, right = started(env_id), started(env_id)
    assert np.asarray(actions).ctypes.data == actions.data_ptr()
    for ours, theirs in zip(left.step(actions)[:4], right.step(actions.numpy().copy())[:4], strict=True):
        assert np.array_equal(ours, theirs)


def test_actions_of_the_right_type_are_not_copied():
    """A step with a tensor of the pool's own type makes no array as large as the actions; another type needs one."""
    pool = started("CartPole-v1", 8192)
    wanted = torch.zeros(8192, dtype=torch.int64)
    largest = []
    for actions in (wanted, wanted, wanted.int()):
        tracemalloc.start()
        pool.step(actions)
        largest.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert largest[1] < wanted.nbytes / 4
    assert largest[2] >= wanted.nbytes

"""Staging: memory is used again, never while it is needed, and what arrives is what was sent, bit for bit."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch

from penstock.tasks.data.input.device_staging import DeviceCopies, StagingBuffers

CPU = torch.device("cpu")
KIB = 1 << 10


def arrays(seed: int, rows: int = 1000) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "observation": rng.random((rows, 5), dtype=np.float32),
        "flag": rng.integers(0, 2, (rows, 3)).astype(np.uint8),
        "action": rng.integers(0, 9, rows),
        "turned": rng.random((3, rows)).T,
        "none": np.zeros((0, 4), np.float64),
        "half": rng.random(7).astype(np.float16),
    }


def test_what_arrives_is_what_was_sent():
    """Types, shapes and bits, in one block of memory, and not the caller's."""
    copies = DeviceCopies(CPU, StagingBuffers(1 << 20, pinned=False))
    sent = arrays(0)
    arrival = copies.send(sent)
    arrival.wait()
    kept = {name: array.copy() for name, array in sent.items()}
    for array in sent.values():
        array[...] = 0
    assert arrival.tensors.keys() == kept.keys()
    for name, array in kept.items():
        found = arrival.tensors[name].numpy()
        assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())
        assert arrival.tensors[name].untyped_storage().data_ptr() == arrival.block.untyped_storage().data_ptr()


def test_staging_memory_is_used_again_and_arrivals_keep_their_content():
    """A hundred copies go through one buffer; none changes what came before it."""
    staging = StagingBuffers(1 << 20, pinned=False)
    copies = DeviceCopies(CPU, staging)
    arrivals = [copies.send(arrays(seed)) for seed in range(100)]
    assert (staging.allocations, staging.uses) == (1, 100)
    for seed, arrival in enumerate(arrivals):
        for name, array in arrays(seed).items():
            assert arrival.tensors[name].numpy().tobytes() == array.tobytes()


def test_a_buffer_belongs_to_one_user_at_a_time():
    """Until it is released, others get other memory; then the same."""
    staging = StagingBuffers(1 << 20, pinned=False)
    first, second = staging.acquire(100 * KIB), staging.acquire(100 * KIB)
    assert first.tensor.data_ptr() != second.tensor.data_ptr()
    assert first.tensor.data_ptr() % 64 == 0
    staging.release(first)
    assert staging.acquire(90 * KIB) is first
    assert staging.allocations == 2


def test_idle_buffers_go_where_the_budget_would_be_exceeded():
    """Other sizes than before: the memory of the old ones is given back first."""
    staging = StagingBuffers(1 << 20, pinned=False)
    for buffer in [staging.acquire(256 * KIB) for _ in range(4)]:
        staging.release(buffer)
    assert staging.allocated_bytes == 1 << 20
    larger = staging.acquire(512 * KIB)
    assert larger.capacity_bytes == 512 * KIB
    assert staging.allocated_bytes == 1 << 20
    staging.release(larger)
    for nbytes in range(100 * KIB, 900 * KIB, 50 * KIB):
        staging.release(staging.acquire(nbytes))
        assert staging.allocated_bytes <= 1 << 20


def test_what_is_in_use_may_exceed_the_budget():
    """`acquire` always gives memory: the amount requested at once is bounded elsewhere."""
    staging = StagingBuffers(64 * KIB, pinned=False)
    buffers = [staging.acquire(64 * KIB) for _ in range(3)]
    assert staging.allocated_bytes == 3 * 64 * KIB
    for buffer in buffers:
        staging.release(buffer)
    staging.acquire(128 * KIB)
    assert staging.allocated_bytes == 128 * KIB


def test_nearly_equal_sizes_share_buffers():
    """Shards of one run differ by a few bytes; that must not cost an allocation each."""
    staging = StagingBuffers(1 << 30, pinned=False)
    for nbytes in range(16_000_000, 16_000_000 + 50_000, 1_000):
        staging.release(staging.acquire(nbytes))
    assert staging.allocations == 1
    assert staging.allocated_bytes < 1.15 * 16_000_000


def test_giving_a_buffer_back_twice_gives_it_to_one_user():
    """Two users of one piece of memory would learn from each other's rows."""
    staging = StagingBuffers(1 << 20, pinned=False)
    buffer = staging.acquire(100 * KIB)
    for _ in range(2):
        staging.release(buffer)
    assert staging.acquire(100 * KIB) is buffer
    assert staging.acquire(100 * KIB) is not buffer


def test_memory_that_can_not_be_had_is_not_accounted_for():
    """The request raises, and the counts and kept buffers are as if it had not been made."""
    staging = StagingBuffers(1 << 20, pinned=False)
    kept = staging.acquire(100 * KIB)
    before = (staging.allocated_bytes, staging.allocations)
    with pytest.raises(RuntimeError):
        staging.acquire(1 << 55)
    assert (staging.allocated_bytes, staging.allocations) == before
    staging.release(kept)
    assert staging.acquire(100 * KIB) is kept


def test_a_copy_that_fails_gives_its_buffer_back():
    """The next one needs no other."""
    staging = StagingBuffers(1 << 20, pinned=False)
    copies = DeviceCopies(CPU, staging)
    for _ in range(3):
        with pytest.raises(TypeError):
            copies.send({"no number": np.array([object()])})
    copies.send(arrays(0))
    assert staging.allocations == 1


def test_closing_lets_go_of_memory_now_and_when_it_is_given_back():
    """Nothing idle outlives its use; what is in use stays until it is released."""
    staging = StagingBuffers(1 << 20, pinned=False)
    idle, used = staging.acquire(100 * KIB), staging.acquire(100 * KIB)
    seen = [weakref.ref(buffer.tensor) for buffer in (idle, used)]
    staging.release(idle)
    del idle
    staging.close()
    assert (seen[0](), seen[1]() is None) == (None, False)
    staging.release(used)
    del used
    assert seen[1]() is None

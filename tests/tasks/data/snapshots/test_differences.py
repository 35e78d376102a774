"""A difference gives the next snapshot's bytes, takes fewer, and can't make its reader use memory without bound."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
import torch

from penstock.storage.errors import CorruptObjectError
from penstock.tasks.data.snapshots.differences import apply_difference, encode_difference
from penstock.tasks.data.snapshots.quantize import encode_params

GIGABYTE = 1 << 30


def snapshot(version: int, step: float = 0.0, rows: int = 300) -> bytes:
    """Return a snapshot in bfloat16 whose weights moved by about `step`, in directions drawn from the version."""
    first, moves = torch.Generator().manual_seed(1), torch.Generator().manual_seed(version)
    shapes = {"policy/weight": (rows, 200), "policy/bias": (rows,), "policy/log_std": (3,)}
    drawn = {name: torch.randn(shape, generator=first) for name, shape in shapes.items()}
    moved = {name: value + step * torch.randn(value.shape, generator=moves) for name, value in drawn.items()}
    return encode_params(moved, "bfloat16", {"version": version})


@pytest.mark.parametrize("step", [0.0, 1e-4, 1e-2, 1.0])
def test_a_difference_gives_the_next_version(step: float):
    """Every byte, whether nothing or everything changed; the same two versions always have the same difference."""
    before, after = snapshot(3), snapshot(4, step)
    difference = encode_difference(before, after)
    assert difference is not None
    assert bytes(apply_difference(before, difference)) == after
    assert difference == encode_difference(memoryview(before), memoryview(after))


def test_a_difference_of_a_small_step_takes_less_than_half_of_the_bytes():
    """Weights that move by a thousandth of their size, of which bfloat16 keeps seven bits."""
    after = snapshot(4, 1e-3)
    difference = encode_difference(snapshot(3), after)
    assert difference is not None
    assert len(difference) < len(after) / 2


@pytest.mark.parametrize("size", range(1, 12))
def test_files_of_any_size_have_differences(size: int):
    """Bytes behind the last whole four are kept as well."""
    before, after = bytes(range(size)), bytes(range(100, 100 + size))
    difference = encode_difference(before, after)
    assert difference is not None
    assert bytes(apply_difference(before, difference)) == after


def test_files_of_different_sizes_have_no_difference():
    """Their numbers are at different places, so that a difference would not be small."""
    assert encode_difference(snapshot(3), snapshot(4, rows=301)) is None


@pytest.mark.parametrize("other", [-1, 1])
def test_a_difference_from_a_file_of_another_size_is_refused(other: int):
    before, after = snapshot(3), snapshot(4, 1e-3)
    difference = encode_difference(before, after)
    base = before[:-1] if other < 0 else before + b"x"
    with pytest.raises(CorruptObjectError, match=f"no difference from a snapshot of {len(base)} bytes"):
        apply_difference(base, difference)


@pytest.mark.parametrize("data", [b"", b"nothing", bytes(1000), snapshot(3)], ids=["empty", "text", "zeros", "whole"])
def test_what_is_no_difference_is_refused(data: bytes):
    with pytest.raises(CorruptObjectError, match="the whole snapshot is read instead"):
        apply_difference(snapshot(3), data)


def test_cut_differences_are_refused():
    before = snapshot(3)
    difference = encode_difference(before, snapshot(4, 1e-3))
    assert difference is not None
    for length in range(0, len(difference), 997):
        with pytest.raises(CorruptObjectError):
            apply_difference(before, difference[:length])


def test_a_difference_that_would_grow_without_bound_is_refused():
    """A gigabyte of zeros in less than 200 kB: a reader's memory does not grow by a tenth of it."""
    bomb = pa.Codec("zstd").compress(np.zeros(GIGABYTE, np.uint8), asbytes=True)
    assert len(bomb) < 200_000
    program = (
        "import sys\n"
        "from resource import RUSAGE_SELF, getrusage\n"
        "from penstock.storage.errors import CorruptObjectError\n"
        "from penstock.tasks.data.snapshots.differences import apply_difference, encode_difference\n"
        "assert encode_difference(bytes(1000), bytes(1000))\n"
        "bomb, before = sys.stdin.buffer.read(), getrusage(RUSAGE_SELF).ru_maxrss\n"
        "try:\n"
        "    apply_difference(bytes(1000), bomb)\n"
        "except CorruptObjectError:\n"
        "    print(1024 * (getrusage(RUSAGE_SELF).ru_maxrss - before))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], input=bomb, capture_output=True, check=True)
    assert int(ended.stdout) < GIGABYTE / 10

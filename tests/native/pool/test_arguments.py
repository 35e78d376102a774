"""Arguments of pools: seeds that a library's generator cannot hold, and resets of some environments."""

import numpy as np
import pytest

from penstock.native.pool.arguments import folded_seed, masked_reset, one_each


@pytest.mark.parametrize("bits", [31, 32])
def test_seeds_are_folded_so_that_every_bit_counts(bits: int):
    """A seed that fits means what it means to the library; any other bit changes the result, which fits."""
    most = 2**bits - 1
    assert [folded_seed(value, bits) for value in (0, 7, most)] == [0, 7, most]
    assert len({folded_seed(1 << bit, bits) for bit in range(bits)}) == bits
    for bit in range(bits, 64):
        assert 0 <= folded_seed((1 << bit) | 12345, bits) <= most
        assert folded_seed((1 << bit) | 12345, bits) != 12345
    assert 0 <= folded_seed(2**64 - 1, bits) <= most


def test_32_bits_are_the_two_halves():
    """The seeds of earlier versions' runs stay: both halves, one over the other."""
    seed = 0x0123456789ABCDEF
    assert folded_seed(seed, 32) == (seed ^ (seed >> 32)) & 0xFFFFFFFF


@pytest.mark.parametrize("value", [2**53 + 1, -(2**53) - 1, 2**63, [5, 2**60]])
def test_integers_that_a_float_does_not_have_are_refused(value: object):
    """The compiled pool would get another number than the configuration shows."""
    with pytest.raises(ValueError, match=r"max_steps must be"):
        one_each("max_steps", value, 100, 2)
    assert one_each("max_steps", 2**53, 100, 2).tolist() == [2**53] * 2


def test_a_reset_of_some_needs_one_of_all_before():
    """Environments that are not chosen have a state to keep; a seed counts up over all environments, chosen or not."""
    some = {"reset_mask": np.array([True, False, True])}
    with pytest.raises(ValueError, match="expected a reset of all environments first"):
        masked_reset(5, some, 3, has_begun=False)
    chosen, seeds = masked_reset(5, some, 3, has_begun=True)
    assert chosen.tolist() == [True, False, True]
    assert seeds == [5, 6, 7]
    chosen, seeds = masked_reset([1, None, 3], None, 3, has_begun=False)
    assert chosen.all()
    assert seeds == [1, None, 3]
    assert masked_reset(None, {}, 2, has_begun=False)[1] == [None, None]

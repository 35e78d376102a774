"""The environments' random generators as NumPy's: the same PCG64, its state carried over word by word."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.native import _core

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

_WORD = 2**64 - 1
_HAS_HALF = 1 << 32


def generator_of(words: NDArray[np.uint64]) -> np.random.Generator:
    """Return a copy of an environment's generator as NumPy's; drawing from it does not move the environment's."""
    state_high, state_low, increment_high, increment_low, *half = (int(word) for word in words)
    kept = half[0] if half else 0
    bits = np.random.PCG64(0)
    bits.state = {
        "bit_generator": "PCG64",
        "state": {"state": state_high << 64 | state_low, "inc": increment_high << 64 | increment_low},
        "has_uint32": int(kept != 0),
        "uinteger": kept & (_HAS_HALF - 1),
    }
    return np.random.Generator(bits)


def words_of(generator: Any, width: int) -> list[int]:
    """Return the words of a generator's state, as a pool's saved state holds them.

    Raises:
        TypeError: It is not a NumPy generator over PCG64, which is the one that environments have.
    """
    if not isinstance(generator, np.random.Generator) or not isinstance(generator.bit_generator, np.random.PCG64):
        found = generator.bit_generator if isinstance(generator, np.random.Generator) else generator
        raise TypeError(f"np_random must be a numpy Generator over PCG64, as np.random.default_rng gives, got {found}")
    state = generator.bit_generator.state
    inner = state["state"]
    kept = _HAS_HALF | state["uinteger"] if state["has_uint32"] else 0
    words = [inner["state"] >> 64, inner["state"] & _WORD, inner["inc"] >> 64, inner["inc"] & _WORD, kept]
    return words[:width]


def seeded_words(seeds: Iterable[int]) -> NDArray[np.uint64]:
    """Return the words of new generators, `[seeds, 5]`, seeded as NumPy's SeedSequence does."""
    return np.array([_core.Rng(seed).words() for seed in seeds], dtype=np.uint64)

"""Draws the random numbers of coming episodes ahead, on the host, from each environment's NumPy generator.

So a torch environment starts in the same state as the native one of the same seed, and a step needs nothing from the
host. The cost: `capacity * draws * 8` bytes per environment on both sides, a copy of them to the device between rounds,
and some thirty NumPy operations per draw, on all environments at once, while no step runs. A generator object per
environment would cost microseconds each per round, too much for many thousands of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.native.pool.generators import words_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

_WORDS = 5
_HALF, _HALF_BITS = np.uint64(2**32 - 1), np.uint64(32)
_MULTIPLIER_HIGH, _MULTIPLIER_LOW = np.uint64(0x2360ED051FC65DA4), np.uint64(0x4385DF649FCCF645)


class StartDraws:
    """Keeps a ring of draws for each environment: its start number n is in row n % capacity of `block`."""

    def __init__(self, num_envs: int, draws: int) -> None:
        self._draws = draws
        self._taken = np.zeros(num_envs, dtype=np.int64)
        self._before = np.zeros((2, 1, num_envs), dtype=np.uint64)
        """Each generator's state before the start in a row, `[2, capacity, num_envs]`: its high and low word. Replaced
        and never written to, so that `words_after` may keep it."""
        self._ahead = np.zeros((2, num_envs), dtype=np.uint64)
        """The state after the last start in the ring, likewise."""
        self.block = np.zeros((1, draws, num_envs))
        """The draws, float64 `[capacity, draws, num_envs]` in [0, 1)."""
        self.words = np.zeros((num_envs, _WORDS), dtype=np.uint64)
        """Each generator's state after the starts that were replaced: the words of a native pool's saved state."""

    @property
    def seeded(self) -> NDArray[np.bool_]:
        """Return a mask of environments with a generator, `[num_envs]`; an increment is odd, so never 0."""
        seeded: NDArray[np.bool_] = self.words[:, 3] != 0
        return seeded

    def seed(self, seeds: Mapping[int, int]) -> None:
        """Reseed these environments' generators, as NumPy's SeedSequence does for these seeds."""
        for environment, seed in seeds.items():
            generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
            self.words[environment] = words_of(generator, _WORDS)
        self._fill(np.array(sorted(seeds), dtype=np.int64))

    def restore(self, words: NDArray[np.uint64]) -> None:
        """Restore saved words, uint64 `[num_envs, 5]`."""
        self.words[:] = words
        self._fill(np.arange(len(words)))

    def reserve(self, capacity: int) -> bool:
        """Make room for at least so many starts between two refills; return whether `block` was reallocated."""
        if capacity <= len(self.block):
            return False
        self.block = np.zeros((capacity, *self.block.shape[1:]))
        self._before = np.zeros((2, capacity, self.block.shape[2]), dtype=np.uint64)
        self._fill(np.flatnonzero(self.seeded))
        return True

    def refill(self, taken: NDArray[np.int64]) -> bool:
        """Replace the draws that were taken, given each environment's total starts; return whether there were any."""
        environments = np.flatnonzero(taken != self._taken)
        if not len(environments):
            return False
        first, capacity = self._taken[environments], len(self.block)
        counts = taken[environments] - first
        before, newest = self._before.copy(), self._ahead.copy()
        for start in range(counts.max()):
            more = counts > start
            chosen = environments[more]
            # The start in this row was taken, so the row gets the next start of the ring.
            rows = (first[more] + start) % capacity
            ahead = newest[:, chosen]
            before[:, rows, chosen] = ahead
            for draw in range(self._draws):
                ahead = self._advanced(ahead, chosen)
                self.block[rows, draw, chosen] = _random(ahead)
            newest[:, chosen] = ahead
        self._before, self._ahead, self._taken = before, newest, taken.copy()
        self.words[environments, :2] = before[:, taken[environments] % capacity, environments].T
        return True

    def words_after(self) -> Callable[[NDArray[np.int64]], NDArray[np.uint64]]:
        """Return a function that gives what `words` would be after `refill`, given each environment's total starts.

        It takes nothing from the ring, and any thread may call it, also after `refill`.
        """
        words, first, before, ahead = self.words.copy(), self._taken, self._before, self._ahead

        def after(taken: NDArray[np.int64]) -> NDArray[np.uint64]:
            found, capacity = words.copy(), before.shape[1]
            in_ring = before[:, taken % capacity, np.arange(len(taken))]
            found[:, :2] = np.where(taken - first < capacity, in_ring, ahead).T
            return found

        return after

    def _fill(self, environments: NDArray[np.int64]) -> None:
        """Fill the whole ring of these environments, from their words on."""
        first, capacity = self._taken[environments], len(self.block)
        before, newest = self._before.copy(), self._ahead.copy()
        ahead = self.words[environments, :2].T
        for start in range(capacity):
            rows = (first + start) % capacity
            before[:, rows, environments] = ahead
            for draw in range(self._draws):
                ahead = self._advanced(ahead, environments)
                self.block[rows, draw, environments] = _random(ahead)
        newest[:, environments] = ahead
        self._before, self._ahead = before, newest

    def _advanced(self, state: NDArray[np.uint64], environments: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Compute PCG64's next state, state * multiplier + increment modulo 2**128, from wrapping 64-bit words."""
        high, low = state
        increment_high, increment_low = self.words[environments, 2:4].T
        upper, lower = low >> _HALF_BITS, low & _HALF
        by_upper, by_lower = _MULTIPLIER_LOW >> _HALF_BITS, _MULTIPLIER_LOW & _HALF
        cross, other_cross = upper * by_lower, lower * by_upper
        middle = (lower * by_lower >> _HALF_BITS) + (cross & _HALF) + (other_cross & _HALF)
        carried = upper * by_upper + (cross >> _HALF_BITS) + (other_cross >> _HALF_BITS) + (middle >> _HALF_BITS)
        next_low = low * _MULTIPLIER_LOW + increment_low
        next_high = high * _MULTIPLIER_LOW + low * _MULTIPLIER_HIGH + carried + increment_high
        return np.stack((next_high + (next_low < increment_low), next_low))


def _random(state: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Compute `Generator.random()` of these states: 53 bits of XSL-RR's word."""
    high, low = state
    folded, turn = high ^ low, high >> np.uint64(58)
    word = folded >> turn | folded << (np.uint64(64) - turn & np.uint64(63))
    random: NDArray[np.float64] = (word >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return random

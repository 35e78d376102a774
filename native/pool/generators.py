"""The environments' random generators as NumPy's: the same PCG64, its state carried over word by word.

So Python draws what an environment would: first states within other bounds, where Gymnasium's `reset` takes them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.native import _core

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

_STARTS: dict[str, tuple[tuple[str, ...], dict[str, float]]] = {
    "Acrobot-v1": (("angle_1", "angle_2", "velocity_1", "velocity_2"), {"low": -0.1, "high": 0.1}),
    "CartPole-v1": (("x", "x_dot", "angle", "angle_dot"), {"low": -0.05, "high": 0.05}),
    "MountainCar-v0": (("position",), {"low": -0.6, "high": -0.4}),
    "MountainCarContinuous-v0": (("position",), {"low": -0.6, "high": -0.4}),
    "Pendulum-v1": (("angle", "speed"), {"x_init": math.pi, "y_init": 1.0}),
}
"""By id: what a reset draws, uniformly, in this order, and the options that give other bounds, with their defaults."""
_ACROBOT, _ACROBOT_MOST = "Acrobot-v1", 0.78
"""Its first state is float32, whose sine and cosine equal NumPy's up to pi / 4."""
_WORD = 2**64 - 1
_HAS_HALF = 1 << 32


def generator_of(words: NDArray[np.uint64]) -> np.random.Generator:
    """Return a copy of an environment's generator as NumPy's; drawing from it does not move the environment's."""
    return np.random.Generator(_bits_of(words))


def _bits_of(words: NDArray[np.uint64]) -> np.random.PCG64:
    state_high, state_low, increment_high, increment_low, *half = (int(word) for word in words)
    kept = half[0] if half else 0
    bits = np.random.PCG64(0)
    bits.state = {
        "bit_generator": "PCG64",
        "state": {"state": state_high << 64 | state_low, "inc": increment_high << 64 | increment_low},
        "has_uint32": int(kept != 0),
        "uinteger": kept & (_HAS_HALF - 1),
    }
    return bits


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


def start_options(environment_id: str) -> tuple[str, ...]:
    """Return the options of `reset` that give the bounds of an environment's first state."""
    return tuple(_STARTS[environment_id][1]) if environment_id in _STARTS else ()


def start_bounds(
    environment_id: str, options: Mapping[str, Any] | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return the bounds of each value that a reset draws; None if no option gives any.

    Raises:
        ValueError: One is not a finite number, a lower one is above an upper one, or Acrobot's first view could not be
            Gymnasium's to the last bit.
    """
    fields, values = _STARTS.get(environment_id, ((), {}))
    if not set(values) & set(options or {}):
        return None
    values = {name: _finite(name, (options or {}).get(name, value)) for name, value in values.items()}
    high = np.full(len(fields), values["high"]) if "high" in values else np.array(list(values.values()))
    low = np.full(len(fields), values["low"]) if "low" in values else -high
    if not (low <= high).all():
        raise ValueError(f"reset options {values}: expected no lower bound above an upper one")
    with np.errstate(over="ignore"):
        if not np.isfinite(high - low).all():
            raise ValueError(f"reset options {values}: expected bounds whose distance is a finite number")
    if environment_id == _ACROBOT and max(-low.min(), high.max()) > _ACROBOT_MOST:
        raise ValueError(
            f"reset options {values}: {_ACROBOT} takes bounds from {-_ACROBOT_MOST} to {_ACROBOT_MOST}; "
            f"'gymnasium/{_ACROBOT}' takes any"
        )
    return low, high


def starts_within(
    environment_id: str, bounds: tuple[NDArray[np.float64], NDArray[np.float64]], words: NDArray[np.uint64]
) -> dict[str, NDArray[np.float64]]:
    """Return the first states within other bounds, by field, of environments that were just reset.

    Args:
        environment_id: Their id.
        bounds: As `start_bounds` returns them.
        words: Their generators' after the reset, which has drawn as many numbers.
    """
    fields, _ = _STARTS[environment_id]
    rows = np.empty((len(words), len(fields)))
    for row, one in zip(rows, words, strict=True):
        row[:] = np.random.Generator(_bits_of(one).advance(-len(fields))).uniform(*bounds)
    if environment_id == _ACROBOT:
        rows = rows.astype(np.float32).astype(np.float64)
    return dict(zip(fields, rows.T, strict=True))


def _finite(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"reset option {name} must be a finite number, got {value!r}")
    return number

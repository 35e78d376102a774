"""The generators equal NumPy's, and noise is a pure function of its coordinates."""

import math

import numpy as np
import pytest

from penstock import native
from penstock.native import _core

SEEDS = [0, 1, 42, 2**31, 2**32 - 1, 2**32, 2**63 + 12345, 2**64 - 1]


@pytest.mark.parametrize("seed", SEEDS)
def test_seed_sequence_equals_numpy(seed: int):
    """SeedSequence(seed).generate_state(8, uint64), word for word."""
    expected = np.random.SeedSequence(seed).generate_state(8, np.uint64)

    assert _core.seed_sequence(seed) == expected.tolist()


def both(seed: int) -> tuple[_core.Rng, np.random.Generator]:
    return _core.Rng(seed), np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))


def same_state(ours: _core.Rng, numpys: np.random.Generator) -> bool:
    """Return whether the next draw of any kind is the same: also the half of a word that NumPy keeps for later."""
    state = numpys.bit_generator.state
    high_state, low_state, high_increment, low_increment, half = ours.words()
    kept = state["has_uint32"] << 32 | (state["uinteger"] if state["has_uint32"] else 0)
    whole = {"state": high_state << 64 | low_state, "inc": high_increment << 64 | low_increment}
    return (whole, half) == (state["state"], kept)


@pytest.mark.parametrize("seed", SEEDS)
def test_generator_equals_numpy(seed: int):
    """PCG64's state after seeding, its words, random() and uniform() for many draws and after them."""
    ours, numpys = both(seed)

    assert same_state(ours, numpys)
    assert [ours.next() for _ in range(200)] == numpys.bit_generator.random_raw(200).tolist()
    assert [ours.random() for _ in range(200)] == numpys.random(200).tolist()
    assert [ours.uniform(-0.05, 0.05) for _ in range(200)] == numpys.uniform(-0.05, 0.05, 200).tolist()
    assert [ours.uniform(-math.pi, 1e9) for _ in range(200)] == numpys.uniform(-math.pi, 1e9, 200).tolist()
    assert same_state(ours, numpys)


RANGES = [
    (0, 1),
    (-1, 1),
    (1, 31),
    (0, 2**31),
    (-(2**31), 2**31 - 1),
    (0, 2**32 - 1),
    (-5, 2**32 - 5),
    (0, 2**32 + 1),
    (0, 3 * 2**30),
    (0, 3 * 2**61),
    (-3, 2**63 - 1),
    (-(2**63), 2**63 - 1),
]


@pytest.mark.parametrize(("low", "high"), RANGES)
def test_integers_equal_numpy(low: int, high: int):
    """Generator.integers in 32 and in 64 bits, redrawn often and never, one by one and as arrays."""
    for seed in SEEDS:
        ours, numpys = both(seed)
        assert [ours.integers(low, high) for _ in range(101)] == [numpys.integers(low, high) for _ in range(101)]
        assert [ours.integers(low, high) for _ in range(100)] == numpys.integers(low, high, 100).tolist()
        assert same_state(ours, numpys)


@pytest.mark.parametrize(("low", "high"), [(0, 0), (3, -3)])
def test_integers_refuse_an_empty_range(low: int, high: int):
    """As NumPy does, instead of a number out of nowhere."""
    with pytest.raises(ValueError, match=f"low is {low} and high {high}, expected low < high"):
        _core.Rng(0).integers(low, high)


@pytest.mark.parametrize("seed", SEEDS)
def test_normal_numbers_equal_numpy(seed: int):
    """Enough draws for every strip of the ziggurat, its wedges and its tail on both sides; and the state after them."""
    ours, numpys = both(seed)

    drawn = np.array([ours.standard_normal() for _ in range(150_000)])

    assert np.array_equal(drawn, numpys.standard_normal(150_000))
    assert drawn.min() < -3.7
    assert drawn.max() > 3.7
    assert [ours.normal(-3.0, 0.1) for _ in range(200)] == numpys.normal(-3.0, 0.1, 200).tolist()
    assert same_state(ours, numpys)


@pytest.mark.parametrize("seed", range(40))
def test_mixed_draws_equal_numpy(seed: int):
    """Any mixture of draws: the kept half of a word outlives draws of 64 bits, in any order."""
    ours, numpys = both(seed)
    kinds = np.random.default_rng(1000 + seed).integers(0, 5, 300)

    for kind in kinds:
        low, high = RANGES[seed % len(RANGES)]
        name, arguments = [
            ("integers", (0, 6)),
            ("integers", (low, high)),
            ("uniform", (-1.0, 2.0)),
            ("standard_normal", ()),
            ("random", ()),
        ][kind]
        assert getattr(ours, name)(*arguments) == getattr(numpys, name)(*arguments)
        assert same_state(ours, numpys)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_gives_the_published_answers(counter: list[int], key: list[int], expected: list[int]):
    """The known answers of Random123's own test vectors for philox4x32-10."""
    assert _core.philox(counter, key) == expected


def noise(
    kind: str,
    env_ids: list[int],
    *,
    steps: int = 4,
    shape: tuple[int, ...] = (),
    seed: int = 9,
    purpose: int = 1,
    at: int = 3,
) -> np.ndarray:
    out = np.full((steps, len(env_ids), *shape), np.nan, np.float32)
    native.fill_noise(kind, seed, purpose, np.array(env_ids, np.int64), at, out)
    return out


KINDS = ["uniform", "normal", "gumbel"]


def words_of(env_id: int, step: int, column: int) -> list[float]:
    """Return the numbers in (0, 1) of a block of `noise` with its defaults."""
    key = _core.philox([9, 0, 1, 0x70656E73], [0x746F636B, 0x6E6F6973])[:2]
    return [(word + 0.5) * 2.0**-32 for word in _core.philox([column, step, 3, env_id], key)]


def expected_noise(kind: str, unit: list[float]) -> list[float]:
    """Compute a block by the C library's functions, which Python calls."""
    if kind == "gumbel":
        return [-math.log(-math.log(each)) for each in unit]
    radii = [math.sqrt(-2.0 * math.log(each)) for each in unit[::2]]
    angles = [2.0 * math.pi * each for each in unit[1::2]]
    return [
        radius * function(angle)
        for radius, angle in zip(radii, angles, strict=True)
        for function in (math.cos, math.sin)
    ]


@pytest.mark.parametrize("width", [1, 2, 3, 6])
@pytest.mark.parametrize("kind", ["normal", "gumbel"])
def test_noise_has_the_bits_of_the_c_library(kind: str, width: int):
    """Values of many counters at once are those that a loop computes, also where the last group is not full."""
    env_ids = [0, 5, *range(100, 171)]

    found = noise(kind, env_ids, steps=7, shape=(width,))

    for step in range(7):
        for place, env_id in enumerate(env_ids):
            blocks = [expected_noise(kind, words_of(env_id, step, column)) for column in range((width + 3) // 4)]
            assert found[step, place].tolist() == np.concatenate(blocks).astype(np.float32)[:width].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_noise_does_not_depend_on_the_batch(kind: str):
    """An environment's values do not depend on the rest of the batch or its order.

    The number of steps and columns that are asked for does not matter either.
    """
    whole = noise(kind, list(range(10)), steps=6, shape=(2, 3))

    assert np.isfinite(whole).all()
    assert np.array_equal(whole, noise(kind, list(range(10)), steps=6, shape=(2, 3)))
    assert np.array_equal(whole[:, [7, 2, 5]], noise(kind, [7, 2, 5], steps=6, shape=(2, 3)))
    assert np.array_equal(whole[:2, 4:5], noise(kind, [4], steps=2, shape=(2, 3)))
    assert np.array_equal(whole.reshape(6, 10, 6)[..., :5], noise(kind, list(range(10)), steps=6, shape=(5,)))
    assert np.array_equal(whole[..., 0, 0], noise(kind, list(range(10)), steps=6))


@pytest.mark.parametrize("kind", KINDS)
def test_noise_depends_on_every_coordinate(kind: str):
    """Another seed, purpose, round, environment, step or column gives other values; high bits count too."""
    variants = [
        noise(kind, [0, 1], shape=(2,)),
        noise(kind, [2, 3], shape=(2,)),
        noise(kind, [2**32 - 1, 2**31], shape=(2,)),
        noise(kind, [0, 1], shape=(2,), seed=10),
        noise(kind, [0, 1], shape=(2,), seed=9 + 2**32),
        noise(kind, [0, 1], shape=(2,), purpose=2),
        noise(kind, [0, 1], shape=(2,), at=4),
    ]

    values = np.concatenate([variant.ravel() for variant in variants])

    assert len(np.unique(values)) == len(values) == 7 * 16


@pytest.mark.parametrize(
    ("kind", "mean", "variance"),
    [("uniform", 0.5, 1 / 12), ("normal", 0.0, 1.0), ("gumbel", 0.5772157, math.pi**2 / 6)],
)
def test_noise_has_its_distribution(kind: str, mean: float, variance: float):
    """Mean and variance of 200,000 values within five standard errors, over scalars and over columns."""
    for values in (noise(kind, list(range(1000)), steps=200), noise(kind, list(range(100)), steps=200, shape=(10,))):
        assert abs(values.mean(dtype=np.float64) - mean) < 5 * math.sqrt(variance / values.size)
        assert values.var(dtype=np.float64) == pytest.approx(variance, rel=0.03)
        flat = values.reshape(200, -1).astype(np.float64)
        assert abs(np.corrcoef(flat[:-1].ravel(), flat[1:].ravel())[0, 1]) < 0.02
        assert abs(np.corrcoef(flat[:, :-1].ravel(), flat[:, 1:].ravel())[0, 1]) < 0.02


def test_uniform_noise_is_in_the_open_unit_interval():
    """Neither 0 nor 1 occurs, so logarithms of u and of 1 - u are finite; all is exact in float32."""
    values = noise("uniform", list(range(2000)), steps=500)

    assert 0 < values.min() < 1e-5
    assert 1 - 1e-5 < values.max() < 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kind": "cauchy"}, "'uniform', 'normal' or 'gumbel'"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**64}, "seed is 18446744073709551616"),
        ({"purpose": 2**32}, "purpose is 4294967296"),
        ({"round": -5}, "round is -5"),
        ({"env_ids": np.array([0, -2])}, r"env_ids\[1\] is -2"),
        ({"env_ids": np.array([0, 2**32])}, r"env_ids\[1\] is 4294967296"),
        ({"env_ids": np.array([0, 1], np.int32)}, "env_ids: expected a C-contiguous int64"),
        ({"env_ids": np.array([0, 1, 2])}, r"env_ids must be \[B\] and out \[T, B"),
        ({"out": np.zeros((4, 2))}, "out: expected a writable C-contiguous float32"),
        ({"out": np.zeros((2, 4), np.float32).T}, "not C-contiguous"),
        ({"out": np.broadcast_to(np.float32(0), (4, 2))}, "read-only"),
    ],
)
def test_noise_refuses_impossible_arguments(changed: dict, message: str):
    """A wrong argument is named, with what was found and what is expected."""
    arguments = {
        "kind": "normal",
        "seed": 1,
        "purpose": 1,
        "env_ids": np.array([0, 1]),
        "round": 0,
        "out": np.zeros((4, 2), np.float32),
    }

    with pytest.raises(ValueError, match=message):
        native.fill_noise(**(arguments | changed))

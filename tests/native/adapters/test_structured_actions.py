"""Structured actions as vectors: every space that is accepted keeps its actions, and vectors become actions of it."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, Space, Text, Tuple
from gymnasium.vector.utils import batch_space, iterate

from penstock import native
from penstock.native.adapters.structured_actions import (
    ActionVectors,
    StructuredActions,
    UnsupportedActionError,
    own_action,
    stored_action,
)

from ...support.environments.structured_environments import SPACES, environment_id
from ...support.slow import slow_after

INFINITE = np.inf
ALL: dict[str, Space[Any]] = {
    **SPACES,
    "grid of choices": MultiDiscrete([[3, 2], [4, 7]], start=[[1, -2], [0, 5]]),
    "small choices": MultiDiscrete([3, 9], dtype=np.int32),
    "bits": MultiBinary(5),
    "one integer": Box(-5, 5, (), np.int32),
    "integers without bounds": Box(-INFINITE, INFINITE, (2,), np.int64),
    "integers of wide bounds": Box(-(2**40), 2**40, (2,), np.int64),
    "as many integers as are scaled": Box(0, 2**24, (2,), np.uint32),
    "half-bounded numbers": Dict(x=Box(0.0, INFINITE, (3,), np.float32)),
    "numbers of a narrow and a wide bound": Tuple([Box(np.float32([0, 0]), np.float32([1, 1e30]))]),
    "one number": Tuple([Box(-1.0, 3.0, (), np.float64), Discrete(2, start=7)]),
    "deep": Dict(b=Tuple([Dict(z=Discrete(3), a=MultiBinary((1, 2)))]), a=Box(0, 1, (1, 2), np.int8)),
}


def same(left: Any, right: Any) -> bool:
    """Return whether two actions are the same: whole numbers exactly, others up to float32's rounding."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    left, right = np.asarray(left), np.asarray(right)
    rounded = left.dtype.kind == "f" or np.abs(left.astype(np.float64)).max() > 2**24
    return np.allclose(left, right, rtol=1e-6, atol=1e-5) if rounded else np.array_equal(left, right)


@pytest.mark.parametrize("name", ALL)
def test_an_action_is_the_same_after_a_vector(name: str):
    """An action that a space draws becomes a valid vector, and that the same action in the space again."""
    space = ALL[name]
    vectors = ActionVectors(space)
    space.seed(3)
    for _ in range(100):
        action = space.sample()
        vector = vectors.encode(action)
        assert vector.dtype == np.float32
        assert vector.shape == (vectors.count,) == vectors.format["shape"]
        vectors.check(vector[None])
        again = vectors.decode(vector)
        assert space.contains(again)
        assert same(action, again)
        assert same(own_action(space, stored_action(space, action)), action)


@pytest.mark.parametrize("name", ALL)
def test_any_numbers_become_an_action_within_bounds(name: str):
    """A policy's numbers may be anywhere: the environment gets whole numbers and bounds as its space has them."""
    space = ALL[name]
    vectors, generator = ActionVectors(space), np.random.default_rng(1)
    sizes = [size for leaf in vectors.format["leaves"] for size in leaf.get("sizes", [0] * int(np.prod(leaf["shape"])))]
    for spread in (0.5, 1.0, 1e3, 1e30):
        numbers = generator.normal(0.0, spread, (50, vectors.count))
        vector = np.where(sizes, generator.integers(0, np.maximum(sizes, 1), numbers.shape), numbers).astype(np.float32)
        vectors.check(vector)
        assert all(space.contains(vectors.decode(row)) for row in vector)


@pytest.mark.parametrize("name", ALL)
def test_a_batch_is_as_gymnasiums_vectors_take_it(name: str):
    """Vectors of several environments become what their batched space contains, one action an environment."""
    space = ALL[name]
    batched, vectors = batch_space(space, 4), ActionVectors(space)
    batched.seed(5)
    for _ in range(20):
        drawn = vectors.encode(batched.sample())
        assert drawn.shape == (4, vectors.count)
        decoded = vectors.decode(drawn)
        assert batched.contains(decoded)
        for row, one in zip(drawn, iterate(batched, decoded), strict=True):
            assert same(vectors.decode(row), one)


@pytest.mark.parametrize("name", ALL)
def test_the_space_of_vectors_draws_actions(name: str):
    """Random play through a pool's space: reproducible, within it, and of valid choices."""
    actions = StructuredActions(ALL[name], 3)
    actions.space.seed(7)
    drawn = [actions.space.sample() for _ in range(20)]
    for each in drawn:
        assert actions.space.contains(each)
        actions.for_round(each)
    actions.space.seed(7)
    assert np.array_equal(actions.space.sample(), drawn[0])
    assert actions.single_space.contains(drawn[0][0])


def test_leaves_are_described_in_their_order():
    """By name within a Dict. Names, choices, bounds, and whether numbers are scaled: what a reader of shards needs."""
    leaves = ActionVectors(SPACES["Hybrid"]).format["leaves"]
    assert leaves == [
        {
            "name": "arm/0",
            "kind": "box",
            "dtype": "float64",
            "shape": (2,),
            "low": [-4.0, -4.0],
            "high": [6.0, 6.0],
            "scaled": True,
        },
        {"name": "arm/1", "kind": "discrete", "dtype": "int8", "shape": (2,), "sizes": [2, 2], "start": [0, 0]},
        {"name": "gear", "kind": "discrete", "dtype": "int64", "shape": (), "sizes": [3], "start": [2]},
    ]
    assert not ActionVectors(ALL["integers without bounds"]).format["leaves"][0]["scaled"]


def test_numbers_are_scaled_rounded_and_clipped():
    """-1 is the lower bound and 1 the upper one; integers are the nearest; beyond the bounds lie the bounds."""
    decode = ActionVectors(Box(0, 200, (5,), np.uint8)).decode
    assert decode(np.float32([-1.0, 1.0, 0.004, -3.0, 7.0])).tolist() == [0, 200, 100, 0, 200]
    decode = ActionVectors(Dict(x=Box(-INFINITE, 2.0, (3,), np.float64))).decode
    assert decode(np.float32([-70.0, 1.5, 9.0]))["x"].tolist() == [-70.0, 1.5, 2.0]
    decode = ActionVectors(Box(-INFINITE, INFINITE, (2,), np.int64)).decode
    assert decode(np.float32([3.4, -1e30])).tolist() == [3, -(2**53)]


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (Text(3), "the action is Text"),
        (Dict(a=Tuple([Discrete(2), Graph(Box(0, 1, (1,)), None)])), "'a/1' is Graph"),
        (Dict(a=Discrete(2**24 + 1)), "'a' has 16,777,217 choices, expected at most 16,777,216"),
        (Tuple([]), "has no number"),
    ],
)
def test_what_no_vector_can_hold_is_refused_by_name(space: Space[Any], said: str):
    """The message names the part and the limit."""
    with pytest.raises(UnsupportedActionError, match=said):
        ActionVectors(space)


@pytest.mark.parametrize(
    ("vector", "said"),
    [
        ([0, 0, 0, 0, 1.5], r"environment 1: 'gear' \(number 4 of the vector\) is 1.5, expected a whole number from 0"),
        ([0, 0, 0, 0, 3.0], "is 3.0, expected a whole number from 0 to 2"),
        ([0, np.nan, 0, 0, 0], r"'arm/0' \(number 1 of the vector\) is nan, expected a finite number"),
        ([0, 0, 0, -1.0, 0], "'arm/1'.*is -1.0, expected a whole number from 0 to 1"),
    ],
)
def test_a_wrong_vector_is_refused_by_name(vector: list[float], said: str):
    """The message names the environment, the part, the value and what would be right; nothing is stepped."""
    pool = native.make(environment_id("Hybrid"), 2, one_action=True)
    pool.reset(seed=0)
    with pytest.raises(ValueError, match=said):
        pool.step(np.array([[0.0] * 5, vector], np.float32))


def filled(pool: native.EnvironmentPool, actions: np.ndarray) -> dict[str, np.ndarray]:
    """Return everything of one round of these actions."""
    shape = actions.shape[:2]
    observation, reward = np.zeros((*shape, 2), np.float32), np.zeros(shape, np.float32)
    flags = [np.zeros(shape, dtype) for dtype in (np.uint8, np.uint8, np.int32)]
    pool.begin_round(observation, reward, *flags)
    for t, action in enumerate(actions):
        pool.step_round(t, action)
    pool.end_round()
    return {"observation": observation, "reward": reward, "episode_id": flags[2]}


@pytest.mark.parametrize("mode", slow_after(1, ["sync", "async"]))
@pytest.mark.parametrize("kind", SPACES)
def test_rounds_step_the_environments_own_actions(kind: str, mode: str):
    """A round of vectors gives what each environment gives for the actions that the vectors stand for."""
    space = SPACES[kind]
    pool = native.make(environment_id(kind), 2, one_action=True, vectorization_mode=mode)
    assert pool.own_action_space == space
    assert pool.environment["action"]["kind"] == "structured"
    pool.action_space.seed(1)
    actions = np.stack([pool.action_space.sample() for _ in range(20)])
    pool.reset_ids(np.array([3, 4], np.uint64))
    found = filled(pool, actions)
    pool.close()
    for index, seed in enumerate((3, 4)):
        alone = gymnasium.make(environment_id(kind))
        alone.reset(seed=seed)
        expected = []
        for action in actions[:, index]:
            _, reward, _, truncated, _ = alone.step(own_action(space, action))
            expected.append(reward)
            if truncated:
                alone.reset()
        np.testing.assert_allclose(found["reward"][:, index], expected, rtol=1e-6)


@pytest.mark.parametrize("kind", ["Hybrid", "Integers"])
def test_a_saved_state_continues_bit_for_bit(kind: str):
    """Seeds and vectors repeat the episodes: what a killed run's act task relies on."""
    pool, other = (native.make(environment_id(kind), 2, one_action=True) for _ in range(2))
    pool.action_space.seed(1)
    actions = np.stack([pool.action_space.sample() for _ in range(40)])
    pool.reset_ids(np.array([3, 4], np.uint64))
    filled(pool, actions[:13])
    other.restore(pool.save())
    expected, found = filled(pool, actions[13:]), filled(other, actions[13:])
    assert all(np.array_equal(found[name], column) for name, column in expected.items())


def test_without_one_action_the_pool_takes_the_environments_own():
    """The Gymnasium API is unchanged, and a round names the argument that helps."""
    pool = native.make(environment_id("Hybrid"), 2)
    assert pool.single_action_space == SPACES["Hybrid"] == pool.own_action_space
    pool.reset(seed=0)
    pool.action_space.seed(0)
    pool.step(pool.action_space.sample())
    with pytest.raises(ValueError, match=r"has the action space Dict.*one_action=True"):
        _ = pool.environment


def test_a_choice_counts_from_zero_with_one_action():
    """A Discrete that starts elsewhere takes the same numbers in steps as in rounds, so evaluations can step it."""

    class Late(gymnasium.Env[Any, Any]):
        observation_space, action_space = Box(0.0, 9.0, (1,)), Discrete(3, start=5)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            super().reset(seed=seed)
            return np.zeros(1, np.float32), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            assert self.action_space.contains(action)
            return np.float32([action]), float(action), False, False, {}

    gymnasium.register("test/Late-v0", Late)
    try:
        pool = native.make("test/Late-v0", 2, one_action=True)
        assert pool.single_action_space == Discrete(3)
        assert pool.own_action_space == Discrete(3, start=5)
        pool.reset(seed=0)
        assert pool.step(np.array([0, 2]))[1].tolist() == [5.0, 7.0]
        with pytest.raises(ValueError, match="expected 0 to 2"):
            pool.step(np.array([5, 5]))
    finally:
        del gymnasium.registry["test/Late-v0"]

"""The leaves of a structured observation are described, and the array holds each exactly."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Sequence, Text, Tuple
from gymnasium.spaces.utils import flatten

from penstock import native
from penstock.native.adapters.one_array import OneArray, as_one_array, encoding, observation_format

from ...support.environments.structured import ID, Explorer


def leaf(name: str, kind: str, dtype: str, shape: tuple[int, ...] = (), sizes: tuple[int, ...] = ()) -> dict[str, Any]:
    return {"name": name, "kind": kind, "dtype": dtype, "shape": shape, "sizes": sizes}


LEAVES = (
    leaf("arm.position", "numbers", "float32", (2,)),
    leaf("camera", "image", "uint8", (9, 9, 3)),
    leaf("goal.0", "choice", "int64", (2,), (2, 3)),
    leaf("goal.1.0", "bits", "int8", (4,)),
    leaf("goal.1.1", "numbers", "int32"),
    leaf("shift", "choice", "int64", (), (3,)),
)


class Showing(gymnasium.Env[Any, Any]):
    """Has any observation space."""

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        self.observation_space, self.action_space = space, Discrete(2)


def described(space: gymnasium.Space[Any]) -> Any:
    return observation_format(as_one_array(Showing(space), structured=True).observation_space)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_leaves_are_described_in_the_arrays_order(mode: str):
    """Name, kind, own type and shape of each, and the array is what Gymnasium's flatten gives, in float32."""
    pool = native.make(ID, 1, one_array=True, structured=True, vectorization_mode=mode)
    observation = pool.environment["observation"]
    width = 2 + 9 * 9 * 3 + 5 + 4 + 1 + 3
    assert observation == {"dtype": "float32", "shape": (width,), "leaves": LEAVES}
    theirs = Explorer()
    expected, found = theirs.reset(seed=3)[0], pool.reset(seed=3)[0][0]
    for action in (0, 1, 2):
        flat = flatten(theirs.observation_space, expected)
        assert found.dtype == np.float32
        assert np.array_equal(found, flat)
        expected, found = theirs.step(action)[0], pool.step(np.array([action]))[0][0]
    pool.close()


def test_without_the_option_the_array_is_as_before():
    """The type is Gymnasium's, and nothing is described: runs from before go on with the same bytes."""
    assert native.make(ID, 1, one_array=True).environment["observation"] == {"dtype": "float64", "shape": (258,)}


def test_numbers_that_float32_does_not_hold_make_the_array_float64():
    """Float64 leaves keep every digit; whole numbers beyond 2**53 have no exact type, so they are stored as floats."""
    precise = native.make(ID, 1, one_array=True, structured=True, precise=True).environment["observation"]
    assert precise["dtype"] == "float64"
    assert precise["leaves"][0] == leaf("arm.position", "numbers", "float64", (2,))
    counts = Dict({"few": Box(0, 1 << 20, (2,), np.int64), "more": Box(0, 1 << 40, (1,), np.int64)})
    found = described(counts)
    assert found["dtype"] == "float64"
    assert [each["dtype"] for each in found["leaves"]] == ["int64", "int64"]
    unbounded = described(Dict({"all": Box(-(1 << 63), (1 << 63) - 1, (1,), np.int64)}))
    assert unbounded["leaves"] == (leaf("all", "numbers", "float64", (1,)),)


def test_choices_that_begin_elsewhere_have_the_bounds_of_what_is_seen():
    """A space that excludes its own observations would fail every check of it."""
    space = MultiDiscrete([2, 3], start=[5, -7])
    _, array = encoding(space, structured=False)
    assert (array.low.tolist(), array.high.tolist()) == ([5, -7], [6, -5])
    space.seed(1)
    assert all(array.contains(space.sample()) for _ in range(20))


def test_images_are_bytes_up_to_255_in_two_or_three_dimensions():
    """Grids of fewer values, vectors of bytes and what has no three rows are numbers."""
    spaces = {
        "first": Box(0, 255, (4, 20, 20), np.uint8),
        "grey": Box(0, 255, (20, 20), np.uint8),
        "cells": Box(0, 1, (6, 7, 2), np.uint8),
        "memory": Box(0, 255, (128,), np.uint8),
        "narrow": Box(0, 255, (20, 2, 1), np.uint8),
        "floats": Box(0, 1, (20, 20, 3), np.float32),
    }
    kinds = {each["name"]: each["kind"] for each in described(Dict(spaces))["leaves"]}
    assert {name for name, kind in kinds.items() if kind == "image"} == {"first", "grey"}
    assert set(kinds.values()) == {"image", "numbers"}


def test_a_choice_alone_and_text_have_leaves_of_their_own():
    """An observation that is a single choice is the leaf `value`; text is its characters' numbers."""
    assert described(Discrete(5))["leaves"] == (leaf("value", "choice", "int64", (), (5,)),)
    assert described(Dict({"said": Text(3)}))["leaves"] == (leaf("said", "numbers", "int32", (3,)),)


def test_the_array_names_its_texts():
    """By their leaves, described or not, and behind a mask: so that a run can refuse what no network reads."""
    space = Dict({"x": Box(0, 1, (2,)), "said": Tuple([Text(3), Discrete(2)]), "action_mask": MultiBinary(2)})
    for options in ({}, {"structured": True}, {"action_mask": "observation"}, {"action_mask": "info"}):
        seen = as_one_array(Showing(space), **options).observation_space
        assert isinstance(seen, OneArray)
        assert seen.texts == ("said.0",)


def test_what_has_no_leaves_stays_as_it_is():
    """One array needs no description, and what varies in length can't have one."""
    for space in (Box(0, 1, (3,)), Dict({"items": Sequence(Discrete(3)), "x": Box(0, 1, (1,))})):
        env = Showing(space)
        assert as_one_array(env, structured=True) is env


def test_two_leaves_of_one_name_are_refused():
    """A key with a dot can look like a nested one."""
    space = Dict({"a.b": Discrete(2), "a": Dict({"b": Discrete(3)})})
    with pytest.raises(ValueError, match=r"two leaves called 'a\.b'.*rename a key"):
        as_one_array(Showing(space), structured=True)


@pytest.mark.parametrize(
    ("env_id", "arguments", "message"),
    [
        ("CartPole-v1", {"one_array": True}, "CartPole-v1 observes one array as it is, .*; leave it out$"),
        (
            "dmc/walker-walk",
            {"one_array": True},
            "or choose 'envpool/WalkerWalk-v1' or 'dm_control/walker-walk', the",
        ),
        ("MiniGrid-Empty-5x5-v0", {"one_array": True}, "or choose 'minigrid/MiniGrid-Empty-5x5-v0', the same"),
        ("toy/Blackjack-v1", {"one_array": True}, "or choose 'Blackjack-v1', the same environment stepped by another"),
        ("toy/MaskedTaxi-v4", {"one_array": True}, "; leave it out$"),
        (ID, {}, "expected one_array = True; set that too"),
    ],
)
def test_structure_is_refused_where_there_is_none(env_id: str, arguments: dict[str, Any], message: str):
    """An option without an effect is a mistake."""
    with pytest.raises(ValueError, match=message):
        native.make(env_id, 1, structured=True, **arguments)


def test_a_leaf_of_varying_size_is_named():
    """The refusal says which part of a large space is meant, and what to wrap it with."""
    gymnasium.register("test/Bag-v0", lambda: Showing(Dict({"bag": Dict({"items": Sequence(Discrete(3))})})))
    pool = native.make("test/Bag-v0", 1, one_array=True, structured=True)
    said = r"its leaf 'bag\.items' is Sequence\(Discrete\(3\).*no fixed size.*encodes it as a Box, with .*TransformObs"
    with pytest.raises(ValueError, match=said):
        _ = pool.environment
    del gymnasium.registry["test/Bag-v0"]

"""Spaces: draws stay inside, follow from their keys, and mistakes are refused with what was expected."""

import pytest
from pydantic import ValidationError

from penstock.flows.sweeps.space import Range, draw, perturb, resolved_space
from penstock.storage.errors import ConfigError

SPACE = resolved_space(
    {
        "learning_rate": Range(low=0.001, high=0.1, log=True),
        "epochs": Range(low=1, high=4),
        "algorithm.hidden": [[8], [16]],
    }
)


def test_draws_are_inside_and_follow_from_their_keys():
    """Each range is reached at both ends within a few hundred draws, and the same key gives the same values."""
    drawn = [draw(SPACE, 1, number, 0) for number in range(300)]
    assert drawn == [draw(SPACE, 1, number, 0) for number in range(300)]
    assert drawn[:3] != [draw(SPACE, 2, number, 0) for number in range(3)]
    rates = sorted(values["algorithm.learning_rate"] for values in drawn)
    assert 0.001 <= rates[0] < 0.0011
    assert 0.008 < rates[150] < 0.0125
    assert 0.09 < rates[-1] <= 0.1
    assert {values["algorithm.epochs"] for values in drawn} == {1, 2, 3, 4}
    assert {tuple(values["algorithm.hidden"]) for values in drawn} == {(8,), (16,)}


def test_changes_are_small_and_inside():
    """A value is multiplied, moved to a neighbour, or drawn anew, and stays in its range."""
    space = {"rate": Range(low=0.1, high=1.0), "weight": [0.0, 0.1, 0.2]}
    changed = [perturb(space, {"rate": 0.5, "weight": 0.1}, 1, number) for number in range(200)]
    assert {0.4, 0.625} < {values["rate"] for values in changed}
    assert all(0.1 <= values["rate"] <= 1.0 for values in changed)
    assert {values["weight"] for values in changed} == {0.0, 0.1, 0.2}
    assert 20 < sum(values["rate"] not in {0.4, 0.625} for values in changed) < 80


@pytest.mark.parametrize(
    ("given", "mentioned"),
    [
        ({"low": 1.0, "high": 1.0}, "low < high"),
        ({"low": 0.0, "high": 1.0, "log": True}, "above 0"),
        ({"low": 0.1, "high": 1.0, "steps": 3}, "steps"),
        ({"low": 0.1, "high": float("inf")}, "finite"),
    ],
)
def test_an_invalid_range_is_refused(given, mentioned):
    """Also with names that a range does not have."""
    with pytest.raises(ValidationError, match=mentioned):
        Range.model_validate(given)


@pytest.mark.parametrize(
    ("space", "mentioned"),
    [
        ({}, "empty"),
        ({"learning_rate": []}, "no values"),
        ({"learning_rats": [1]}, "learning_rate"),
        ({"learning_rate": [1], "algorithm.learning_rate": [1]}, "more than once"),
        ({"store": ["a"]}, "can't be varied"),
    ],
)
def test_an_invalid_space_is_refused(space, mentioned):
    """The message names the setting."""
    with pytest.raises(ConfigError, match=mentioned):
        resolved_space(space)

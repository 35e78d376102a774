"""Errors of a user's own code name their place, and no place inside installed packages."""

from __future__ import annotations

import json

import pytest

from penstock.storage.error_places import describe_error
from penstock.tasks.driver.failures import explain


def failing() -> None:
    json.loads("{")


def test_the_place_is_the_last_line_of_the_users_own():
    """If a library has raised it, that is the line that called the library."""
    with pytest.raises(ValueError, match="Expecting") as caught:
        failing()
    line = failing.__code__.co_firstlineno + 1
    assert describe_error(caught.value).startswith("JSONDecodeError: Expecting")
    assert describe_error(caught.value).endswith(f" (test_error_places.py, line {line})")
    assert describe_error(KeyError("action")) == "KeyError: 'action'"


def test_a_members_failure_says_what_to_do():
    """The run is kept, and the checks of algorithms and environments say more."""
    with pytest.raises(ValueError, match="Expecting") as caught:
        failing()
    said = str(explain(caught.value))
    assert "(test_error_places.py, line" in said
    assert "penstock check-algorithm" in said
    assert "resume the run" in said

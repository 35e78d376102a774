"""Whatever is in a store, a decoder returns a value that means something, or raises an error that it documents."""

from __future__ import annotations

from random import Random

import pytest

from .targets import TARGETS

CHANGED_INPUTS = 200
FOUND = [(target, path) for target in TARGETS.values() for path in target.found()]
all_targets = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)


@all_targets
def test_intact_inputs_are_accepted(target):
    """Inputs that a search starts from are accepted, and keep their meaning when they are encoded again."""
    assert target.seeds
    assert all(target.run(data) for data in target.seeds)


@pytest.mark.parametrize(("target", "path"), FOUND, ids=[f"{target.name}-{path.name}" for target, path in FOUND])
def test_what_a_search_has_found_stays_mended(target, path):
    """An input that once crashed a decoder, was mistaken or never ended is refused, or means what it says."""
    target.run(path.read_bytes())


@all_targets
def test_changed_inputs_mean_something_or_are_refused(target):
    """Some inputs that are changed at random, by the mutator of a search; the search itself takes minutes."""
    for number in range(CHANGED_INPUTS):
        random = Random(f"{target.name}/{number}")
        data = random.choice(target.seeds)
        for _ in range(random.choice((1, 1, 2, 4))):
            data = target.mutate(data, random)
        target.run(data)

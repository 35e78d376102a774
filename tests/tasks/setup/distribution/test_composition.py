"""A member's components follow from its role's fragments; fragments that can't share a process are refused."""

from itertools import chain, combinations

import pytest

from penstock.tasks.setup.distribution.dataflow import Composition, compose
from penstock.tasks.setup.distribution.settings import FRAGMENTS

EXPECTED = {
    ("env",): Composition(("env",), None),
    ("env", "act", "collect"): Composition(("act",), "local"),
    ("act", "collect"): Composition(("act",), "remote"),
    ("buffer", "learn", "sync"): Composition(("learn",), None),
    ("buffer", "learn"): Composition(("learn",), None),
    ("sync",): Composition(("server",), None),
    FRAGMENTS: Composition(("act", "learn"), "local"),
    ("env", "act", "collect", "buffer", "learn"): Composition(("act", "learn"), "local"),
    ("act", "collect", "buffer", "learn", "sync"): Composition(("act", "learn"), "remote"),
    ("act", "collect", "buffer", "learn"): Composition(("act", "learn"), "remote"),
}


@pytest.mark.parametrize(
    "fragments", list(chain.from_iterable(combinations(FRAGMENTS, count) for count in range(7))), ids="-".join
)
def test_every_combination_has_its_composition_or_none(fragments):
    """All 64 combinations: ten are supported, and no other."""
    assert compose(frozenset(fragments)) == EXPECTED.get(fragments)

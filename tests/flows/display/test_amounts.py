"""Numbers of things in words."""

import pytest

from penstock.flows.display.amounts import amount


@pytest.mark.parametrize(
    ("number", "expected"), [(0, "0 stages"), (1, "1 stage"), (2, "2 stages"), (1200, "1,200 stages")]
)
def test_one_thing_is_singular(number, expected):
    """And no other number is."""
    assert amount(number, "stages") == expected

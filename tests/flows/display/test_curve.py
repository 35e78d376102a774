"""A run's learning curve is drawn whatever its returns are."""

import math

import pytest

from penstock.flows.display.curve import curve_svg


@pytest.mark.parametrize("value", [0.0, -1.5, 1e17, -3e200])
def test_returns_that_do_not_change_have_an_axis(value: float):
    """One added to a large number is that number."""
    drawn = curve_svg("mine", [(1.0, value), (2.0, value)], [(2.0, value)])
    assert drawn.startswith("<svg")
    assert "nan" not in drawn


@pytest.mark.parametrize("value", [0.1, -7.3, 1e17])
def test_returns_that_differ_in_their_last_digit_have_an_axis(value: float):
    """Means of one value that were computed in two ways differ so."""
    drawn = curve_svg("mine", [(1.0, value), (2.0, math.nextafter(value, math.inf))], [])
    assert drawn.startswith("<svg")
    assert "nan" not in drawn

"""The picture of a sweep is well-formed, has a line per run, and shows text as text."""

from xml.etree import ElementTree as ET

from penstock.flows.sweeps.parallel_coordinates import picture_svg

SVG = "{http://www.w3.org/2000/svg}"
ROWS = [
    {"run": "a", "algorithm.learning_rate": 0.001, "algorithm.hidden": [8], "name": "<b>", "return": 10.0},
    {"run": "b", "algorithm.learning_rate": 0.1, "algorithm.hidden": [16], "name": "&", "return": 20.0},
    {"run": "c", "algorithm.learning_rate": 0.01, "algorithm.hidden": None, "name": "x", "return": None},
]
SETTINGS = ["algorithm.learning_rate", "algorithm.hidden", "name"]


def lines(svg):
    found = ET.fromstring(svg).iter(f"{SVG}polyline")
    return {one.find(f"{SVG}title").text.split(",")[0]: one.attrib["points"].split() for one in found}


def test_each_run_is_a_line_across_the_axes():
    """A run without a return ends before the last axis; a wide range is logarithmic, so 0.01 lies in its middle."""
    drawn = lines(picture_svg("Sweep <x>", SETTINGS, ROWS))
    assert {name: len(points) for name, points in drawn.items()} == {"a": 4, "b": 4, "c": 3}
    low, high, middle = (float(drawn[name][0].split(",")[1]) for name in ("a", "b", "c"))
    assert low > high
    assert abs(middle - (low + high) / 2) < 0.2


def test_few_runs_and_equal_values_are_drawn():
    """No runs, one run, and runs that all have the same value and return."""
    assert lines(picture_svg("none", SETTINGS, [])) == {}
    assert len(lines(picture_svg("one", SETTINGS, ROWS[:1]))) == 1
    assert len(lines(picture_svg("same", SETTINGS, [ROWS[0], {**ROWS[0], "run": "d"}]))) == 2

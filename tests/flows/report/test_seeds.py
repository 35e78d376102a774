"""Curves of several runs: seeds get a mean and a band, identical runs are named, and bars do not flatten lines."""

import pytest

from penstock.flows.report.curves import curve_panels
from penstock.flows.report.page import Pictures, render
from penstock.flows.report.seeds import identical_notes, seed_groups
from penstock.tasks.analysis.history import read_history

from ...support.stored.stored_points import small_config, store_run


@pytest.fixture
def histories(tmp_path):
    """Return two seeds, a run that is identical to the first, and one with other settings."""
    made = [("one", 1, [10.0, 20.0]), ("two", 2, [30.0, 60.0, 70.0]), ("again", 1, [10.0, 20.0])]
    runs = [store_run(small_config(tmp_path, seed=seed), name, returns) for name, seed, returns in made]
    other = small_config(tmp_path, algorithm={"hidden": [16], "epochs": 1, "minibatches": 2})
    return [read_history(run) for run in (*runs, store_run(other, "other", [15.0]))]


def test_runs_that_differ_by_seed_alone_get_a_mean_and_a_band(histories):
    """Over the stages that all of them have; each seed counts once."""
    assert [[history.run.name for history in group] for group in seed_groups(histories)] == [["one", "two"]]
    figure = curve_panels(histories)[0].figure
    of_seeds = [trace for trace in figure.data if (trace.meta or {}).get("seeds") and "evaluation" in trace.name]
    assert [list(trace.y) for trace in of_seeds] == [[10.0, 20.0], [30.0, 60.0], [20.0, 40.0]]
    assert all(trace.visible is False for trace in of_seeds)
    assert seed_groups(histories[1:2]) == []


def test_identical_runs_are_named_and_dashed(histories):
    """The first line is solid, so that both colours are seen."""
    (note,) = identical_notes(histories)
    assert note.startswith("again and one are identical in the 2 stages")
    lines = {trace.name: trace.line.dash for trace in curve_panels(histories)[0].figure.data}
    assert lines["one: while acting"] == "solid"
    assert lines["again: while acting"] not in {"solid", "dot", "dash", "dashdot"}
    assert note.split(":")[0] in render(histories, [Pictures(missing="")] * len(histories))


def test_spread_does_not_flatten_the_lines(histories):
    """The axis fits 30 to 70, the means of the run, although its evaluations reach from -370 to 470."""
    low, high = curve_panels(histories[1:2])[0].figure.layout.yaxis.range
    assert 20.0 < low < 30.0
    assert 70.0 < high < 80.0

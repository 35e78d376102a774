"""Successive halving promotes by the evaluations at a rung, and continues after a kill to the same runs."""

import json

import pytest

from penstock.flows.sweeps import halving
from penstock.flows.sweeps.halving import plan_halving, run_halving
from penstock.flows.sweeps.records import SweepRecords
from penstock.flows.sweeps.space import Range
from penstock.storage.errors import ConfigError, PenstockError

from ...support.stored.stored_points import small_config, store_run

SPACE = {"learning_rate": Range(low=0.001, high=0.1, log=True)}


def plan(store, **changed):
    given = {"runs": 4, "reduction": 2, "first_stages": 1, "seed": 1, **changed}
    return plan_halving("halved", SPACE, small_config(store), **given)


def test_the_best_at_each_rung_continue(tmp_path):
    """A rung looks at its own stages, however far a run is; of equal runs the first continues."""
    zero, one, two, three = (point.config for point in plan(tmp_path).points)
    store_run(one, "halved-0001", [30.0, 40.0, 50.0, 60.0])
    store_run(two, "halved-0002", [20.0, 70.0], finished=False)
    store_run(three, "halved-0003", [10.0, 99.0, 99.0, 99.0])
    store_run(zero, "halved-0000", [20.0, 35.0], finished=False)
    records = SweepRecords(str(tmp_path), "halved")
    rows = run_halving(plan(tmp_path), records, 1, lambda rows: None)
    assert json.loads(records.store.read("rungs/00.json")) == {
        "stages": 1,
        "returns": {"halved-0000": 20.0, "halved-0001": 30.0, "halved-0002": 20.0, "halved-0003": 10.0},
        "promoted": ["halved-0000", "halved-0001"],
    }
    assert json.loads(records.store.read("rungs/01.json"))["promoted"] == ["halved-0001"]
    assert [(row["run"], row["rung"]) for row in rows] == [
        ("halved-0001", 2),
        ("halved-0000", 1),
        ("halved-0003", 0),
        ("halved-0002", 0),
    ]
    for lost in ("rungs/00.json", "rungs/01.json"):
        whole = records.store.read(lost)
        records.store.delete([lost])
        assert run_halving(plan(tmp_path), records, 3, lambda rows: None) == rows
        assert records.store.read(lost) == whole


@pytest.mark.parametrize("epochs", [[1, 2, 3], Range(low=1, high=3)])
def test_no_two_runs_have_the_same_settings(tmp_path, epochs):
    """Six runs are the six points of a space, however they are drawn; a seventh is refused."""
    space = {"learning_rate": [0.1, 0.01], "epochs": epochs}
    for seed in range(1, 6):
        given = {"reduction": 2, "first_stages": 1, "seed": seed}
        points = plan_halving("halved", space, small_config(tmp_path), runs=6, **given).points
        assert len({(point.config.algorithm.learning_rate, point.config.algorithm.epochs) for point in points}) == 6
    with pytest.raises(ConfigError, match="runs = 7: the space has 6 points"):
        plan_halving("halved", space, small_config(tmp_path), runs=7, **given)


@pytest.mark.parametrize(
    ("space", "mentioned"),
    [
        ({"evaluate_every_stages": [1, 3]}, "first evaluated after 3 stages"),
        ({"max_stages": [2, 4]}, "schedule.max_stages can't be varied"),
        ({"epochs": [1, "x", 4]}, "epochs = 'x'"),
        ({"epochs": Range(low=1.0, high=4.0)}, "epochs = 1.95493"),
    ],
)
def test_points_that_can_not_be_judged_are_refused(space, mentioned, tmp_path):
    """One that is evaluated after the first rung, that has other rungs, or that no run can have."""
    with pytest.raises(ConfigError, match=mentioned):
        plan_halving("halved", space, small_config(tmp_path), runs=2, reduction=2, first_stages=1, seed=1)


@pytest.mark.parametrize(
    ("changed", "mentioned"),
    [({"first_stages": 4}, "first_stages = 4"), ({"first_stages": 1, "schedule": 2}, "evaluated")],
)
def test_rungs_that_can_not_be_judged_are_refused(changed, mentioned, tmp_path):
    """A rung before the first evaluation, and one after the end."""
    every = changed.pop("schedule", 1)
    config = small_config(tmp_path)
    schedule = config.schedule.model_copy(update={"evaluate_every_stages": every})
    with pytest.raises(ConfigError, match=mentioned):
        plan_halving(
            "halved", SPACE, config.model_copy(update={"schedule": schedule}), runs=4, reduction=2, seed=1, **changed
        )


def diverging(monkeypatch, diverged: set[str]) -> None:
    """Have runs of these names diverge where they would be trained."""

    def train(sweep, points, runs_at_once, show, stages=None):
        return {point.name: "stage 2 diverged: loss is nan" for point in points if point.name in diverged}

    monkeypatch.setattr(halving, "train_points", train)


def store_four(store) -> None:
    points = plan(store).points
    for point, returns in zip(points, ([10.0, 11.0], [30.0, 90.0], [20.0, 21.0, 22.0, 23.0], [5.0]), strict=True):
        store_run(point.config, point.name, returns, finished=len(returns) == 4)


def test_a_run_that_diverged_is_the_worst_however_good_it_was(tmp_path, monkeypatch):
    store_four(tmp_path)
    diverging(monkeypatch, {"halved-0001"})
    rows = run_halving(plan(tmp_path), SweepRecords(str(tmp_path), "halved"), 1, lambda rows: None)
    assert [row["run"] for row in rows] == ["halved-0002", "halved-0000", "halved-0003", "halved-0001"]


def test_a_halving_of_which_all_runs_have_diverged_fails(tmp_path, monkeypatch):
    """In the last rung too: there is none to choose."""
    store_four(tmp_path)
    diverging(monkeypatch, {"halved-0000", "halved-0001", "halved-0002", "halved-0003"})
    with pytest.raises(PenstockError, match=r"all runs have diverged.*halved-0001: stage 2 diverged"):
        run_halving(plan(tmp_path), SweepRecords(str(tmp_path), "halved"), 1, lambda rows: None)

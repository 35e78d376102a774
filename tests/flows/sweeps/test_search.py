"""A search proposes and prunes by committed stages alone, so one that was stopped ends with the same trials."""

import json
import shutil

import pytest

from penstock.flows.sweeps.records import SweepRecords
from penstock.flows.sweeps.search import _point, plan_search, run_search
from penstock.flows.sweeps.space import Range
from penstock.storage.errors import ConfigError

from ...support.stored.stored_points import small_config, store_run

SPACE = {"learning_rate": Range(low=0.001, high=0.1, log=True), "epochs": [1, 2]}
RETURNS = [[10, 20, 30, 40], [11, 21, 31, 41], [12, 22, 32, 42], [13, 5, 50, 60], [5, 90, 90, 90], [14, 24, 34, 44]]


def plan(store, **changed):
    given = {"trials": len(RETURNS), "runs_at_once": 1, "seed": 1, "startup_trials": 2, "warmup_stages": 0}
    return plan_search("tpe", SPACE, small_config(store), **{"pruner": "median", **given, **changed})


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Return a store in which a trial's run is there, with its values, once that is recorded: nothing is trained."""
    keep = SweepRecords.keep

    def kept(self, name, content):
        found = keep(self, name, content)
        kind, _, rest = name.partition("/")
        number = int(rest.removesuffix(".json")) if kind == "trials" else len(RETURNS)
        if number < len(RETURNS) and not (tmp_path / f"tpe-{number:04d}").exists():
            point = _point(plan(tmp_path), number, found["choices"])
            store_run(point.config, point.name, RETURNS[number])
        return found

    monkeypatch.setattr(SweepRecords, "keep", kept)
    return tmp_path


def decisions(store):
    found = store / ".sweeps/tpe"
    return {
        str(path.relative_to(found)): path.read_bytes()
        for kind in ("trials", "pruned")
        for path in (found / kind).glob("*")
    }


@pytest.mark.parametrize(
    "runs_at_once", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)]
)
def test_a_search_that_was_stopped_ends_with_the_same_trials(store, runs_at_once):
    """Whatever it had decided; trials are not repeated, and the best run is the first row."""
    shown = []
    rows = run_search(plan(store, runs_at_once=runs_at_once), SweepRecords(str(store), "tpe"), shown.append)
    whole = decisions(store)
    proposed = [tuple(row[name] for name in ("algorithm.learning_rate", "algorithm.epochs")) for row in rows]
    assert len(set(proposed)) == len(RETURNS)
    assert [row["return"] for row in rows] == sorted((row["return"] for row in rows), reverse=True)
    assert sorted(row["trial"] for row in shown[-1]) == list(range(len(RETURNS)))
    for kept in range(len(whole)):
        for name in sorted(whole, key=lambda name: (name[-9:], name[0] == "p"))[kept:]:
            (store / ".sweeps/tpe" / name).unlink(missing_ok=True)
        assert run_search(plan(store, runs_at_once=runs_at_once), SweepRecords(str(store), "tpe"), shown.append) == rows
        assert decisions(store) == whole


def test_a_run_below_the_median_is_stopped_at_its_first_such_stage(store):
    """Later stages do not count, and the first trials are never stopped."""
    rows = run_search(plan(store), SweepRecords(str(store), "tpe"), lambda rows: None)
    pruned = {row["trial"]: row["pruned at stage"] for row in rows}
    # Its best so far counts: trial 3 falls at stage 1 to less than the median of 20.5.
    assert pruned == {0: None, 1: None, 2: None, 3: 1, 4: 0, 5: None}
    record = json.loads((store / ".sweeps/tpe/pruned/0004.json").read_text())
    assert record == {"stage": 0, "return": 5.0}
    for folder in (store / ".sweeps", *store.glob("tpe-*")):  # whose later trials have other values without a pruner
        shutil.rmtree(folder)
    rows = run_search(plan(store, pruner="none"), SweepRecords(str(store), "tpe"), lambda rows: None)
    assert all(row["pruned at stage"] is None for row in rows)


def test_only_the_number_of_trials_may_change(store):
    """More trials go on; another seed is another search."""
    first = run_search(plan(store, trials=3), SweepRecords(str(store), "tpe"), lambda rows: None)
    rows = run_search(plan(store), SweepRecords(str(store), "tpe"), lambda rows: None)
    named = {row["run"]: row for row in rows}
    assert all(named[row["run"]] == row for row in first)
    with pytest.raises(ConfigError, match="seed was 1, is 2"):
        run_search(plan(store, seed=2), SweepRecords(str(store), "tpe"), lambda rows: None)


@pytest.mark.parametrize(
    ("name", "space", "mentioned"),
    [
        ("Tpe", SPACE, "name a sweep"),
        ("t" * 60, SPACE, "1 to 59"),
        ("tpe", {"learning_rate": Range(low=-1.0, high=0.1)}, "learning_rate"),
        ("tpe", {"learning_rate": Range(low=0.1, high=0.2), "discount": Range(low=0.9, high=1.5)}, "discount"),
        ("tpe", {"epochs": [1, 0]}, "epochs"),
        ("tpe", {"epochs": [1, "x", 4]}, "epochs = 'x'"),
    ],
)
def test_an_invalid_search_is_refused(name, space, mentioned, tmp_path):
    """Before any run starts: both ends of a range are checked, and every value of a list."""
    with pytest.raises(ConfigError, match=mentioned):
        plan_search(
            name,
            space,
            small_config(tmp_path),
            trials=1,
            runs_at_once=1,
            seed=1,
            pruner="none",
            startup_trials=1,
            warmup_stages=0,
        )


def test_settings_that_exclude_each_other_are_drawn_again(tmp_path):
    """A trial is recorded once its run can be made: a record that can't would end every repetition likewise."""
    for number in range(3):
        store_run(small_config(tmp_path), f"tpe-{number:04d}", [1.0 * number] * 4)
    space = {"environment.num_envs": Range(low=8, high=16)}  # of which only multiples of 4 are possible
    drawn = plan_search(
        "tpe",
        space,
        small_config(tmp_path),
        trials=3,
        runs_at_once=1,
        seed=1,
        pruner="none",
        startup_trials=1,
        warmup_stages=0,
    )
    rows = run_search(drawn, SweepRecords(str(tmp_path), "tpe"), lambda rows: None)
    assert sorted(row["environment.num_envs"] for row in rows) == [8, 12, 16]

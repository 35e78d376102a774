"""A report says of a run what it has read of it, and no more."""

import pytest

from penstock.flows.report.facts import differing_settings, facts
from penstock.tasks.analysis import history

from ...support.stored.stored_points import small_config, store_run


def test_the_best_evaluation_of_a_part_is_called_so(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """A long run is read in part, and its best stage may be among the others."""
    run = store_run(small_config(tmp_path), "long", [10.0, 90.0, 20.0, 30.0])
    assert facts(history.read_history(run))["best evaluation"] == "90.0"
    monkeypatch.setattr(history, "_NEWEST_STAGES", 1)
    thinned = facts(history.read_history(run, most_stages=2))
    assert "best evaluation" not in thinned
    (name,) = (name for name in thinned if name.startswith("best evaluation of "))
    assert name.endswith(" stages that were read")
    assert thinned[name] == "30.0"


def test_settings_that_differ_keep_their_names_whatever_the_runs_are_called(tmp_path):
    """A run may be called as the column of the settings was."""
    histories = []
    for name, seed in (("setting", 1), ("other", 2)):
        run = store_run(small_config(tmp_path), name, [1.0])
        description = run.load()
        run.store.delete(["run.json"])
        run.create({**description, "config": {**description["config"], "seed": seed}})
        histories.append(history.read_history(run))
    rows = [row for row in differing_settings(histories) if "seed" in row.values()]
    assert [(row["setting"], row["other"]) for row in rows] == [("1", "2")]

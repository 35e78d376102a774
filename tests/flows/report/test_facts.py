"""A report says of a run what it has read of it, and no more."""

import pytest

from penstock.flows.report.facts import facts
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

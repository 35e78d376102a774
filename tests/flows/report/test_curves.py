"""Curves of a report stand at the steps and seconds that their stages took."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.flows.report.curves import _elapsed, curve_panels
from penstock.flows.report.page import Pictures, render
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store
from penstock.tasks.analysis import history

from ...support.stored.committed_run import CommittedRun

if TYPE_CHECKING:
    import pytest

GOLDEN = Path(__file__).parents[2] / "golden"
"""Store of a run, and of a replay of it."""


def test_stages_that_were_not_read_count_as_those_beside_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A long run is read in part; it takes as long as a run of the same stages that is read whole."""
    run = CommittedRun(tmp_path)
    run.commit(*[1.0] * 40)
    assert _elapsed(history.read_history(run.folder))[-1] == 20.0
    monkeypatch.setattr(history, "_NEWEST_STAGES", 2)
    thinned = history.read_history(run.folder, most_stages=5)
    assert len(thinned.stages) < 10
    assert _elapsed(thinned)[-1] == 20.0
    lost = replace(thinned, stages=(*thinned.stages[:-1], replace(thinned.stages[-1], timings=None)))
    assert _elapsed(lost)[-1] == 20.0


def test_axes_say_whose_steps_they_count():
    """Those of an environment, stored ones that a replay learned from, or both; the page's choice says the same."""
    run, replayed = (history.read_history(RunFolder(open_store(GOLDEN), name)) for name in ("run", "replayed"))
    for histories, axis, rate in (
        ([run], "environment steps", "environment steps/s"),
        ([replayed], "stored steps learned from", "stored steps/s"),
        ([run, replayed], "environment steps, or stored steps learned from", "environment steps/s, or stored steps/s"),
    ):
        panels = curve_panels(histories)
        assert {panel.figure.layout.xaxis.title.text for panel in panels} == {axis}
        assert [panel.unit for panel in panels if panel.title == "Throughput"] == [rate]
        page = render(histories, [Pictures()] * len(histories))
        assert f'<option value="steps">{axis}</option>' in page
        assert ("environment steps" in page) is (run in histories)

"""Curves of a report stand at the seconds that their stages took."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.flows.report.curves import _elapsed
from penstock.tasks.analysis import history

from ...support.stored.committed_run import CommittedRun

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


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

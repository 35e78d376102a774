"""Early stopping is a function of the commits alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.storage.errors import ConfigError
from penstock.tasks.driver.early_stopping import EvaluatedReturns, stop_reason
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.config.run import ScheduleSettings

from ...support.stored.committed_run import CommittedRun

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("patience", "least", "returns", "stops_after"),
    [
        (1, 0.0, [1.0, 2.0, 2.0, 9.0], 2),
        (2, 0.0, [1.0, 0.0, 3.0, 2.0, 3.0], 4),
        (2, 1.5, [1.0, 2.0, 2.4, 9.0], 2),
        (2, 1.5, [1.0, 2.0, 2.6, 9.0], None),
        (3, 0.0, [-5.0, -6.0, -6.0, -4.0], None),
    ],
)
def test_a_run_stops_after_evaluations_without_improvement(
    patience: int, least: float, returns: list[float], stops_after: int | None
):
    """An improvement exceeds the best one by more than the least; the first evaluation is one."""
    schedule = ScheduleSettings(stop_patience_evaluations=patience, stop_min_improvement=least)
    reasons = [stop_reason(schedule, returns[: end + 1]) for end in range(len(returns))]
    assert next((at for at, reason in enumerate(reasons) if reason), None) == stops_after
    assert stop_reason(ScheduleSettings(), returns * 100) is None


def test_a_resumed_run_reads_the_returns_that_an_undisturbed_one_remembers(tmp_path: Path):
    """Both decide from the same numbers, so a killed run ends at the same stage."""
    run = CommittedRun(tmp_path)
    schedule = ScheduleSettings(stop_patience_evaluations=3, evaluate_every_stages=2)
    undisturbed = EvaluatedReturns(run.folder, schedule)
    assert undisturbed.until(None) == []
    expected: list[float] = []
    # Stage 4 is evaluated as the former end of a run that was extended; a longer run would not have evaluated it.
    for stage, value in enumerate((None, 4.0, None, 2.5, 9.0, 7.0)):
        ((commit, _),) = run.commit(value)
        expected += [value] if value is not None and stage % 2 else []
        assert undisturbed.until(commit) == expected, stage
        assert EvaluatedReturns(run.folder, schedule).until(commit) == expected, stage


def test_runs_without_it_keep_their_bytes():
    """Neither `run.json` nor the identity names it unless it is set; then both do."""
    for values, named in (({}, False), ({"stop_patience_evaluations": 2}, True)):
        config = build_config({"schedule": values})
        stored: dict[str, Any] = config.model_dump(mode="json")["schedule"]
        assert ("stop_patience_evaluations" in stored) is named
        assert ("stop_min_improvement" in stored) is named
        assert ("stop_patience_evaluations" in config.identity()["schedule"]) is named


def test_an_improvement_without_patience_is_refused():
    """It would have no effect."""
    with pytest.raises(ConfigError, match="has no effect without stop_patience_evaluations"):
        build_config({"schedule": {"stop_min_improvement": 1.0}})

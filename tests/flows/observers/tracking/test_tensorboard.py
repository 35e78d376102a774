"""TensorBoard's own reader finds every stage once, whatever was killed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from penstock.flows.observers.tracking.outcome import OutcomeMaker
from penstock.flows.observers.tracking.tensorboard import EVENTS, TensorBoardTracker
from penstock.flows.report.tensorboard import write_events
from penstock.tasks.analysis.history import read_history

from ....support.stored.committed_run import CommittedRun

if TYPE_CHECKING:
    from pathlib import Path


def tracker(folder: Path) -> TensorBoardTracker:
    return TensorBoardTracker("tensorboard", OutcomeMaker(120.0), str(folder))


def read(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def stages(folder: Path) -> list[int]:
    return [int(event.value) for event in read(folder).Scalars("progress/stage")]


def test_curves_have_the_values_and_steps_of_the_commits(tmp_path: Path, run: CommittedRun, drive):
    """Tags, values, steps and wall times are those of an export; settings are hparams."""
    drive(tracker(tmp_path / "logs"), 3.0, None, 5.0)
    live = read(tmp_path / "logs/small")
    write_events(read_history(run.folder), tmp_path / "exported")
    exported = read(tmp_path / "exported/small")
    assert live.Tags() == exported.Tags()
    for tag in exported.Tags()["scalars"]:
        assert live.Scalars(tag) == exported.Scalars(tag), tag
    assert [event.step for event in live.Scalars("return/evaluation")] == [100, 300]
    hparams = live.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert b"algorithm.epochs" in hparams


@pytest.mark.parametrize("damage", ["none", "cut", "appended", "removed", "exported"])
def test_a_resumed_run_continues_the_same_file(tmp_path: Path, run: CommittedRun, drive, damage: str):
    """No point is lost or double: after a record that was cut short, foreign bytes, a lost file, or an export."""
    file = tmp_path / "logs/small" / EVENTS
    drive(tracker(tmp_path / "logs"), 1.0, 2.0, 3.0)
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-9])
    elif damage == "appended":
        file.write_bytes(file.read_bytes() + b"\x08\x00")
    elif damage == "removed":  # as on another host
        file.unlink()
    elif damage == "exported":
        write_events(read_history(run.folder), tmp_path / "logs")
    drive(tracker(tmp_path / "logs"), 4.0, 5.0)
    assert stages(tmp_path / "logs/small") == [0, 1, 2, 3, 4]


def test_another_run_of_the_same_name_has_a_folder_of_its_own(tmp_path: Path, drive):
    """Curves of two runs are never mixed, and none is removed."""
    drive(tracker(tmp_path / "logs"), 1.0)
    again = CommittedRun(tmp_path / "elsewhere", created="2026-11-25")
    again.commit(1.0, 2.0)
    other = tracker(tmp_path / "logs")
    from penstock.flows.observers.callbacks.records import run_start

    other.on_run_start(run_start(again.folder, again.newest))
    folders = sorted((tmp_path / "logs").iterdir())
    assert [len(stages(folder)) for folder in folders] == [1, 2]
    assert folders[1].name.startswith("small-")


def test_a_folder_that_is_not_writable_is_one_warning(tmp_path: Path, run: CommittedRun, drive, caplog):
    """The run is not affected."""
    (tmp_path / "logs").write_text("a file")
    drive(tracker(tmp_path / "logs"), 1.0, 2.0)
    assert len(run.committed) == 2
    texts = {record.getMessage().partition(": ")[0] for record in caplog.records}
    assert "tracker tensorboard failed in on_stage" in texts

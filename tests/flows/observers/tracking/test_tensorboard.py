"""TensorBoard's own reader finds every stage once, whatever was killed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from penstock.flows.observers.callbacks.records import run_start, stage_record
from penstock.flows.observers.tracking.outcome import OutcomeMaker
from penstock.flows.observers.tracking.tensorboard import TensorBoardTracker
from penstock.flows.report.tensorboard import EVENTS, write_events
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


@pytest.mark.parametrize("meanwhile", ["longer export", "shorter export", "half a record"])
def test_a_file_that_changed_while_the_run_trains_has_every_stage_once(
    tmp_path: Path, run: CommittedRun, meanwhile: str
):
    """An export may replace it with more stages or fewer; a full disk leaves half of what this tracker wrote."""
    file, following = tmp_path / "logs/small" / EVENTS, tracker(tmp_path / "logs")
    following.on_run_start(run_start(run.folder, None))
    records = [stage_record("small", *stage) for stage in run.commit(1.0, 2.0)]
    shorter = read_history(run.folder)
    records += [stage_record("small", *stage) for stage in run.commit(3.0, 4.0)]
    for record in records[: 4 if meanwhile == "shorter export" else 2]:
        following.on_stage(record)
    if meanwhile == "half a record":
        file.write_bytes(file.read_bytes() + file.read_bytes()[:60])
    else:
        write_events(read_history(run.folder) if meanwhile == "longer export" else shorter, tmp_path / "logs")
    for record in records[2:]:
        following.on_stage(record)
    for stage in run.commit(5.0):
        following.on_stage(stage_record("small", *stage))
    assert stages(tmp_path / "logs/small") == [0, 1, 2, 3, 4]


def test_an_export_of_another_run_of_the_same_name_replaces_nothing(tmp_path: Path, run: CommittedRun, drive):
    """The run that is tracked keeps its file, and the other one has a folder of its own, which it finds again."""
    drive(tracker(tmp_path / "logs"), 1.0, 2.0)
    before = (tmp_path / "logs/small" / EVENTS).read_bytes()
    other = CommittedRun(tmp_path / "elsewhere", created="2026-11-25")
    other.commit(7.0)
    for _ in range(2):
        write_events(read_history(other.folder), tmp_path / "logs")
    assert (tmp_path / "logs/small" / EVENTS).read_bytes() == before
    (folder,) = (tmp_path / "logs").glob("small-*")
    assert stages(folder) == [0]


def test_another_run_of_the_same_name_has_a_folder_of_its_own(tmp_path: Path, drive):
    """Curves of two runs are never mixed, and none is removed."""
    drive(tracker(tmp_path / "logs"), 1.0)
    again = CommittedRun(tmp_path / "elsewhere", created="2026-11-25")
    again.commit(1.0, 2.0)
    other = tracker(tmp_path / "logs")
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

"""Callbacks get every committed stage in order, and can neither delay nor end a run."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import FrozenInstanceError
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

import penstock
from penstock.flows.observers.callbacks.delivery import Delivery, _Follower, given_callbacks, use_callbacks
from penstock.flows.observers.callbacks.records import run_start

from ....support.stored.committed_run import CommittedRun

if TYPE_CHECKING:
    from pathlib import Path


class Recorder(penstock.Callback):
    """Keeps what it gets."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def on_run_start(self, start: penstock.RunStart) -> None:
        self.calls.append(("start", start))

    def on_stage(self, record: penstock.StageRecord) -> None:
        self.calls.append(("stage", record))

    def on_evaluation(self, record: penstock.StageRecord) -> None:
        self.calls.append(("evaluation", record))

    def on_run_end(self, end: penstock.RunEnd) -> None:
        self.calls.append(("end", end))


class Failing(Recorder):
    """Fails at each stage, at the second by leaving."""

    def on_stage(self, record: penstock.StageRecord) -> None:
        super().on_stage(record)
        raise (SystemExit(3) if record.stage == 1 else ValueError(f"no luck\nwith {record.stage}"))


class Waiting(penstock.Callback):
    """Waits in its first call until it is allowed to continue."""

    def __init__(self) -> None:
        self.may_continue = threading.Event()
        self.stages: list[int] = []

    def on_stage(self, record: penstock.StageRecord) -> None:
        self.may_continue.wait()
        self.stages.append(record.stage)


def deliver(run: CommittedRun, *callbacks: penstock.Callback, returns: tuple[float | None, ...], wait: float = 150.0):
    with Delivery(callbacks, wait) as delivery:
        delivery.begin(run.folder, run.newest)
        for commit, timings in run.commit(*returns):
            delivery.stage(commit, timings)


def test_every_stage_is_delivered_once_and_in_order(tmp_path: Path):
    """A resumed run continues with the next stage; records are frozen copies of what the commits say."""
    run, callback = CommittedRun(tmp_path), Recorder()
    deliver(run, callback, returns=(3.0, None))
    deliver(run, callback, returns=(5.0,))
    assert [(kind, getattr(one, "stage", None)) for kind, one in callback.calls] == [
        ("start", None), ("stage", 0), ("evaluation", 0), ("stage", 1), ("end", None),
        ("start", None), ("stage", 2), ("evaluation", 2), ("end", None),
    ]  # fmt: skip
    record = callback.calls[1][1]
    assert (record.run, record.env_steps, record.metrics["loss"], record.evaluation["mean_return"]) == (
        "small", 100, 1.0, 3.0,
    )  # fmt: skip
    assert (record.seconds, record.env_steps_per_second, record.learner_wait_share) == (0.5, 200.0, 0.5)
    with pytest.raises(FrozenInstanceError):
        record.stage = 7
    with pytest.raises(TypeError):
        record.metrics["loss"] = 7.0
    first, again = (one for kind, one in callback.calls if kind == "start")
    assert (first.next_stage, again.next_stage, first.id == again.id) == (0, 2, True)
    assert list(again.read_stages(0, 1)) == [record]
    first.settings["seed"] = 99
    assert again.settings["seed"] == run.folder.load()["config"]["seed"] == 1
    assert callback.calls[-1][1].stages == 3


def test_an_exception_is_one_warning_and_the_next_records_are_delivered(tmp_path: Path, caplog):
    """A callback that fails, or leaves, is named in one line with the place; another callback is not affected."""
    run, failing, other = CommittedRun(tmp_path), Failing(), Recorder()
    with caplog.at_level(logging.WARNING):
        deliver(run, failing, other, returns=(1.0, 1.0, 1.0))
    assert [kind for kind, _ in failing.calls] == [kind for kind, _ in other.calls]
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 3
    assert warnings[0].startswith(
        "callback Failing failed in on_stage: ValueError: no luck with 0 (test_delivery.py, line "
    )
    assert not any("\n" in text for text in warnings)


def test_a_slow_callback_delays_nothing(tmp_path: Path, caplog):
    """Stages are delivered while it waits; at the end it has a bounded time, and what is too much is left out."""
    run, slow = CommittedRun(tmp_path), Waiting()
    ((commit, timings),) = run.commit(None)
    with caplog.at_level(logging.WARNING), Delivery([slow], 0.01) as delivery:
        delivery.begin(run.folder, None)
        for _ in range(300):
            delivery.stage(commit, timings)
    assert slow.stages == []
    said = [record.getMessage() for record in caplog.records]
    assert any("256 records behind" in text for text in said)
    assert any("Waiting has not finished 0.01 s after the run's end" in text for text in said)
    slow.may_continue.set()


def test_the_id_is_of_one_run_and_the_same_everywhere(tmp_path: Path):
    """A copy of the run has the same id; a run of another name, or one that was created again, has another."""
    ids = [
        run_start(CommittedRun(tmp_path / place, name, created).folder, None).id
        for place, name, created in (
            ("a", "x", "2026-01"),
            ("b", "x", "2026-01"),
            ("c", "y", "2026-01"),
            ("d", "x", ""),
        )
    ]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3


def test_callbacks_of_python_are_given_to_the_runs_inside():
    """A flow receives settings alone, so callbacks that are objects reach it through its process."""
    callback = Recorder()
    with use_callbacks([callback]):
        assert given_callbacks() == [callback]
    assert given_callbacks() == []


def test_a_property_that_raises_does_not_end_the_delivery():
    """It is a warning, as an exception of a method is."""

    class Broken:
        calls: ClassVar[list[object]] = []

        @property
        def on_evaluation(self) -> None:
            raise RuntimeError("no method")

        def on_stage(self, record: object) -> None:
            self.calls.append(record)

    follower = _Follower(Broken())  # type: ignore[arg-type]
    follower.begin("on_run_start", 0)
    for method, record in (("on_stage", 1), ("on_evaluation", 1), ("on_stage", 2)):
        follower.offer(method, record)
    follower.close("on_run_end", 3)
    follower.join(time.monotonic() + 150)
    assert Broken.calls == [1, 2]

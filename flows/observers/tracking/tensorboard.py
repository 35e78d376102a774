"""Writes a run's curves to TensorBoard while it trains, into the file that `penstock export --to tensorboard` writes.

A stage is one record of the file. A record that a kill cut short is removed before the next one is appended.
"""

from __future__ import annotations

import struct
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorboardX.crc32c import crc32c
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.summary import hparams

from penstock.flows.observers.tracking.tracker import Tracker
from penstock.flows.report.scalars import STAGE_TAG, stage_scalars
from penstock.flows.report.tensorboard import EVENTS, HPARAM_METRICS, folder_of, hparams_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.flows.observers.callbacks.records import RunEnd, RunStart, StageRecord
    from penstock.flows.observers.tracking.outcome import Outcome, OutcomeMaker

_HEADER_BYTES = 12
_CHECKSUM_BYTES = 4


class TensorBoardTracker(Tracker):
    """Writes `<folder>/<run>/`; `<folder>/<run>-<id>/` where that is another run's."""

    def __init__(self, name: str, outcomes: OutcomeMaker, folder: str) -> None:
        super().__init__(name, outcomes)
        self._folder = Path(folder)
        self._file = self._folder / EVENTS
        self._wall = 0.0
        self._left: tuple[int, int] | None = None
        """The file, and its length, as this tracker has left it."""

    def open(self, start: RunStart) -> int:
        """Continue the file of the run, or begin one with the settings as hparams."""
        self._file = folder_of(self._folder, start) / EVENTS
        self._wall = _unix(start.created)
        known, end = _scan(self._file)
        if known is not None:
            with self._file.open("r+b") as file:
                file.truncate(end)
            self._left = self._found()
            return known + 1
        summaries = hparams(hparams_of(start.settings), dict.fromkeys(HPARAM_METRICS, 0.0))
        events = [Event(wall_time=self._wall, file_version="brain.Event:2")]
        events += [Event(wall_time=self._wall, summary=summary) for summary in summaries]
        self._file.write_bytes(b"".join(map(_encode, events)))
        self._left = self._found()
        return 0

    def first_lacking(self, known: int) -> int:
        """Look into the file again where an export has replaced it, or a write of this tracker has failed half way."""
        assert self._start is not None
        return known if self._found() == self._left else self.open(self._start)

    def add(self, record: StageRecord) -> None:
        """Append a record with all values of the stage."""
        self._wall = record.ended_at or self._wall
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in stage_scalars(record).items()]
        self._append(Event(wall_time=self._wall, step=record.env_steps, summary=Summary(value=values)))

    def add_outcome(self, outcome: Outcome) -> None:
        """Add the clip as an image, and the report as a file beside the events."""
        (self._file.parent / "report.html").write_bytes(outcome.report)
        if outcome.clip is not None:
            width, height = struct.unpack("<HH", outcome.clip[6:10])
            image = Summary.Image(encoded_image_string=outcome.clip, width=width, height=height, colorspace=3)
            value = Summary.Value(tag="episode/evaluation", image=image)
            self._append(Event(wall_time=self._wall, step=self._steps(), summary=Summary(value=[value])))

    def close(self, end: RunEnd) -> None:
        """Do nothing: the file is open only while it is written."""

    def _append(self, event: Any) -> None:
        # Opened each time: an export may have replaced the file meanwhile.
        with self._file.open("ab") as file:
            file.write(_encode(event))
        self._left = self._found()

    def _found(self) -> tuple[int, int] | None:
        try:
            found = self._file.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_size

    def _steps(self) -> int:
        return max((event.step for event, _ in _records(self._file)), default=0)


def _scan(file: Path) -> tuple[int | None, int]:
    """Return the last stage of a file before which none is lacking or double, and the position after it.

    The stage is None if there is none.
    """
    stage, end = None, 0
    for event, position in _records(file):
        found = [int(value.simple_value) for value in event.summary.value if value.tag == STAGE_TAG]
        if found and found != [0 if stage is None else stage + 1]:
            break
        if found:
            stage, end = found[0], position
    return stage, end


def _records(file: Path) -> Iterator[tuple[Any, int]]:
    """Yield the whole records of a file, each with the position after it."""
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return
    position = 0
    while position + _HEADER_BYTES <= len(data):
        head = data[position : position + 8]
        (length,) = struct.unpack("<Q", head)
        start, end = position + _HEADER_BYTES, position + _HEADER_BYTES + length + _CHECKSUM_BYTES
        if data[position + 8 : start] != _checksum(head) or end > len(data):
            return
        body = data[start : end - _CHECKSUM_BYTES]
        if data[end - _CHECKSUM_BYTES : end] != _checksum(body):
            return
        yield Event.FromString(body), end
        position = end


def _encode(event: Any) -> bytes:
    body: bytes = event.SerializeToString(deterministic=True)
    head = struct.pack("<Q", len(body))
    return head + _checksum(head) + body + _checksum(body)


def _checksum(data: bytes) -> bytes:
    """Return the masked CRC of a part of a record."""
    found = crc32c(data)
    return struct.pack("<I", (((found >> 15) | (found << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _unix(created: str) -> float:
    try:
        return datetime.fromisoformat(created).timestamp()
    except ValueError:
        return 0.0

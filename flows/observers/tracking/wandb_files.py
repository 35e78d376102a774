"""Reads the files of W&B's offline mode: what a killed process has written of a record.

W&B writes blocks of 32 KiB, so a kill loses what is not in one yet, and W&B has no interface that tells. The format is
LevelDB's log after a header of 7 bytes: blocks with parts of records, each with checksum, length and kind.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from wandb.proto.wandb_internal_pb2 import Record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_HEADER_BYTES = 7
_BLOCK_BYTES = 32768
_FULL, _FIRST, _LAST = 1, 2, 4


def last_step(folder: Path, run_id: str) -> int:
    """Return the last step in the files of a W&B run below W&B's folder; -1 if there is none."""
    steps = [step for file in folder.glob(f"*run-*-{run_id}/run-{run_id}.wandb") for step in _steps(file)]
    return max(steps, default=-1)


def _steps(file: Path) -> Iterator[int]:
    for data in records(file):
        record = Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            yield record.history.step.num


def records(file: Path) -> Iterator[bytes]:
    """Yield the whole records of a file, each the bytes of a `Record`."""
    data, position, record = file.read_bytes(), _HEADER_BYTES, b""
    while True:
        left = _BLOCK_BYTES - position % _BLOCK_BYTES
        if left < _HEADER_BYTES:
            position += left
        start = position + _HEADER_BYTES
        if start > len(data):
            return
        _, length, kind = struct.unpack("<IHB", data[position:start])
        position = start + length
        if not _FULL <= kind <= _LAST or position > len(data):
            return
        record = (b"" if kind in {_FULL, _FIRST} else record) + data[start:position]
        if kind in {_FULL, _LAST}:
            yield record

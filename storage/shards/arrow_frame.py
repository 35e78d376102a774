"""Reads and writes, byte by byte, the frame of an Arrow IPC file with one record batch: its buffers' positions.

Arrow's own writer decides where buffers go and compresses all of them or none. Here Arrow writes the frame of a batch
of one row, and the numbers in it are replaced by those of the real batch: rows, nulls, offsets and lengths. They are
integers of fixed width, so nothing else moves. The result is an ordinary Arrow IPC file; the framing is that of
"Encapsulated message format" and "IPC File Format" in the Arrow columnar format.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from penstock.storage.digest import Buffer

ALIGNMENT_BYTES = 64
CODECS = ("lz4", "zstd")
"""The index of a codec is its number in the file."""
RAW = -1
"""This length precedes an uncompressed buffer in a batch that has compressed ones."""
PREFIX_BYTES = 8

_MAGIC = b"ARROW1\0\0"
_CONTINUATION = 0xFFFFFFFF
_TAIL = struct.Struct("<i6s")
_PAIR = struct.Struct("<qq")
_BLOCK = struct.Struct("<qi4xq")
_INT64 = struct.Struct("<q")


class TruncatedError(ValueError):
    """The bytes end before the frame does: `needed` bytes from the start would go further."""

    def __init__(self, needed: int) -> None:
        super().__init__(f"cut short: its head needs {needed} bytes")
        self.needed = needed


@dataclass(frozen=True, slots=True)
class Layout:
    """These are the facts in a record batch's header. Offsets are relative to the body."""

    rows: int
    nodes: tuple[tuple[int, int], ...]
    """For each array, outer before inner: number of values, number of nulls."""
    buffers: tuple[tuple[int, int], ...]
    """For each buffer: offset and length, including the length that precedes a compressed one."""
    body_bytes: int
    codec: str | None
    """The batch's codec. With one, every non-empty buffer begins with its uncompressed length, or `RAW`."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The head of a file is everything in front of the body."""

    schema_message: memoryview
    layout: Layout
    body_start: int
    """The body's offset in the file; a multiple of 8."""

    @property
    def head_bytes(self) -> int:
        """Return the offset of the first buffer."""
        return self.body_start + self.layout.buffers[0][0]

    @property
    def body_stop(self) -> int:
        """Return the offset of the tail: the end marker and the footer."""
        return self.body_start + self.layout.body_bytes

    def schema(self) -> pa.Schema:
        """Parse the schema by Arrow, which may crash on altered bytes: verify them first.

        Raises:
            ValueError: it can't be read.
        """
        try:
            return pa.ipc.read_schema(pa.py_buffer(self.schema_message))
        except (OSError, pa.ArrowException) as error:
            raise ValueError(f"its schema can't be read: {error}") from error


def read_frame(head: Buffer) -> Frame:
    """Parse a head; bytes after it are ignored.

    Raises:
        TruncatedError: `head` ends too early.
        ValueError: it is not such a file. Also `struct.error` and `IndexError`.
    """
    view = memoryview(head).cast("B")
    if bytes(view[: len(_MAGIC)]) != _MAGIC[: view.nbytes] or not view.nbytes:
        raise ValueError("it does not begin like an Arrow file")
    _, schema_stop = _message(view, len(_MAGIC))
    batch_start, batch_stop = _message(view, schema_stop)
    return Frame(view[len(_MAGIC) : schema_stop], _Batch(view, batch_start).layout(), batch_stop)


def is_compressed_batch(header: Buffer) -> bool:
    """Return whether the message of a record batch says that its buffers are compressed.

    Args:
        header: the message's flatbuffer, without its length.

    Raises:
        ValueError: it can't be read. Also `struct.error` and `IndexError`.
    """
    return _Batch(memoryview(header).cast("B"), 0).is_compressed


def write_frame(stub: pa.RecordBatch, layout: Layout) -> tuple[bytearray, bytearray]:
    """Return the bytes in front of the first buffer of a file, and those behind the last one.

    Args:
        stub: one row of the file's schema, metadata included, with at least one byte of data.
        layout: of the real batch, with as many arrays and buffers. Offset 0 becomes a multiple of 64 in the file; the
            gap in front of the first buffer is filled with zeros.
    """
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=layout.codec)
    with pa.ipc.new_file(sink, stub.schema, options=options) as writer:
        writer.write_batch(stub)
    file = memoryview(sink.getvalue())
    frame = read_frame(file)
    gap = -frame.body_start % ALIGNMENT_BYTES
    layout = replace(
        layout,
        buffers=tuple((offset + gap, nbytes) for offset, nbytes in layout.buffers),
        body_bytes=layout.body_bytes + gap,
    )
    head, tail = bytearray(file[: frame.body_start]), bytearray(file[frame.body_stop :])
    _, schema_stop = _message(memoryview(head), len(_MAGIC))
    batch_start, _ = _message(memoryview(head), schema_stop)
    _Batch(memoryview(head), batch_start).write(layout)
    _write_footer(memoryview(tail), layout)
    return head + bytes(layout.buffers[0][0]), tail


def _message(view: memoryview, at: int) -> tuple[int, int]:
    """Return the start and end of the flatbuffer of the message at `at`."""
    if view.nbytes < at + 8:
        raise TruncatedError(at + 8)
    marker, length = struct.unpack_from("<Ii", view, at)
    if marker != _CONTINUATION or length < 8:
        raise ValueError(f"no message begins at byte {at}")
    if view.nbytes < at + 8 + length:
        # Ask for the next message's length too, so that a second attempt gets further than this one.
        raise TruncatedError(at + 8 + length + 8)
    return at + 8, at + 8 + length


class _Table:
    """Finds the fields of a flatbuffer's table by number."""

    def __init__(self, view: memoryview, at: int) -> None:
        self.view = view
        self.at = at
        (back,) = struct.unpack_from("<i", view, at)
        self._fields = at - back
        (self._fields_bytes,) = struct.unpack_from("<H", view, self._fields)

    @classmethod
    def root(cls, view: memoryview, at: int) -> _Table:
        return cls(view, at + struct.unpack_from("<I", view, at)[0])

    def field(self, number: int) -> int | None:
        """Return a field's position; None if it has its default."""
        entry = 4 + 2 * number
        if entry + 2 > self._fields_bytes:
            return None
        (offset,) = struct.unpack_from("<H", self.view, self._fields + entry)
        return self.at + offset if offset else None

    def present(self, number: int) -> int:
        at = self.field(number)
        if at is None:
            raise ValueError(f"its header lacks field {number}")
        return at

    def target(self, number: int) -> int:
        at = self.present(number)
        return at + int(struct.unpack_from("<I", self.view, at)[0])

    def structs(self, number: int, shape: struct.Struct) -> range:
        """Return the positions of a vector's structs."""
        at = self.target(number)
        (count,) = struct.unpack_from("<I", self.view, at)
        start = at + 4
        if start + count * shape.size > self.view.nbytes:
            raise ValueError("its header is cut short")
        return range(start, start + count * shape.size, shape.size)


class _Batch:
    """Accesses the message that describes a record batch. Field numbers are those of Message.fbs."""

    def __init__(self, view: memoryview, at: int) -> None:
        self._message = _Table.root(view, at)
        self._batch = _Table(view, self._message.target(2))
        self._nodes = self._batch.structs(1, _PAIR)
        self._buffers = self._batch.structs(2, _PAIR)
        self._view = view

    @property
    def is_compressed(self) -> bool:
        return self._batch.field(3) is not None

    def layout(self) -> Layout:
        view = self._view
        codec = None
        if self.is_compressed:
            at = _Table(view, self._batch.target(3)).field(0)
            codec = CODECS[view[at]] if at is not None else CODECS[0]
        return Layout(
            rows=_INT64.unpack_from(view, self._batch.present(0))[0],
            nodes=tuple(_PAIR.unpack_from(view, at) for at in self._nodes),
            buffers=tuple(_PAIR.unpack_from(view, at) for at in self._buffers),
            body_bytes=_INT64.unpack_from(view, self._message.present(3))[0],
            codec=codec,
        )

    def write(self, layout: Layout) -> None:
        _INT64.pack_into(self._view, self._message.present(3), layout.body_bytes)
        _INT64.pack_into(self._view, self._batch.present(0), layout.rows)
        for at, node in zip(self._nodes, layout.nodes, strict=True):
            _PAIR.pack_into(self._view, at, *node)
        for at, buffer in zip(self._buffers, layout.buffers, strict=True):
            _PAIR.pack_into(self._view, at, *buffer)


def _write_footer(tail: memoryview, layout: Layout) -> None:
    length, _ = _TAIL.unpack_from(tail, tail.nbytes - _TAIL.size)
    footer = _Table.root(tail, tail.nbytes - _TAIL.size - length)
    (at,) = footer.structs(3, _BLOCK)
    offset, head_bytes, _ = _BLOCK.unpack_from(tail, at)
    _BLOCK.pack_into(tail, at, offset, head_bytes, layout.body_bytes)

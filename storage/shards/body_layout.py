"""Lays out the body of a shard: consecutive columns, each aligned, each with its own checksums."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.storage.shards.arrow_frame import ALIGNMENT_BYTES, PREFIX_BYTES, RAW, Layout
from penstock.storage.shards.blocks import block_sums

if TYPE_CHECKING:
    from penstock.storage.shards.columns import StoredColumn

_ZEROS = memoryview(bytes(2 * ALIGNMENT_BYTES))
_LENGTH = struct.Struct("<q")


@dataclass(slots=True)
class Body:
    """A body is laid out here. A column's span begins with its first buffer and ends where the next column's begins."""

    pieces: list[memoryview]
    """The pieces range from the first buffer to the end; large ones are the caller's arrays."""
    layout: Layout
    sums: list[str]
    """For each column: the checksums of the blocks of its span, in hex."""
    sizes: list[list[int] | None] = field(default_factory=list)
    """For each column: the lengths of its compressed blocks; None for a plain one."""


def lay_out(stored: list[StoredColumn], rows: int, codec: str | None) -> Body:
    """Place the columns one after another.

    Values start at multiples of 64, counted from where `write_frame` puts offset 0. Where any column is compressed,
    Arrow requires the length in front of every buffer: it then precedes such a multiple.
    """
    prefix = PREFIX_BYTES if codec else 0
    position = -prefix % ALIGNMENT_BYTES
    buffers: list[tuple[int, int]] = []
    spans: list[list[memoryview]] = []
    for column in stored:
        span: list[memoryview] = []
        for index, buffer in enumerate(column.buffers):
            parts = [buffer]
            raw = buffer.nbytes
            if column.blocks and index == len(column.buffers) - 1:
                parts, raw = [memoryview(block) for block in column.blocks], column.raw_bytes
            nbytes = sum(part.nbytes for part in parts)
            if not nbytes:
                buffers.append((position, 0))
                continue
            if prefix:
                span.append(memoryview(_LENGTH.pack(raw if column.blocks else RAW)))
            span += parts
            buffers.append((position, prefix + nbytes))
            position += prefix + nbytes
            gap = -(position + prefix) % ALIGNMENT_BYTES
            span.append(_ZEROS[:gap])
            position += gap
        spans.append(span)
    body = Body(
        pieces=[piece for span in spans for piece in span],
        layout=Layout(
            rows=rows,
            nodes=tuple(node for column in stored for node in column.nodes),
            buffers=tuple(buffers),
            body_bytes=position,
            codec=codec,
        ),
        sums=[],
    )
    for column, span in zip(stored, spans, strict=True):
        sizes = _sizes(column, span)
        body.sums.append(block_sums(span, sizes).hex())
        body.sizes.append([len(block) for block in column.blocks[1:-1]] if sizes else None)
    return body


def _sizes(column: StoredColumn, span: list[memoryview]) -> list[int] | None:
    """Return the block lengths of a compressed span: the first includes the bytes in front, the last those behind."""
    if not column.blocks:
        return None
    sizes = [len(block) for block in column.blocks[1:-1]]
    sizes[0] += PREFIX_BYTES + len(column.blocks[0])
    sizes[-1] += (
        sum(piece.nbytes for piece in span) - PREFIX_BYTES - sum(map(len, column.blocks)) + len(column.blocks[-1])
    )
    return sizes

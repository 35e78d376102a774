"""Columns of a shard as they lie in the file: from arrays to the buffers of an Arrow column.

A column of the shard is one Arrow column; one of stacked frames is two, its last frames and, at the end of the table,
a nullable list of the earlier ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from storage.compression import compress_blocks, frame_end, frame_header
from storage.frames import split_stacks
from storage.specs import Spec

if TYPE_CHECKING:
    from numpy.typing import NDArray

BOOTSTRAP_COLUMN = "bootstrap_observation"
STACK_SUFFIX = "_earlier_frames"

_NOTHING = memoryview(b"")
_TYPES = {"bool": pa.bool_()}


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """An Arrow column that is ready to be laid out."""

    nodes: tuple[tuple[int, int], ...]
    """Numbers of values and nulls, outer before inner."""
    buffers: tuple[memoryview, ...]
    """In Arrow's order; an empty one is absent. Where the column is compressed, all but the last are empty."""
    raw_bytes: int
    """Of the last buffer, before compression."""
    blocks: tuple[bytes, ...] = field(default=())
    """In place of the last buffer, where it is compressed: frame header, blocks, frame end."""


@lru_cache(maxsize=256)
def stored_spec(spec: Spec) -> Spec:
    """What one row of the Arrow column holds: of a stack, the last frame."""
    return Spec(spec.dtype, spec.shape[1:] if spec.stacked else spec.shape)


def arrow_type(spec: Spec) -> pa.DataType:
    """The Arrow column's type: fixed-shape tensors, and scalars as they are."""
    spec = stored_spec(spec)
    value = value_type(spec)
    return pa.fixed_shape_tensor(value, spec.shape) if spec.shape else value


def value_type(spec: Spec) -> pa.DataType:
    """Of a single number."""
    return _TYPES.get(spec.dtype) or pa.from_numpy_dtype(np.dtype(spec.dtype))


def arrow_fields(columns: dict[str, Spec]) -> list[pa.Field]:
    """All Arrow columns of a shard in order: the declared ones, earlier frames of stacks, what to bootstrap from."""
    fields = [pa.field(name, arrow_type(spec), nullable=False) for name, spec in columns.items()]
    fields += [pa.field(name + STACK_SUFFIX, pa.list_(value_type(columns[name]))) for name in stacked_names(columns)]
    return [*fields, pa.field(BOOTSTRAP_COLUMN, pa.list_(value_type(columns["observation"])))]


def stacked_names(columns: dict[str, Spec]) -> list[str]:
    """Columns whose earlier frames lie apart."""
    return [name for name, spec in columns.items() if spec.stacked]


def buffer_count(spec: Spec) -> int:
    """How many buffers the Arrow column has; its values are in the last one."""
    return 3 if stored_spec(spec).shape else 2


def byte_range(spec: Spec, rows: range) -> tuple[int, int]:
    """The bytes of a column's values in which consecutive rows lie, before compression. Bits: whole bytes around."""
    spec = stored_spec(spec)
    width = math.prod(spec.shape)
    if spec.dtype == "bool":
        return rows.start * width // 8, -(-rows.stop * width // 8)
    row_bytes = width * np.dtype(spec.dtype).itemsize
    return rows.start * row_bytes, rows.stop * row_bytes


LIST_BUFFERS = 4
"""Of a nullable list: validity, offsets, no validity, values."""


def store_column(spec: Spec, array: NDArray[Any]) -> tuple[StoredColumn, StoredColumn | None]:
    """A column `[T, B, ...]`, and its earlier frames if it is stacked. Plain columns are not copied."""
    if not spec.stacked:
        return _store_values(spec, array), None
    frames, rows, earlier = split_stacks(array)
    return _store_values(spec, frames), store_lists(earlier, rows, math.prod(array.shape[:2]))


def store_lists(values: NDArray[Any], present_rows: NDArray[np.int64], rows: int) -> StoredColumn:
    """A nullable list column: one entry of `values` in each of `present_rows`, which ascend."""
    width = math.prod(values.shape[1:])
    present = np.zeros(rows, np.uint8)
    present[present_rows] = 1
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(present, out=offsets[1:])
    offsets *= width
    validity = np.packbits(present, bitorder="little")
    data = _bytes(values)
    return StoredColumn(
        nodes=((rows, rows - len(present_rows)), (width * len(present_rows), 0)),
        buffers=(validity.data, _bytes(offsets), _NOTHING, data),
        raw_bytes=data.nbytes,
    )


def _store_values(spec: Spec, array: NDArray[Any]) -> StoredColumn:
    spec_of_row = stored_spec(spec)
    rows = math.prod(array.shape[:2])
    nodes = ((rows, 0), (rows * math.prod(spec_of_row.shape), 0)) if spec_of_row.shape else ((rows, 0),)
    data = np.packbits(array.reshape(-1), bitorder="little").data if spec.dtype == "bool" else _bytes(array)
    absent = (_NOTHING,) * (buffer_count(spec) - 1)
    if not spec.compression:
        return StoredColumn(nodes, (*absent, data), data.nbytes)
    blocks = (frame_header(spec.compression), *compress_blocks(data, spec.compression), frame_end(spec.compression))
    return StoredColumn(nodes, (*absent, _NOTHING), data.nbytes, blocks)


def _bytes(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data

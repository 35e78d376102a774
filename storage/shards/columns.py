"""Converts the columns of a shard from arrays to the buffers of Arrow columns.

A column of the shard is one Arrow column; one of stacked frames is two, its last frames and, at the end of the table,
a nullable list of the earlier ones. A structured column is one Arrow column for each of its leaves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.storage.shards.blocks import compress_blocks, frame_end, frame_header
from penstock.storage.shards.leaves import parts_of, stored_columns
from penstock.storage.shards.specs import Spec

if TYPE_CHECKING:
    from numpy.typing import NDArray


def split_stacks(stacks: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[Any]]:
    """Split stacks `[T, B, k, ...]` into frames that rebuild them.

    Returns:
        The last frame of every row, `[T, B, ...]`; ascending rows `t * B + b` whose earlier frames are not those of the
        row before, `[N]`; their earlier frames, `[N, k - 1, ...]`.
    """
    steps, envs = stacks.shape[:2]
    frames = np.ascontiguousarray(stacks[:, :, -1])
    fresh = np.ones((steps, envs), bool)
    for step in range(1, steps):
        fresh[step] = [not follows(stacks[step - 1, env], stacks[step, env]) for env in range(envs)]
    rows = np.flatnonzero(fresh)
    return frames, rows, stacks.reshape(steps * envs, *stacks.shape[2:])[rows, :-1]


def follows(before: NDArray[Any], after: NDArray[Any]) -> bool:
    """Return whether a stack `[k, ...]` is the previous one shifted by a frame; compare bytes, so NaN equals itself."""
    return np.array_equal(_as_bytes(after[:-1]), _as_bytes(before[1:]))


def join_stacks(frames: NDArray[Any], rows: NDArray[np.int64], earlier: NDArray[Any]) -> NDArray[Any]:
    """Rebuild `[T, B, k, ...]` from the result of `split_stacks`; rows 0 to B - 1 must be among `rows`."""
    steps, envs = frames.shape[:2]
    depth = earlier.shape[1]
    stacks = np.empty((steps, envs, depth + 1, *frames.shape[2:]), frames.dtype)
    flat = stacks.reshape(steps * envs, *stacks.shape[2:])
    stacks[:, :, depth] = frames
    for frame in reversed(range(depth)):
        stacks[1:, :, frame] = stacks[:-1, :, frame + 1]
        flat[rows, frame] = earlier[:, frame]
    return stacks


def _as_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)


BOOTSTRAP_COLUMN = "bootstrap_observation"
STACK_SUFFIX = "_earlier_frames"
_NOTHING = memoryview(b"")
_TYPES = {"bool": pa.bool_()}


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """A stored column is an Arrow column that is ready to be laid out."""

    nodes: tuple[tuple[int, int], ...]
    """The numbers of values and nulls, outer before inner."""
    buffers: tuple[memoryview, ...]
    """The buffers are in Arrow's order; an empty one is absent. In a compressed column, all but the last are empty."""
    raw_bytes: int
    """The size of the last buffer before compression."""
    blocks: tuple[bytes, ...] = field(default=())
    """These replace the last buffer of a compressed column: frame header, blocks, frame end."""


@lru_cache(maxsize=256)
def stored_spec(spec: Spec) -> Spec:
    """Return the spec of one row of the Arrow column: for a stack, that of the last frame."""
    return Spec(spec.dtype, spec.shape[1:] if spec.stacked else spec.shape)


def arrow_type(spec: Spec) -> pa.DataType:
    """Return the Arrow column's type: fixed-shape tensors, and scalars as they are."""
    spec = stored_spec(spec)
    value = value_type(spec)
    return pa.fixed_shape_tensor(value, spec.shape) if spec.shape else value


def value_type(spec: Spec) -> pa.DataType:
    """Return the Arrow type of a single number."""
    return _TYPES.get(spec.dtype) or pa.from_numpy_dtype(np.dtype(spec.dtype))


def arrow_fields(columns: dict[str, Spec]) -> list[pa.Field]:
    """Return all Arrow columns of a shard in order: declared ones, earlier frames of stacks, bootstrap observations."""
    fields = [pa.field(name, arrow_type(spec), nullable=False) for name, spec in stored_columns(columns).items()]
    fields += [pa.field(name + STACK_SUFFIX, pa.list_(value_type(columns[name]))) for name in stacked_names(columns)]
    bootstrap = parts_of(BOOTSTRAP_COLUMN, columns["observation"])
    return [*fields, *(pa.field(name, pa.list_(value_type(spec))) for name, spec in bootstrap.items())]


def stacked_names(columns: dict[str, Spec]) -> list[str]:
    """Return the columns whose earlier frames are stored separately."""
    return [name for name, spec in columns.items() if spec.stacked]


def buffer_count(spec: Spec) -> int:
    """Return how many buffers the Arrow column has; its values are in the last one."""
    return 3 if stored_spec(spec).shape else 2


def byte_range(spec: Spec, rows: range) -> tuple[int, int]:
    """Return the uncompressed byte range of consecutive rows' values. For bits, it is rounded to whole bytes."""
    spec = stored_spec(spec)
    width = math.prod(spec.shape)
    if spec.dtype == "bool":
        return rows.start * width // 8, -(-rows.stop * width // 8)
    row_bytes = width * np.dtype(spec.dtype).itemsize
    return rows.start * row_bytes, rows.stop * row_bytes


LIST_BUFFERS = 4
"""A nullable list's buffers: validity, offsets, no validity, values."""


def store_column(spec: Spec, array: NDArray[Any]) -> tuple[StoredColumn, StoredColumn | None]:
    """Store a column `[T, B, ...]`, and its earlier frames if it is stacked. Plain columns are not copied."""
    if not spec.stacked:
        return _store_values(spec, array), None
    frames, rows, earlier = split_stacks(array)
    return _store_values(spec, frames), store_lists(earlier, rows, math.prod(array.shape[:2]))


def store_lists(values: NDArray[Any], present_rows: NDArray[np.int64], rows: int) -> StoredColumn:
    """Store a nullable list column: one entry of `values` in each of `present_rows`, which ascend."""
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

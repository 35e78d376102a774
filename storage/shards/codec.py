"""Encodes and decodes trajectory shards: one round of one tile as one Arrow IPC file that any Arrow tool can read.

Layout (`docs/storage.md` has all of it): one record batch, row `t * B + b`. Scalars are primitive columns, other
shapes fixed-shape tensors, and `bootstrap_observation` is a nullable list: it is set where a row has no successor,
because the episode or the round ended there. Schema metadata carries `ShardInfo` as JSON, the episode index included,
and checksums of everything that follows.

The buffers of the caller become the file without a copy, and a file's buffers become arrays without a copy. All columns
start at multiples of 64 bytes. Columns of bits, compressed columns and stacked frames are packed and unpacked.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.storage.digest import canonical_json, digest
from penstock.storage.errors import ConfigError, CorruptObjectError, SpecMismatchError, StoreError
from penstock.storage.shards.arrow_frame import ALIGNMENT_BYTES, write_frame
from penstock.storage.shards.blocks import BLOCK_BYTES
from penstock.storage.shards.body_layout import Body, lay_out
from penstock.storage.shards.columns import (
    BOOTSTRAP_COLUMN,
    StoredColumn,
    arrow_fields,
    store_column,
    store_lists,
    stored_spec,
    value_type,
)
from penstock.storage.shards.header import (
    BLOCKS_KEY,
    INDEX_KEY,
    INFO_KEY,
    MALFORMED,
    TAIL_PLACEHOLDER,
    ShardHead,
    ShardInfo,
    check_tail,
    format_of,
    read_head,
    tail_sum,
)
from penstock.storage.shards.leaves import (
    join_leaves,
    joined_columns,
    parts_of,
    split_leaves,
    stored_columns,
    stored_names,
)
from penstock.storage.shards.specs import Spec, signature
from penstock.storage.shards.unpack import Lists, Segments, earlier_frames, stacks, values

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

_TAIL_ENTRY = b'"tail":"%s"'

__all__ = [
    "BOOTSTRAP_COLUMN",
    "EncodedShard",
    "Shard",
    "ShardColumns",
    "ShardInfo",
    "allocate",
    "check_shard",
    "decode_shard",
    "encode_shard",
]


@dataclass(frozen=True, slots=True)
class Shard:
    """A decoded shard has views of the buffer that it was decoded from."""

    columns: dict[str, NDArray[Any]]
    """Arrays `[T, B, ...]` by name."""
    bootstrap_rows: NDArray[np.int64]
    """Rows without a successor, `[K]`, ascending."""
    bootstrap_observation: NDArray[Any]
    """Observations after these rows, `[K, ...]`."""
    info: ShardInfo


def allocate(columns: Mapping[str, Spec], steps: int, envs: int) -> dict[str, NDArray[Any]]:
    """Allocate arrays `[T, B, ...]` for a round, each starting at a multiple of 64 bytes in one slab."""
    sizes = {
        name: steps * envs * math.prod(spec.shape) * np.dtype(spec.dtype).itemsize for name, spec in columns.items()
    }
    padded = {name: -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for name, size in sizes.items()}
    slab = np.zeros(sum(padded.values()) + ALIGNMENT_BYTES, dtype=np.uint8)
    offset = -slab.ctypes.data % ALIGNMENT_BYTES
    arrays = {}
    for name, spec in columns.items():
        flat = slab[offset : offset + sizes[name]].view(spec.dtype)
        arrays[name] = flat.reshape(steps, envs, *spec.shape)
        offset += padded[name]
    return arrays


class ShardColumns:
    """Binds the columns of a shard once to arrays that every round fills again."""

    def __init__(self, columns: Mapping[str, Spec], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take the columns, including `observation`, and C-contiguous arrays `[T, B, ...]` of their types, by name.

        Raises:
            SpecMismatchError: an array has another type or shape than its column.
            ConfigError: the columns can't be in one shard: names collide, or compressions differ.
        """
        self.key = tuple(columns.items())
        self.observation = columns["observation"]
        self.shape = arrays["observation"].shape[:2]
        self.codec = _codec(columns)
        self._arrays = {name: arrays[name] for name in columns}
        for name, spec in columns.items():
            array = arrays[name]
            if array.dtype != spec.dtype or array.shape != (*self.shape, *spec.shape):
                raise SpecMismatchError(
                    f"column '{name}' is {array.dtype}{list(array.shape)}, expected {spec.dtype}"
                    f"{[*self.shape, *spec.shape]}; an algorithm's `act` must return what its `rows` declare"
                )
            if not array.flags.c_contiguous:
                raise SpecMismatchError(f"column '{name}' is not C-contiguous; copy it into an array of `allocate`'s")

    def stored(self) -> list[StoredColumn]:
        """Return all Arrow columns except the last, those of bootstrap observations.

        Raises:
            SpecMismatchError: as `split_leaves`.
        """
        columns, earlier = [], []
        for name, spec in self.key:
            arrays = split_leaves(name, spec, self._arrays[name])
            for stored, part in parts_of(name, spec).items():
                column, lists = store_column(part, arrays[stored])
                columns.append(column)
                if lists:
                    earlier.append(lists)
        return columns + earlier


@dataclass(frozen=True, slots=True)
class EncodedShard:
    """An encoded shard has its bytes and the digest for its name."""

    parts: list[memoryview]
    """The parts are in order. Large ones are the bound arrays themselves, so write before reusing them."""
    digest: str

    @property
    def nbytes(self) -> int:
        """Return the size of the whole file."""
        return sum(part.nbytes for part in self.parts)


def encode_shard(
    columns: ShardColumns,
    bootstrap_rows: NDArray[np.int64],
    bootstrap_observation: NDArray[Any],
    info: ShardInfo,
) -> EncodedShard:
    """Encode the file of a shard.

    Args:
        columns: the shard's columns, bound to arrays.
        bootstrap_rows: int64 `[K]`, ascending.
        bootstrap_observation: `[K, ...]`, of the observation's type.
        info: the shard's description of itself.

    Raises:
        SpecMismatchError: a structured column has numbers that its leaves do not hold.
    """
    rows = math.prod(columns.shape)
    bootstrap = np.ascontiguousarray(bootstrap_observation, dtype=columns.observation.dtype)
    bootstrap = bootstrap.reshape(len(bootstrap_rows), *columns.observation.shape)
    parts = split_leaves(BOOTSTRAP_COLUMN, columns.observation, bootstrap)
    stored = [*columns.stored(), *(store_lists(part, bootstrap_rows, rows) for part in parts.values())]
    body = lay_out(stored, rows, columns.codec)
    stub = _stub(columns.key)
    stub = stub.replace_schema_metadata(_metadata(info, columns.key, body, stub.schema.names))
    head, tail = write_frame(stub, body.layout)
    sum_of_tail = tail_sum(tail, TAIL_PLACEHOLDER)
    for frame in (head, tail):
        at = frame.index(_TAIL_ENTRY % TAIL_PLACEHOLDER.encode())
        frame[at : at + len(_TAIL_ENTRY) - 2 + len(sum_of_tail)] = _TAIL_ENTRY % sum_of_tail.encode()
    return EncodedShard([memoryview(head), *body.pieces, memoryview(tail)], digest(head))


def decode_shard(
    buffer: memoryview, expected: Mapping[str, Spec] | None, name: str, expected_digest: str | None
) -> Shard:
    """Read a whole shard without copying plain columns.

    Args:
        buffer: the whole file; writable if the arrays should be.
        expected: columns that it must have, or None to accept any. Their storage options do not matter.
        name: for messages.
        expected_digest: every byte is verified first, unless it is None.

    Raises:
        CorruptObjectError: altered, cut short, or no shard.
        SpecMismatchError: it has other columns.
    """
    with corrupt_on_error(name, buffer.nbytes, expected_digest):
        head = read_head(buffer, name, expected_digest)
        if buffer.nbytes < head.tail_start:
            raise ValueError(f"cut short: it needs {head.tail_start} bytes and a tail")
        if expected_digest is not None:
            _check_data(buffer, head, name)
        if expected is not None:
            check_columns(head, expected, name)
        return unpack_shard(head, Segments((0, buffer)), list(head.columns))


def check_shard(buffer: memoryview, name: str, expected_digest: str) -> None:
    """Verify every byte of a shard against the digest in its name; CorruptObjectError names both."""
    with corrupt_on_error(name, buffer.nbytes, expected_digest):
        _check_data(buffer, read_head(buffer, name, expected_digest), name)


def unpack_shard(head: ShardHead, segments: Segments, names: list[str]) -> Shard:
    """Build a shard, with all or some of its columns, from the fetched bytes."""
    info, observation = head.info, head.columns["observation"]
    rows, steps = info.steps * info.envs, range(info.steps)
    lists = {
        name: Lists(head.fields[name], segments, rows, spec)
        for name, spec in parts_of(BOOTSTRAP_COLUMN, observation).items()
    }
    found = {}
    for name in stored_names(head.columns, names):
        spec = head.stored[name]
        if spec.stacked:
            found[name] = stacks(head, segments, name, steps, earlier_frames(head, segments, name))
        else:
            found[name] = values(head, segments, name, range(rows)).reshape(info.steps, info.envs, *spec.shape)
    ends, *others = (each.rows for each in lists.values())
    if not all(np.array_equal(ends, other) for other in others):
        raise ValueError("its leaves have bootstrap observations in different rows")
    after = {name: each.read(segments, range(len(ends))) for name, each in lists.items()}
    bootstrap = join_leaves(observation, after, BOOTSTRAP_COLUMN)
    return Shard(joined_columns(head.columns, names, found), ends, bootstrap, info)


def check_columns(head: ShardHead, expected: Mapping[str, Spec], name: str) -> None:
    """Raise SpecMismatchError if a shard has other columns than expected."""
    if signature(head.columns) != signature(expected):
        raise SpecMismatchError(
            f"shard '{name}' has columns {_describe(head.columns)}, expected {_describe(expected)}; it was written by "
            f"another algorithm or environment"
        )


def _check_data(buffer: memoryview, head: ShardHead, name: str) -> None:
    for field in head.fields.values():
        content = buffer[field.start : field.stop]
        if content.nbytes < field.stop - field.start:
            raise ValueError(f"cut short: it needs {field.stop} bytes and a tail")
        field.check(content, range(len(field.edges) - 1), name)
    check_tail(buffer[head.tail_start :], head, name)


@contextmanager
def corrupt_on_error(name: str, nbytes: int, expected_digest: str | None) -> Iterator[None]:
    """Turn errors that show that bytes are not a shard into CorruptObjectError; let errors of the store pass."""
    try:
        yield
    except (CorruptObjectError, SpecMismatchError, StoreError):
        # Not "from" itself either: Dask follows the causes of a task's error without detecting cycles.
        raise
    except MALFORMED as error:
        wanted = f", expected one with the digest {expected_digest}" if expected_digest else ""
        raise CorruptObjectError(f"'{name}' ({nbytes} bytes) is not a trajectory shard{wanted}: {error}") from error


def _codec(columns: Mapping[str, Spec]) -> str | None:
    codecs = sorted({spec.compression for spec in columns.values() if spec.compression})
    if len(codecs) > 1:
        raise ConfigError(f"the columns of a shard are compressed by {' and '.join(codecs)}, expected one of them")
    names = [part for name, spec in columns.items() for part in parts_of(name, spec)]
    names += [name for name, spec in columns.items() if spec.leaves]
    names += [field.name for field in arrow_fields(dict(columns))[len(stored_columns(columns)) :]]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"a column is called {min(twice)!r}, a name that shards reserve: rename it")
    return codecs[0] if codecs else None


@lru_cache(maxsize=64)
def _stub(key: tuple[tuple[str, Spec], ...]) -> pa.RecordBatch:
    """Return one row of zeros with all Arrow columns."""
    columns = stored_columns(dict(key))
    fields = arrow_fields(dict(key))
    arrays = []
    for field in fields:
        spec = columns.get(field.name)
        if spec is None:
            offsets = pa.py_buffer(np.array([0, 1], np.int32))
            children = [_zeros(field.type.value_type, 1)]
            arrays.append(pa.Array.from_buffers(field.type, 1, [None, offsets], children=children))
            continue
        of_row = stored_spec(spec)
        zeros = _zeros(value_type(of_row), math.prod(of_row.shape))
        if of_row.shape:
            zeros = pa.ExtensionArray.from_storage(field.type, pa.FixedSizeListArray.from_arrays(zeros, len(zeros)))
        arrays.append(zeros)
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _zeros(of: pa.DataType, count: int) -> pa.Array:
    """Make zeros from bytes: `pyarrow.array` imports pandas where installed, which takes seconds in every actor."""
    return pa.Array.from_buffers(of, count, [None, pa.py_buffer(bytes(count * 8))])


@lru_cache(maxsize=64)
def _spec_json(key: tuple[tuple[str, Spec], ...]) -> tuple[list[Any], str]:
    return [[name, spec.to_json()] for name, spec in key], signature(dict(key))


def _metadata(info: ShardInfo, key: tuple[tuple[str, Spec], ...], body: Body, names: list[str]) -> dict[bytes, bytes]:
    columns, columns_signature = _spec_json(key)
    facts = {name: getattr(info, name) for name in ShardInfo.__dataclass_fields__ if name != "episodes"}
    if info.follows_round is None:  # such shards keep the bytes that they had before this field existed
        facts.pop("follows_round")
    blocks = {
        "block_bytes": BLOCK_BYTES,
        "sums": dict(zip(names, body.sums, strict=True)),
        "sizes": {name: sizes for name, sizes in zip(names, body.sizes, strict=True) if sizes},
        "tail": TAIL_PLACEHOLDER,
    }
    return {
        INFO_KEY: canonical_json(
            {"format": format_of(dict(key)), "columns": columns, "signature": columns_signature, **facts}
        ),
        INDEX_KEY: info.episodes.to_json(),
        BLOCKS_KEY: canonical_json(blocks),
    }


def _describe(columns: Mapping[str, Spec]) -> str:
    return ", ".join(f"{name}: {spec}" for name, spec in sorted(columns.items()))

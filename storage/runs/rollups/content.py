"""Encodes shard references as Arrow tables, and roll-ups, which keep those of a span of commits in one file.

Commits are read without this module, since pyarrow takes longer to import than a log to read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.storage.digest import canonical_json, digest, parse_json
from penstock.storage.errors import CorruptObjectError
from penstock.storage.refs import ShardRef, check_ref

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.storage.runs.rollups.names import Span

_FORMAT = b"penstock-rollup/2"
SHARD_SCHEMA = pa.schema(
    [
        ("stage", pa.int64()),
        ("name", pa.string()),
        ("digest", pa.string()),
        ("nbytes", pa.int64()),
        ("round", pa.int64()),
        ("tile", pa.int64()),
        ("rows", pa.int64()),
    ]
)
"""A row for every shard: its reference, and the stage whose commit names it."""
_REF_COLUMNS = SHARD_SCHEMA.names[1:]


def shard_table(stage: int, shards: Sequence[ShardRef]) -> pa.Table:
    """Return a commit's shards as a table of `SHARD_SCHEMA`."""
    columns = {name: [getattr(shard, name) for shard in shards] for name in _REF_COLUMNS}
    return pa.table({"stage": [stage] * len(shards), **columns}, schema=SHARD_SCHEMA)


def concat_tables(tables: Sequence[pa.Table]) -> pa.Table:
    """Return one table of all rows, in order; without tables it is empty."""
    return pa.concat_tables([SHARD_SCHEMA.empty_table(), *tables])


def refs_of(table: pa.Table) -> Iterator[ShardRef]:
    """Yield the rows as references.

    Raises:
        CorruptObjectError: a row names something else than a shard.
    """
    for batch in table.select(_REF_COLUMNS).to_batches(max_chunksize=65536):
        refs = map(ShardRef, *(column.to_pylist() for column in batch.columns))
        for ref in refs:
            check_ref(ref)
            yield ref


def encode_rollup(table: pa.Table, span: Span, parent: str, commit: str) -> bytes:
    """Return the file's bytes, the same for the same arguments.

    Args:
        table: rows of `SHARD_SCHEMA`, in order of stage.
        span: the span that it covers.
        parent: the digest that the span's first commit names as its parent.
        commit: the digest of the span's last commit.
    """
    table = table.combine_chunks()
    facts = {"first": span.first, "last": span.last, "parent": parent, "commit": commit}
    metadata = {b"format": _FORMAT, b"span": canonical_json(facts), b"content": _content(table, facts).encode()}
    table = table.replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def decode_rollup(data: bytes, span: Span, commit: str) -> tuple[pa.Table, str]:
    """Return the shards of a roll-up, and the digest of the commit before its span.

    Args:
        data: the file's bytes.
        span: the span in its name.
        commit: the digest of the span's last commit.

    Raises:
        CorruptObjectError: altered, cut short, or of another history.
    """
    try:
        with pa.ipc.open_file(pa.BufferReader(data)) as reader:
            table = reader.read_all().combine_chunks()
        table.validate(full=True)
        metadata = table.schema.metadata or {}
        facts = parse_json(metadata.get(b"span", b"{}"))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptObjectError(f"'{span.name}' is not an intact roll-up: {error}. It may be removed") from error
    nulls = any(column.null_count for column in table.columns)
    if metadata.get(b"format") != _FORMAT or not table.schema.equals(SHARD_SCHEMA) or nulls:
        raise CorruptObjectError(f"'{span.name}' is not a roll-up, expected {_FORMAT.decode()}. It may be removed")
    expected = {"first": span.first, "last": span.last, "commit": commit}
    if not isinstance(facts, dict) or not isinstance(facts.get("parent"), str) or facts != {**facts, **expected}:
        raise CorruptObjectError(
            f"'{span.name}' belongs to another history: it has {facts}, expected {expected}. It may be removed"
        )
    if metadata.get(b"content") != _content(table, facts).encode():
        raise CorruptObjectError(f"'{span.name}' was altered: its content has another digest. It may be removed")
    return table.replace_schema_metadata(None), facts["parent"]


def _content(table: pa.Table, facts: Mapping[str, Any]) -> str:
    """Return the digest of all values and of the metadata; each column of `table` is one chunk."""
    parts = [memoryview(canonical_json({**facts, "rows": table.num_rows}))]
    parts += [view for column in table.columns for chunk in column.chunks for view in _values(chunk)]
    return digest(*parts)


def _values(array: pa.Array) -> list[memoryview]:
    """Return the bytes of a column's values alone: Arrow's buffers may be longer, and differ between writers."""
    if not len(array):
        return []
    if not pa.types.is_string(array.type):
        return [memoryview(array.to_numpy()).cast("B")]
    lengths = pc.binary_length(array)
    _, offsets, data = array.buffers()
    start = int(np.frombuffer(offsets, np.int32, 1, 4 * array.offset)[0])
    total = pc.sum(lengths).as_py()
    return [memoryview(lengths.to_numpy()).cast("B"), memoryview(data).cast("B")[start : start + total]]

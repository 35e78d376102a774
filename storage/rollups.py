"""Roll-ups: all shards that commits 0..n name, in one Arrow file, so that a replay's plan is a few reads.

Derived from the commits, and bound to the digest of the newest of them: one that doesn't fit is not used.
"""

from __future__ import annotations

import re

import pyarrow as pa

from storage.digest import canonical_json, digest
from storage.errors import CorruptObjectError
from storage.refs import ShardRef

_FORMAT = b"penstock-rollup/1"
_SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("digest", pa.string()),
        ("nbytes", pa.int64()),
        ("round", pa.int64()),
        ("tile", pa.int64()),
        ("rows", pa.int64()),
    ]
)
_NAME = re.compile(r"commits/rollup-(\d{8,})\.arrow")


def rollup_name(stage: int) -> str:
    """`commits/rollup-<stage>.arrow`."""
    return f"commits/rollup-{stage:08d}.arrow"


def rollup_stage(name: str) -> int | None:
    """The last stage that a roll-up of that name covers; None if it is no roll-up's name."""
    matched = _NAME.fullmatch(name)
    return int(matched[1]) if matched else None


def encode_rollup(refs: list[ShardRef], stage: int, commit: str) -> bytes:
    """The file's bytes.

    Args:
        refs: in order of stage.
        stage: the last one covered.
        commit: the digest of that stage's commit.
    """
    columns = _columns(refs)
    metadata = {
        b"format": _FORMAT,
        b"stage": str(stage).encode(),
        b"commit": commit.encode(),
        b"content": _content(columns).encode(),
    }
    table = pa.table(columns, schema=_SCHEMA.with_metadata(metadata))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def decode_rollup(data: bytes, name: str, commit: str) -> list[ShardRef]:
    """The shards of a roll-up.

    Args:
        data: the file's bytes.
        name: of the object.
        commit: the digest of the commit that it must end with.

    Raises:
        CorruptObjectError: altered, cut short, or of another history.
    """
    try:
        with pa.ipc.open_file(pa.BufferReader(data)) as reader:
            table = reader.read_all()
        table.validate(full=True)
        metadata = table.schema.metadata or {}
        columns = table.to_pydict()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptObjectError(f"'{name}' is no intact roll-up: {error}. It may be removed") from error
    if metadata.get(b"format") != _FORMAT or not table.schema.equals(_SCHEMA):
        raise CorruptObjectError(f"'{name}' is no roll-up of ours, expected {_FORMAT.decode()}. It may be removed")
    if metadata.get(b"commit") != commit.encode():
        raise CorruptObjectError(f"'{name}' does not end with commit {commit}, but another history. It may be removed")
    if metadata.get(b"content") != _content(columns).encode():
        raise CorruptObjectError(f"'{name}' was altered: its content has another digest. It may be removed")
    return [ShardRef(**row) for row in table.to_pylist()]


def _columns(refs: list[ShardRef]) -> dict[str, list[str | int]]:
    return {name: [getattr(ref, name) for ref in refs] for name in _SCHEMA.names}


def _content(columns: dict[str, list[str | int]]) -> str:
    return digest(canonical_json(columns))

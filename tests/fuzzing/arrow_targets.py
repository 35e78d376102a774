"""Targets for Arrow files: shards, read whole and in parts; roll-ups and plans.

Their digests are in names or in the files, so inputs are given the digests that belong to their content.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.storage.digest import digest
from penstock.storage.errors import CorruptObjectError
from penstock.storage.refs import ShardRef
from penstock.storage.runs.rollups.content import decode_rollup, encode_rollup, refs_of
from penstock.storage.runs.rollups.names import Span
from penstock.storage.shards.arrow_frame import read_frame
from penstock.storage.shards.codec import MALFORMED, Shard, ShardColumns, decode_shard, encode_shard
from penstock.storage.shards.header import BLOCKS_KEY, INDEX_KEY, INFO_KEY
from penstock.storage.shards.reader import ShardReader, open_buffer
from penstock.storage.shards.specs import Spec
from penstock.tasks.data.replay.plan import ReplayPlan

from .mutators import changed_json, mutate_bytes
from .target import GOLDEN, MemoryStore, Target, golden

if TYPE_CHECKING:
    from random import Random

SPAN = Span(0, 1)
NAME = "shards/00000002/00000021-0003-{}.arrow"


def view(data: bytes) -> memoryview:
    return memoryview(bytearray(data))


def mutate_shard(data: bytes, random: Random) -> bytes:
    """Change one of the JSON texts in a shard's metadata; all positions are relative, so the rest stays as it is."""
    if random.random() < 0.4:
        return mutate_bytes(data, random)
    try:
        frame = read_frame(data)
        schema = pa.ipc.read_schema(pa.py_buffer(frame.schema_message))
        key = random.choice((INFO_KEY, INFO_KEY, INDEX_KEY, BLOCKS_KEY))
        value, raw = changed_json(json.loads(schema.metadata[key]), random)
        text = json.dumps(value, sort_keys=True, separators=(",", ":")).replace('"@raw@"', raw)
        metadata = {**schema.metadata, key: text.encode("utf-8", "surrogatepass")}
    except (*MALFORMED, OSError, RecursionError):
        return mutate_bytes(data, random)
    stop = 8 + len(frame.schema_message)
    return data[:8] + schema.with_metadata(metadata).serialize().to_pybytes() + data[stop:]


def own_digest(data: bytes) -> str:
    """Return the digest of an input's head, which a hostile writer would put into the name."""
    try:
        return digest(memoryview(data)[: read_frame(data).head_bytes])
    except MALFORMED:
        return "0" * 32


def verified_shard(data: bytes) -> Shard:
    return decode_shard(view(data), None, "shard", own_digest(data))


def check_shard(shard: Shard, data: bytes) -> None:
    """The same columns, encoded without compression, are read as the same values."""
    columns = {name: Spec(str(array.dtype), array.shape[2:]) for name, array in shard.columns.items()}
    arrays = {name: array.copy() for name, array in shard.columns.items()}
    if any(0 in array.shape for array in arrays.values()) or not shard.info.episodes.return_.size:
        return
    encoded = encode_shard(ShardColumns(columns, arrays), shard.bootstrap_rows, shard.bootstrap_observation, shard.info)
    again = decode_shard(view(b"".join(encoded.parts)), columns, "again", encoded.digest)
    assert {name: array.tobytes() for name, array in again.columns.items()} == {
        name: array.tobytes() for name, array in arrays.items()
    }
    assert again.info.episodes.to_json() == shard.info.episodes.to_json()


def opened(data: bytes) -> ShardReader:
    """Read every part of a shard: an index, steps, an episode, what followed the rows without a successor."""
    name = own_digest(data)
    ref = ShardRef(NAME.format(name), name, len(data), 21, 3, 0)
    store: Any = MemoryStore({ref.name: data})
    shard = open_buffer(store, ref, view(data))
    names, steps = list(shard.specs), shard.info.steps
    shard.steps(steps // 2, steps, names)
    if len(shard.info.episodes):
        shard.episode(0, names)
    shard.bootstrap()
    return shard


ROLLUP = golden("files/log/commits/rollup-00000000-00000001.arrow")[0]
with pa.ipc.open_file(pa.BufferReader(ROLLUP)) as _reader:
    ROLLUP_COMMIT = json.loads(_reader.schema.metadata[b"span"])["commit"]


def rollup_of(data: bytes) -> tuple[pa.Table, str]:
    """Read a roll-up and its references, as a replay's plan does."""
    table, parent = decode_rollup(data, SPAN, ROLLUP_COMMIT)
    list(refs_of(table))
    return table, parent


def check_rollup(found: tuple[pa.Table, str], data: bytes) -> None:
    table, parent = found
    again, parent_again = decode_rollup(encode_rollup(table, SPAN, parent, ROLLUP_COMMIT), SPAN, ROLLUP_COMMIT)
    assert again.equals(table)
    assert parent_again == parent


def mutate_table(data: bytes, random: Random) -> bytes:
    """Change a cell, a column or the metadata of an Arrow file, and write it as a file again."""
    if random.random() < 0.5:
        return mutate_bytes(data, random)
    try:
        with pa.ipc.open_file(pa.BufferReader(data)) as reader:
            table = reader.read_all()
        table.validate(full=True)
        columns = table.to_pydict()
        name = random.choice(list(columns))
        cells, raw = changed_json(columns[name], random)
        columns[name] = [raw if cell == "@raw@" else cell for cell in cells]
        if random.random() < 0.2:
            columns[raw[:20]] = columns.pop(name)
        schema = table.schema if random.random() < 0.7 else None
        changed = pa.table(columns, schema=schema)
        if random.random() < 0.5 and changed.schema.equals(table.schema):
            return encode_rollup(changed, SPAN, "0" * 32, ROLLUP_COMMIT)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, changed.replace_schema_metadata(table.schema.metadata).schema) as writer:
            writer.write_table(changed.replace_schema_metadata(table.schema.metadata))
        return bytes(sink.getvalue())
    except (pa.ArrowException, ValueError, KeyError, TypeError, OverflowError, RecursionError, OSError, IndexError):
        return mutate_bytes(data, random)


def plan_of(data: bytes) -> ReplayPlan:
    """Read a plan and each of its shards."""
    plan = ReplayPlan.decode(data, "plan", digest(data))
    for index in range(len(plan)):
        plan[index]
    return plan


def check_plan(plan: ReplayPlan, data: bytes) -> None:
    encoded = plan.encode()
    again = ReplayPlan.decode(encoded, "plan", digest(encoded))
    assert [again[index] for index in range(len(again))] == [plan[index] for index in range(len(plan))]


SHARDS = golden(*(f"files/{path.name}" for path in sorted((GOLDEN / "files").glob("shard-*.arrow"))))
PLANS = golden(*(str(path.relative_to(GOLDEN)) for path in (GOLDEN / "replayed" / "replay").iterdir()))
REFUSED = (CorruptObjectError,)
ARROW_TARGETS = (
    Target("shard", verified_shard, SHARDS, REFUSED, check_shard, mutate_shard),
    Target("shard-unverified", lambda data: decode_shard(view(data), None, "shard", None), SHARDS, REFUSED,
           mutate=mutate_shard),
    Target("shard-parts", opened, SHARDS, REFUSED, mutate=mutate_shard),
    Target("rollup", rollup_of, (ROLLUP,), REFUSED, check_rollup, mutate_table),
    Target("plan", plan_of, PLANS, REFUSED, check_plan, mutate_table),
)  # fmt: skip

"""The head of a shard: what it says of itself, where its columns lie, and their checksums.

The digest in a shard's name is that of its head alone. The head has checksums of everything behind it, so a part of a
shard is as well protected as the whole.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import orjson
import pyarrow as pa

from storage.checksums import BLOCK_BYTES, SUM_BYTES, block_sums, checksum
from storage.columns import LIST_BUFFERS, arrow_fields, buffer_count, byte_range
from storage.compression import frame_end, frame_header
from storage.digest import digest
from storage.episodes import Episodes
from storage.errors import CorruptObjectError, PenstockError
from storage.framing import PREFIX_BYTES, Frame, TruncatedError, read_frame
from storage.specs import Spec

FORMAT = "penstock-shard/2"
INFO_KEY = b"penstock.shard"
INDEX_KEY = b"penstock.episodes"
BLOCKS_KEY = b"penstock.blocks"
TAIL_PLACEHOLDER = " " * (2 * SUM_BYTES)
"""Stands for the tail's checksum where that is taken: the tail repeats the metadata that holds it."""

ADVICE = "it was altered or cut short. Resume the run: a round that no commit names is acted again"

MALFORMED = (
    pa.ArrowException,
    ValueError,
    AttributeError,
    KeyError,
    TypeError,
    IndexError,
    OverflowError,
    struct.error,
    PenstockError,
)
"""What reading something that is no shard may raise."""


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """What a shard says of itself."""

    run_seed: int
    stage: int
    round: int
    tile: int
    steps: int
    """T: rows of one environment."""
    envs: int
    """B: environments of the tile."""
    min_policy_version: int
    """The oldest that acted in it; a shard that is too old for a learner is known by these two."""
    max_policy_version: int
    environment: str
    environment_config: dict[str, Any]
    episodes: Episodes
    follows_round: int | None = None
    """Only where a tile may leave rounds out: the one that it acted before this one, -1 if it is its first."""

    @property
    def round_before(self) -> int:
        """The round that the tile's environments were in before this one; -1 if there was none."""
        return self.round - 1 if self.follows_round is None else self.follows_round


@dataclass(frozen=True, slots=True)
class Field:
    """Where an Arrow column lies in the file, and its checksums."""

    name: str
    start: int
    """In the file, of its first block."""
    stop: int
    """Where the next column begins."""
    buffers: tuple[tuple[int, int], ...]
    """Of each buffer: where its content begins in the file, behind the length that may be in front of it, and how long
    it is."""
    sums: bytes
    edges: tuple[int, ...]
    """Where its blocks begin in the file, and where the last one ends."""
    sizes: tuple[int, ...] | None
    """Of its compressed blocks; None for a plain column."""
    codec: str | None
    raw_bytes: int
    """Of the values, before compression."""

    @property
    def values_at(self) -> tuple[int, int]:
        """Where the values begin in the file, and how long they are there."""
        return self.buffers[-1]

    def chunk(self, index: int) -> tuple[int, int]:
        """Where a compressed block's own bytes lie in the file, without what is in front and behind."""
        start = self.edges[index]
        if index == 0:
            start = self.values_at[0] + len(frame_header(self.codec or ""))
        return start, start + (self.sizes or ())[index]

    def blocks_of(self, start: int, stop: int) -> range:
        """The blocks with bytes `[start, stop)` of the file; of the values before compression, if it is compressed."""
        if start >= stop:
            return range(0)
        if self.sizes is None:
            return range((start - self.start) // BLOCK_BYTES, (stop - 1 - self.start) // BLOCK_BYTES + 1)
        return range(start // BLOCK_BYTES, (stop - 1) // BLOCK_BYTES + 1)

    def check(self, content: memoryview, blocks: range, name: str) -> None:
        """Compare the bytes of consecutive blocks with their checksums; CorruptObjectError names the shard."""
        edges = self.edges
        sizes = [edges[block + 1] - edges[block] for block in blocks]
        found = block_sums([content], sizes)
        if found == self.sums[blocks.start * SUM_BYTES : blocks.stop * SUM_BYTES]:
            return
        for index, block in enumerate(blocks):
            found_sum = found[index * SUM_BYTES : (index + 1) * SUM_BYTES]
            expected_sum = self.sums[block * SUM_BYTES : (block + 1) * SUM_BYTES]
            if found_sum != expected_sum:
                raise CorruptObjectError(
                    f"shard '{name}', column '{self.name}', bytes {edges[block]} to {edges[block + 1]} sum to "
                    f"{found_sum.hex()}, expected {expected_sum.hex()}: {ADVICE}"
                )


@dataclass(frozen=True, slots=True)
class ShardHead:
    """Everything but the data."""

    info: ShardInfo
    columns: dict[str, Spec]
    fields: dict[str, Field]
    """By Arrow column."""
    nbytes: int
    """Of the head itself: where the first column begins."""
    tail_start: int
    """In the file."""
    tail_sum: str


def read_head(content: memoryview, name: str, expected_digest: str | None) -> ShardHead:
    """Read the head of a shard from the first bytes of its file.

    Args:
        content: those bytes; as many as there are.
        name: for messages.
        expected_digest: the one in the shard's name, compared before anything is made of the head; None to trust it.

    Raises:
        TruncatedError: the head is longer than that; says how many bytes would go further.
        CorruptObjectError: it has another digest.
        Exception: another of `MALFORMED`: it is no shard.
    """
    frame = read_frame(content)
    if content.nbytes < frame.head_bytes:
        raise TruncatedError(frame.head_bytes)
    found = digest(content[: frame.head_bytes])
    if expected_digest is not None and found != expected_digest:
        raise CorruptObjectError(f"shard '{name}' has the digest {found}, expected {expected_digest}: {ADVICE}")
    schema = frame.schema()
    metadata = schema.metadata or {}
    facts = orjson.loads(metadata[INFO_KEY])
    if (written := facts.pop("format")) != FORMAT:
        raise ValueError(f"its format is {written!r}, expected {FORMAT!r}")
    columns, declared = _declared(orjson.dumps(facts.pop("columns")))
    facts.pop("signature")
    if not schema.equals(declared):
        raise ValueError("its Arrow columns are not those that its metadata declares")
    blocks = orjson.loads(metadata[BLOCKS_KEY])
    if blocks["block_bytes"] != BLOCK_BYTES:
        raise ValueError(f"its blocks have {blocks['block_bytes']} bytes, expected {BLOCK_BYTES}")
    info = ShardInfo(**facts, episodes=Episodes.from_json(metadata[INDEX_KEY]))
    if frame.layout.rows != info.steps * info.envs:
        raise ValueError(f"it has {frame.layout.rows} rows, expected {info.steps} x {info.envs}")
    return ShardHead(
        info,
        dict(columns),
        _fields(frame, schema.names, columns, blocks),
        frame.head_bytes,
        frame.body_stop,
        blocks["tail"],
    )


@lru_cache(maxsize=64)
def _declared(columns_json: bytes) -> tuple[dict[str, Spec], pa.Schema]:
    """The columns that metadata declares, and the schema that they make: the same for all shards of a run."""
    columns = {name: Spec.from_json(spec) for name, spec in orjson.loads(columns_json)}
    return columns, pa.schema(arrow_fields(columns))


def check_tail(tail: memoryview, head: ShardHead, name: str) -> None:
    """Compare what lies behind the data with its checksum in the head."""
    if tail_sum(bytes(tail), head.tail_sum) != head.tail_sum:
        raise CorruptObjectError(f"shard '{name}' is altered or cut short behind byte {head.tail_start}: {ADVICE}")


def tail_sum(tail: bytes | bytearray, own: str) -> str:
    """The checksum of a tail, in which `own` is that checksum, or the placeholder."""
    blank = tail.replace(own.encode(), TAIL_PLACEHOLDER.encode(), 1)
    return checksum(memoryview(blank)).hex()


def _fields(frame: Frame, names: list[str], columns: dict[str, Spec], blocks: dict[str, Any]) -> dict[str, Field]:
    counts = [buffer_count(spec) for spec in columns.values()]
    counts += [LIST_BUFFERS] * (len(names) - len(columns))
    edges = list(accumulate(counts, initial=0))
    buffers = frame.layout.buffers
    if edges[-1] != len(buffers):
        raise ValueError(f"it has {len(buffers)} buffers, expected {edges[-1]}")
    starts = [frame.body_start + buffers[edge][0] for edge in edges[:-1]] + [frame.body_stop]
    prefix = PREFIX_BYTES if frame.layout.codec else 0
    fields = {}
    for name, (first, last), (start, stop) in zip(names, pairwise(edges), pairwise(starts), strict=True):
        spec = columns.get(name)
        sizes = tuple(blocks["sizes"][name]) if spec and spec.compression else None
        places = tuple(
            (frame.body_start + offset + prefix, length - prefix) if length else (frame.body_start + offset, 0)
            for offset, length in buffers[first:last]
        )
        codec = frame.layout.codec if sizes else None
        if sizes:
            first_block = places[-1][0] + len(frame_header(codec or ""))
            edges_of = (start, *list(accumulate(sizes[:-1], initial=first_block))[1:], stop)
        else:
            edges_of = (*range(start, stop, BLOCK_BYTES), stop)
        sums = bytes.fromhex(blocks["sums"][name])
        raw_bytes = byte_range(spec, range(frame.layout.rows))[1] if spec else places[-1][1]
        fields[name] = Field(name, start, stop, places, sums, edges_of, sizes, codec, raw_bytes)
        _validate(fields[name])
    return fields


def _validate(field: Field) -> None:
    """What a read relies on, also where no digest vouches for it."""
    count = len(field.edges) - 1
    if count * SUM_BYTES != len(field.sums) or field.start > field.stop:
        raise ValueError(f"column '{field.name}' has {len(field.sums) // SUM_BYTES} checksums, expected {count}")
    if any(start < field.start or start + length > field.stop for start, length in field.buffers):
        raise ValueError(f"column '{field.name}' lies outside of its bytes {field.start} to {field.stop}")
    at, nbytes = field.values_at
    if field.sizes is None:
        if nbytes != field.raw_bytes:
            raise ValueError(f"column '{field.name}' has {nbytes} bytes, expected {field.raw_bytes}")
    else:
        codec = field.codec or ""
        framed = len(frame_header(codec)) + sum(field.sizes) + len(frame_end(codec))
        if framed != nbytes or len(field.sizes) != -(-field.raw_bytes // BLOCK_BYTES) or min(field.sizes) < 1:
            raise ValueError(f"column '{field.name}' has {nbytes} compressed bytes at {at}, expected {framed}")

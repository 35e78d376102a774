"""Parses and verifies the head of a shard: its description, its columns' positions and their checksums.

The digest in a shard's name covers its head alone. The head has checksums of everything behind it, so a part of a
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

from penstock.storage.digest import digest, parse_json
from penstock.storage.errors import CorruptObjectError, PenstockError
from penstock.storage.shards.arrow_frame import PREFIX_BYTES, Frame, TruncatedError, read_frame
from penstock.storage.shards.blocks import BLOCK_BYTES, SUM_BYTES, block_sums, checksum, frame_end, frame_header
from penstock.storage.shards.columns import LIST_BUFFERS, arrow_fields, buffer_count, byte_range
from penstock.storage.shards.episode_index import Episodes
from penstock.storage.shards.leaves import stored_columns
from penstock.storage.shards.specs import Spec

FORMAT = "penstock-shard/2"
STRUCTURED_FORMAT = "penstock-shard/3"
"""A shard with a structured column; others keep the format, and the bytes, that they had before there were any."""
INFO_KEY = b"penstock.shard"
INDEX_KEY = b"penstock.episodes"
BLOCKS_KEY = b"penstock.blocks"
TAIL_PLACEHOLDER = " " * (2 * SUM_BYTES)
"""This replaces the tail's checksum while it is computed: the tail repeats the metadata that contains it."""

_NUMBERS = ("run_seed", "stage", "round", "tile", "steps", "envs", "min_policy_version", "max_policy_version")

RESUME_ADVICE = "Resume the run: a round that no commit names is acted again"
ADVICE = f"it was altered or cut short. {RESUME_ADVICE}"


def without_resuming(error: Exception) -> str:
    """Return an error's text without the advice to resume, for objects that no resume makes again."""
    return str(error).removesuffix(f". {RESUME_ADVICE}")


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
"""Reading something that is not a shard may raise these."""


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """A shard describes itself by these facts."""

    run_seed: int
    stage: int
    round: int
    tile: int
    steps: int
    """T, the rows of one environment."""
    envs: int
    """B, the environments of the tile."""
    min_policy_version: int
    """The oldest version that acted in it; a learner recognises a shard that is too old by these two."""
    max_policy_version: int
    environment: str
    environment_config: dict[str, Any]
    episodes: Episodes
    follows_round: int | None = None
    """Only if a tile may skip rounds: the round that it acted before this one, -1 if this is its first."""

    @property
    def round_before(self) -> int:
        """Return the round that the tile acted before this one; -1 if there was none."""
        return self.round - 1 if self.follows_round is None else self.follows_round


@dataclass(frozen=True, slots=True)
class Field:
    """A field describes an Arrow column's position in the file and its checksums."""

    name: str
    start: int
    """The position of its first block in the file."""
    stop: int
    """The position of the next column."""
    buffers: tuple[tuple[int, int], ...]
    """For each buffer: the position of its content in the file, behind the length that may precede it, and its size."""
    sums: bytes
    edges: tuple[int, ...]
    """The positions of its blocks in the file, and the end of the last one."""
    sizes: tuple[int, ...] | None
    """The lengths of its compressed blocks; None for a plain column."""
    codec: str | None
    raw_bytes: int
    """The size of the values before compression."""

    @property
    def values_at(self) -> tuple[int, int]:
        """Return the position of the values in the file, and their size there."""
        return self.buffers[-1]

    def chunk(self, index: int) -> tuple[int, int]:
        """Return the range of a compressed block's own bytes in the file, without those in front and behind."""
        start = self.edges[index]
        if index == 0:
            start = self.values_at[0] + len(frame_header(self.codec or ""))
        return start, start + (self.sizes or ())[index]

    def blocks_of(self, start: int, stop: int) -> range:
        """Return the blocks with bytes `[start, stop)` of the file, or of a compressed column's uncompressed values."""
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
    """The head of a shard has everything except the data."""

    info: ShardInfo
    columns: dict[str, Spec]
    stored: dict[str, Spec]
    """The columns with those of leaves in place of structured ones."""
    fields: dict[str, Field]
    """The fields by Arrow column."""
    nbytes: int
    """The size of the head, which is the position of the first column."""
    tail_start: int
    """The position of the tail in the file."""
    tail_sum: str


def read_head(content: memoryview, name: str, expected_digest: str | None) -> ShardHead:
    """Read the head of a shard from the first bytes of its file.

    Args:
        content: those bytes, as many as are available.
        name: for messages.
        expected_digest: the one in the shard's name, compared before the head is parsed; None to trust it.

    Raises:
        TruncatedError: the head is longer; its `needed` says how many bytes would get further.
        CorruptObjectError: it has another digest.
        Exception: any other of `MALFORMED`: it is not a shard.
    """
    frame = read_frame(content)
    if content.nbytes < frame.head_bytes:
        raise TruncatedError(frame.head_bytes)
    found = digest(content[: frame.head_bytes])
    if expected_digest is not None and found != expected_digest:
        raise CorruptObjectError(f"shard '{name}' has the digest {found}, expected {expected_digest}: {ADVICE}")
    schema = frame.schema()
    metadata = schema.metadata or {}
    facts = parse_json(metadata[INFO_KEY])
    if (written := facts.pop("format")) not in (FORMAT, STRUCTURED_FORMAT):
        raise ValueError(f"its format is {written!r}, expected {FORMAT!r} or {STRUCTURED_FORMAT!r}")
    columns, declared = _declared(orjson.dumps(facts.pop("columns")))
    if format_of(columns) != written:
        raise ValueError(f"its format is {written!r}, and that of its columns is {format_of(columns)!r}")
    facts.pop("signature")
    if not schema.equals(declared):
        raise ValueError("its Arrow columns are not those that its metadata declares")
    blocks = parse_json(metadata[BLOCKS_KEY])
    if blocks["block_bytes"] != BLOCK_BYTES:
        raise ValueError(f"its blocks have {blocks['block_bytes']} bytes, expected {BLOCK_BYTES}")
    info = ShardInfo(**facts, episodes=Episodes.from_json(metadata[INDEX_KEY]))
    if any(type(getattr(info, name)) is not int for name in _NUMBERS) or min(info.steps, info.envs) < 1:
        raise ValueError(f"its numbers are {facts}, expected whole ones, and steps and environments")
    if frame.layout.rows != info.steps * info.envs:
        raise ValueError(f"it has {frame.layout.rows} rows, expected {info.steps} x {info.envs}")
    row, length = info.episodes.row, info.episodes.length
    if len(row) and not (0 <= row.min() <= row.max() < frame.layout.rows and length.min() >= 1):
        raise ValueError(f"its episodes end in rows {row} after {length} steps, expected rows of {frame.layout.rows}")
    stored = stored_columns(columns)
    return ShardHead(
        info,
        dict(columns),
        stored,
        _fields(frame, schema.names, stored, blocks),
        frame.head_bytes,
        frame.body_stop,
        blocks["tail"],
    )


def format_of(columns: dict[str, Spec]) -> str:
    """Return the format of a shard with these columns."""
    return STRUCTURED_FORMAT if any(spec.leaves for spec in columns.values()) else FORMAT


@lru_cache(maxsize=64)
def _declared(columns_json: bytes) -> tuple[dict[str, Spec], pa.Schema]:
    """Return the columns that metadata declares, and their schema: the same for all shards of a run."""
    columns = {name: Spec.from_json(spec) for name, spec in orjson.loads(columns_json)}
    return columns, pa.schema(arrow_fields(columns))


def check_tail(tail: memoryview, head: ShardHead, name: str) -> None:
    """Compare the bytes behind the data with their checksum in the head."""
    if tail_sum(bytes(tail), head.tail_sum) != head.tail_sum:
        raise CorruptObjectError(f"shard '{name}' is altered or cut short behind byte {head.tail_start}: {ADVICE}")


def tail_sum(tail: bytes | bytearray, own: str) -> str:
    """Compute the checksum of a tail, in which `own` is that checksum, or the placeholder."""
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
        sums = bytes.fromhex(blocks["sums"][name])
        if sizes:
            first_block = places[-1][0] + len(frame_header(codec or ""))
            edges_of = (start, *list(accumulate(sizes[:-1], initial=first_block))[1:], stop)
        else:
            # As many as there are checksums: the positions are not verified yet, and may be terabytes apart.
            edges_of = (*range(start, stop, BLOCK_BYTES)[: len(sums) // SUM_BYTES + 1], stop)
        raw_bytes = byte_range(spec, range(frame.layout.rows))[1] if spec else places[-1][1]
        fields[name] = Field(name, start, stop, places, sums, edges_of, sizes, codec, raw_bytes)
        _validate(fields[name])
    return fields


def _validate(field: Field) -> None:
    """Check everything that a read relies on, also where no digest vouches for it."""
    count = len(field.edges) - 1
    if count * SUM_BYTES != len(field.sums) or field.start > field.stop:
        raise ValueError(f"column '{field.name}' has {len(field.sums) // SUM_BYTES} checksums, expected {count}")
    if any(start < field.start or start + length > field.stop for start, length in field.buffers):
        raise ValueError(f"column '{field.name}' is outside of its bytes {field.start} to {field.stop}")
    at, nbytes = field.values_at
    if field.sizes is None:
        if nbytes != field.raw_bytes:
            raise ValueError(f"column '{field.name}' has {nbytes} bytes, expected {field.raw_bytes}")
    else:
        codec = field.codec or ""
        framed = len(frame_header(codec)) + sum(field.sizes) + len(frame_end(codec))
        if framed != nbytes or len(field.sizes) != -(-field.raw_bytes // BLOCK_BYTES) or min(field.sizes) < 1:
            raise ValueError(f"column '{field.name}' has {nbytes} compressed bytes at {at}, expected {framed}")

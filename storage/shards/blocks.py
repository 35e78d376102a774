"""Compresses columns so that any Arrow tool opens them and a part can be read.

Arrow requires one LZ4 frame, or ZSTD frames, per buffer. Both consist of independent blocks here, each of
`BLOCK_BYTES` of the column, so that a few rows can be decompressed without the rest.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import xxhash

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.storage.digest import Buffer


BLOCK_BYTES = 1 << 18
SUM_BYTES = 16


def checksum(*pieces: memoryview) -> bytes:
    """Return XXH3-128 of the concatenated pieces."""
    if len(pieces) == 1:
        return xxhash.xxh3_128_digest(pieces[0])
    hasher = xxhash.xxh3_128()
    for piece in pieces:
        hasher.update(piece)
    return hasher.digest()


def block_sums(pieces: Sequence[memoryview], sizes: Iterable[int] | None = None) -> bytes:
    """Return the joined checksums of consecutive blocks of the concatenated pieces.

    Args:
        pieces: these are not joined in memory.
        sizes: of the blocks, `BLOCK_BYTES` each if None; the last one may be shorter.
    """
    next_size = iter(sizes if sizes is not None else repeat(BLOCK_BYTES))
    blocks: list[list[memoryview]] = []
    missing = 0
    for piece in pieces:
        at = 0
        while at < piece.nbytes:
            if not missing:
                missing = next(next_size)
                blocks.append([])
            part = piece[at : at + missing]
            blocks[-1].append(part)
            at += part.nbytes
            missing -= part.nbytes
    return b"".join(checksum(*block) for block in blocks)


_ZSTD_LEVEL = 1
# LZ4's frame format, 1.6: version 1, blocks that do not depend on each other, of at most 256 KiB, no checksums.
_LZ4_DESCRIPTOR = bytes([0b0110_0000, 5 << 4])
_LZ4_HEADER = (
    struct.pack("<I", 0x184D2204) + _LZ4_DESCRIPTOR + bytes([xxhash.xxh32_intdigest(_LZ4_DESCRIPTOR) >> 8 & 0xFF])
)
_LZ4_END = bytes(4)
_LZ4_STORED = 1 << 31


def frame_header(codec: str) -> bytes:
    """Return the bytes in front of the first block."""
    return _LZ4_HEADER if codec == "lz4" else b""


def frame_end(codec: str) -> bytes:
    """Return the bytes behind the last block."""
    return _LZ4_END if codec == "lz4" else b""


def compress_blocks(data: memoryview, codec: str) -> list[bytes]:
    """Compress a column into blocks, each from `BLOCK_BYTES` of it; the last one may be from fewer."""
    return [_compress(data[at : at + BLOCK_BYTES], codec) for at in range(0, data.nbytes, BLOCK_BYTES)]


def decompress_block(block: memoryview, codec: str, nbytes: int) -> memoryview:
    """Decompress one block of `compress_blocks` to `nbytes` bytes.

    Raises:
        ValueError: it is not such a block; also `pyarrow.ArrowException`.
    """
    if codec == "lz4":
        (length,) = struct.unpack_from("<I", block)
        block = block[4:]
        if length & _LZ4_STORED:
            return block
    try:
        found = memoryview(_codec(codec).decompress(block, nbytes)).cast("B")
    except OSError as error:  # of Arrow's codecs, which do no I/O
        raise ValueError(str(error)) from error
    if found.nbytes != nbytes:
        raise ValueError(f"a block of {found.nbytes} bytes, expected {nbytes}")
    return found


def decompress_blocks(blocks: list[memoryview], codec: str, nbytes: int) -> memoryview:
    """Decompress consecutive blocks, `nbytes` in all, into a new buffer."""
    out = np.empty(nbytes, np.uint8)
    for index, block in enumerate(blocks):
        at = index * BLOCK_BYTES
        size = min(BLOCK_BYTES, nbytes - at)
        out[at : at + size] = np.frombuffer(decompress_block(block, codec, size), np.uint8)
    return out.data


def _compress(data: memoryview, codec: str) -> bytes:
    compressed: Buffer = _codec(codec).compress(data, asbytes=True)
    if codec == "zstd":
        return bytes(compressed)
    if len(compressed) >= data.nbytes:
        return struct.pack("<I", data.nbytes | _LZ4_STORED) + bytes(data)
    return struct.pack("<I", len(compressed)) + bytes(compressed)


@lru_cache(maxsize=2)
def _codec(codec: str) -> pa.Codec:
    return pa.Codec("lz4_raw") if codec == "lz4" else pa.Codec("zstd", compression_level=_ZSTD_LEVEL)

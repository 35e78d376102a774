"""Compressed columns that any Arrow tool opens, and of which a part can be read.

Arrow wants one LZ4 frame, or ZSTD frames, a buffer. Both are made here of blocks that do not depend on each other, each
of `BLOCK_BYTES` of the column, so that a few rows are decompressed without the rest.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import xxhash

from storage.checksums import BLOCK_BYTES

if TYPE_CHECKING:
    from storage.digest import Buffer

_ZSTD_LEVEL = 1
# LZ4's frame format, 1.6: version 1, blocks that do not depend on each other, of at most 256 KiB, no checksums.
_LZ4_DESCRIPTOR = bytes([0b0110_0000, 5 << 4])
_LZ4_HEADER = (
    struct.pack("<I", 0x184D2204) + _LZ4_DESCRIPTOR + bytes([xxhash.xxh32_intdigest(_LZ4_DESCRIPTOR) >> 8 & 0xFF])
)
_LZ4_END = bytes(4)
_LZ4_STORED = 1 << 31


def frame_header(codec: str) -> bytes:
    """What lies in front of the first block."""
    return _LZ4_HEADER if codec == "lz4" else b""


def frame_end(codec: str) -> bytes:
    """What lies behind the last block."""
    return _LZ4_END if codec == "lz4" else b""


def compress_blocks(data: memoryview, codec: str) -> list[bytes]:
    """The blocks of a column, each from `BLOCK_BYTES` of it; the last one from less."""
    return [_compress(data[at : at + BLOCK_BYTES], codec) for at in range(0, data.nbytes, BLOCK_BYTES)]


def decompress_block(block: memoryview, codec: str, nbytes: int) -> memoryview:
    """Back from one of `compress_blocks`; `nbytes` long.

    Raises:
        ValueError: it is no such block; also `pyarrow.ArrowException`.
    """
    if codec == "lz4":
        (length,) = struct.unpack_from("<I", block)
        block = block[4:]
        if length & _LZ4_STORED:
            return block
    found = memoryview(_codec(codec).decompress(block, nbytes)).cast("B")
    if found.nbytes != nbytes:
        raise ValueError(f"a block of {found.nbytes} bytes, expected {nbytes}")
    return found


def decompress_blocks(blocks: list[memoryview], codec: str, nbytes: int) -> memoryview:
    """The column bytes of consecutive blocks, `nbytes` in all, in a buffer of their own."""
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

"""Checksums of blocks: what lets a part of a shard be read and trusted without the rest.

XXH3-128 runs at memory speed, BLAKE3 at a tenth of it. It guards against accidents, as every digest here does; it would
not stop somebody who forges a file on purpose and can write to the store.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BLOCK_BYTES = 1 << 18
SUM_BYTES = 16

_SHARED_BYTES = 4 << 20  # below this, handing work over costs more than it saves


def checksum(*pieces: memoryview) -> bytes:
    """XXH3-128 of the concatenated pieces."""
    if len(pieces) == 1:
        return xxhash.xxh3_128_digest(pieces[0])
    hasher = xxhash.xxh3_128()
    for piece in pieces:
        hasher.update(piece)
    return hasher.digest()


def block_sums(pieces: Sequence[memoryview], sizes: Iterable[int] | None = None) -> bytes:
    """The checksums of consecutive blocks of the concatenated pieces, one behind the other.

    Args:
        pieces: not joined in memory.
        sizes: of the blocks, `BLOCK_BYTES` each if left out; the last one may be shorter.
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
    if sum(piece.nbytes for piece in pieces) < _SHARED_BYTES:
        return _joined_sums(blocks)
    half = len(blocks) // 2
    second = _helper(os.getpid()).submit(_joined_sums, blocks[half:])
    return _joined_sums(blocks[:half]) + second.result()


def _joined_sums(blocks: list[list[memoryview]]) -> bytes:
    return b"".join(checksum(*block) for block in blocks)


@lru_cache(maxsize=1)
def _helper(pid: int) -> ThreadPoolExecutor:  # noqa: ARG001  (threads do not survive a fork)
    """A thread that takes the other half of large columns: hashing lets the interpreter lock go."""
    return ThreadPoolExecutor(1, thread_name_prefix="checksums")

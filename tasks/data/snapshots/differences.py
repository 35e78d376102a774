"""Encodes a snapshot as its difference from the version before, for nodes that keep that one.

Both files have one layout, so their bytes are compared where they are: XOR, then every fourth byte together, because
the upper bytes of numbers hardly change between versions, and zstd. Nothing needs a difference: the whole snapshot is
stored as well, and its digest decides whether what a difference gives is right.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.storage.errors import CorruptObjectError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.storage.digest import Buffer

_WIDTH = 4  # bytes of a float32, and of two bfloat16: each plane then has bytes of one rank
_ZSTD_LEVEL = 3


def encode_difference(base: Buffer, content: Buffer) -> bytes | None:
    """Return the difference from one snapshot file to the next one.

    Args:
        base: the file of the version before.
        content: the file that `apply_difference` is to return.

    Returns:
        A frame of zstd. None if the files have different sizes, as when the version's number gets another digit: their
        numbers are then at different places.
    """
    old, new = np.frombuffer(base, np.uint8), np.frombuffer(content, np.uint8)
    if old.size != new.size:
        return None
    return bytes(_codec().compress(_planes(old ^ new), asbytes=True))


def apply_difference(base: Buffer, difference: Buffer) -> memoryview:
    """Return the file that a difference was made of, if `base` is the one that it was made from.

    It has as many bytes as `base`, and no more are ever decompressed. The caller compares its digest.

    Raises:
        CorruptObjectError: it is no difference from a file of this size.
    """
    old = np.frombuffer(base, np.uint8)
    try:
        planes = np.frombuffer(_codec().decompress(difference, old.size), np.uint8)
    except (OSError, ValueError, pa.ArrowException) as error:  # an OSError of Arrow's codec, which does no I/O
        raise _refused(difference, old.size, str(error)) from error
    if planes.size != old.size:
        raise _refused(difference, old.size, f"it has {planes.size}")
    found = np.empty_like(old)
    whole = old.size - old.size % _WIDTH
    found[:whole].reshape(-1, _WIDTH)[...] = planes[:whole].reshape(_WIDTH, -1).T
    found[whole:] = planes[whole:]
    found ^= old
    return memoryview(found.data)


def _planes(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    whole = data.size - data.size % _WIDTH
    return np.concatenate([data[:whole].reshape(-1, _WIDTH).T.reshape(-1), data[whole:]])


def _refused(difference: Buffer, nbytes: int, problem: str) -> CorruptObjectError:
    return CorruptObjectError(
        f"{memoryview(difference).nbytes} bytes are no difference from a snapshot of {nbytes} bytes: {problem}. "
        f"Nothing needs to be done: the whole snapshot is read instead"
    )


@lru_cache(maxsize=1)
def _codec() -> Any:
    return pa.Codec("zstd", compression_level=_ZSTD_LEVEL)

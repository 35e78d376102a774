"""Content digests and canonical JSON: the same thing has the same bytes and the same name in every process."""

import json
from typing import Any, TypeAlias

from blake3 import blake3

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Contiguous bytes. Anything with the buffer protocol works at run time."""

DIGEST_BYTES = 16


def digest(*parts: Buffer) -> str:
    """BLAKE3 of the concatenated parts, cut to 128 bits, as 32 hex characters. Releases the GIL for large parts."""
    if len(parts) == 1:
        return blake3(parts[0]).hexdigest(length=DIGEST_BYTES)
    hasher = blake3()
    for part in parts:
        hasher.update(part)
    return hasher.hexdigest(length=DIGEST_BYTES)


def canonical_json(obj: Any) -> bytes:
    """JSON with sorted keys, no spaces and ASCII only: equal objects give equal bytes.

    Raises:
        ValueError: for NaN and infinities, which JSON can't express.
        TypeError: for values that are not JSON; NumPy scalars are not, convert them first.
    """
    return json.dumps(obj, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")

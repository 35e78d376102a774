"""Computes content digests and canonical JSON, so that equal content has equal bytes and names in every process."""

import json
import math
import re
from typing import Any, NoReturn, TypeAlias

from blake3 import blake3

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Contiguous bytes. Anything with the buffer protocol works at run time."""

DIGEST_BYTES = 16
_DEEPEST = 100
"""Levels of JSON, of which no file has more than ten; a function that walks deeper ones could exhaust its stack."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def digest(*parts: Buffer) -> str:
    """Return BLAKE3 of the joined parts, cut to 128 bits, as 32 hex characters. Releases the GIL for large parts."""
    if len(parts) == 1:
        return blake3(parts[0]).hexdigest(length=DIGEST_BYTES)
    hasher = blake3()
    for part in parts:
        hasher.update(part)
    return hasher.hexdigest(length=DIGEST_BYTES)


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical_json(obj: Any) -> bytes:
    """Encode as JSON with sorted keys, no spaces and ASCII only: equal objects give equal bytes.

    Raises:
        ValueError: for NaN and infinities, which JSON can't express.
        TypeError: for values that are not JSON; NumPy scalars are not, convert them first.
    """
    return _ENCODER.encode(obj).encode("ascii")


def parse_json(data: str | bytes | bytearray) -> Any:
    """Parse JSON that anyone may have written: every fault of it is a ValueError, and every number is finite.

    Raises:
        ValueError: not JSON, not UTF-8, nested too deeply, or with NaN, infinity, a number beyond float64, or half of a
            surrogate pair, which no text can be printed or stored with.
    """
    text = data if isinstance(data, str) else str(data, "utf-8")  # json.loads would also take UTF-16
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        pass
    else:
        if text.count("{") + text.count("[") <= _DEEPEST or _is_shallow(value):
            if _SURROGATE.search(text):
                json.dumps(value, ensure_ascii=False).encode()  # half of a pair can't be encoded
            return value
    raise ValueError(f"{len(data)} bytes of JSON that is nested too deeply: expected at most {_DEEPEST} levels")


def _is_shallow(value: Any) -> bool:
    level = [value]
    for _ in range(_DEEPEST + 1):
        below: list[Any] = []
        for one in level:
            if type(one) is dict:
                below.extend(one.values())
            elif type(one) is list:
                below.extend(one)
        if not below:
            return True
        level = below
    return False


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is beyond float64")
    return number


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)

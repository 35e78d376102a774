"""Mutators: functions that change an input at random, with a knowledge of its form. A seed decides everything."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

_INT64 = (0, 1, -1, 2, 7, 255, 2**31 - 1, 2**31, 2**32, -(2**31), 2**53, 2**63 - 1, -(2**63))
_NUMBERS = (*_INT64, 2**63, 2**64, 10**30)
_RAW = ("NaN", "Infinity", "-Infinity", "1e999", "1e308", "-0", "0.1", "1e-400", "9" * 400, "9" * 5000, "00", "1.0")
"""Numbers that a JSON file may have, and Python does not write."""
_TEXTS = ("", "a", ":", "x:Y", "a.b:C", "../x", "/etc/passwd", "\0", "\n", "\ud800", "é", "٣", "a" * 300, "b" * 32, "0")
_DEPTHS = (1, 2, 20, 200, 900, *range(940, 1000, 3), 5000)
_MARK = "@raw@"
_WORDS = ("0", "1", "-1", "1e9", "1e400", "nan", "inf", "0x1p4", "99999999999999999999", "{", "}", ":", '"', "#", "\\")


def mutate_bytes(data: bytes, random: Random) -> bytes:
    """Flip bits, overwrite numbers, cut, repeat or insert bytes; a few times."""
    out = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 4, 8))):
        at = random.randrange(len(out) + 1)
        kind = random.randrange(8)
        if kind == 0:
            del out[at:]
        elif kind == 1:
            del out[at : at + random.choice((1, 2, 4, 8, 64))]
        elif kind == 2:
            out[at:at] = random.randbytes(random.choice((1, 2, 4, 8)))
        elif kind == 3:
            start = random.randrange(len(out) + 1)
            out[at:at] = out[start : start + random.choice((1, 8, 64, 512))]
        elif kind == 4 and at < len(out):
            out[at] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
        elif kind == 5:
            at -= at % 8
            out[at : at + 8] = struct.pack("<q", random.choice((*_INT64, random.getrandbits(40))))
        elif kind == 6:
            at -= at % 4
            out[at : at + 4] = struct.pack("<i", random.choice((0, 1, -1, 8, 64, 2**31 - 1, -(2**31))))
        elif at < len(out):
            out[at] ^= 1 << random.randrange(8)
    return bytes(out)


def mutate_json(data: bytes, random: Random) -> bytes:
    """Change values, keys or structure of a JSON text; keep its last newline."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return mutate_bytes(data, random)
    if random.random() < 0.1:
        return mutate_bytes(data, random)
    try:
        value, raw = changed_json(value, random)
        separators = (",", ":") if random.random() < 0.9 else (", ", ": ")
        text = json.dumps(value, sort_keys=random.random() < 0.9, separators=separators)
    except (RecursionError, OverflowError, ValueError):
        return mutate_bytes(data, random)
    text = text.replace(f'"{_MARK}"', raw)
    if random.random() < 0.05 and text.startswith("{") and len(text) > 2:
        text = "{" + text[1:-1] + "," + text[1:]  # every key twice
    return text.encode("utf-8", "surrogatepass") + (b"\n" if data.endswith(b"\n") else b"")


def changed_json(value: Any, random: Random) -> tuple[Any, str]:
    """Return a JSON value with a few changes, and the text that stands for `@raw@` in it."""
    raw = random.choice(_RAW)
    if random.random() < 0.1:
        depth = random.choice(_DEPTHS)
        raw = random.choice(("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth))
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        value = _changed(value, value, random)
    return value, raw


def _changed(value: Any, whole: Any, random: Random) -> Any:
    """Return `value` with one change, here or deeper; `whole` lends parts."""
    inside = isinstance(value, dict | list) and len(value) > 0
    if inside and random.random() < 0.85:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key, copy = random.choice(keys), value.copy()
        kind = random.random()
        if kind < 0.08:
            del copy[key]
        elif kind < 0.12 and isinstance(copy, dict):
            copy[random.choice((*_TEXTS, random.choice(keys)))] = copy.pop(key)
        elif kind < 0.16 and isinstance(copy, list):
            copy.insert(key, copy[key])
        else:
            copy[key] = _changed(copy[key], whole, random)
        return copy
    return _replacement(value, whole, random)


def _replacement(value: Any, whole: Any, random: Random) -> Any:
    choices: list[Callable[[], Any]] = [
        lambda: random.choice(_NUMBERS),
        lambda: random.choice(_TEXTS),
        lambda: random.choice((None, True, False, [], {}, 0.5, -1.5, 1e300)),
        lambda: _MARK,
        lambda: _part(whole, random),
        lambda: [value],
        lambda: {"a": value},
        lambda: _neighbour(value, random),
        lambda: _neighbour(value, random),
        lambda: _neighbour(value, random),
    ]
    return random.choice(choices)()


def _neighbour(value: Any, random: Random) -> Any:
    """Return a value of the same type."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        return random.choice((value + 1, value - 1, -value, value * 2, value * 1.0, random.randrange(64), str(value)))
    if isinstance(value, str):
        changed = mutate_bytes(value.encode("utf-8", "surrogatepass"), random).decode("utf-8", "replace")
        return random.choice((changed, value + "x", value[:-1], value * 2))
    return type(value)()


def _part(whole: Any, random: Random) -> Any:
    """Return a random part of a JSON value."""
    while isinstance(whole, dict | list) and whole and random.random() < 0.8:
        whole = random.choice(list(whole.values()) if isinstance(whole, dict) else whole)
    return whole


def mutate_text(data: bytes, random: Random) -> bytes:
    """Drop, repeat, swap or replace lines and words of a text."""
    if random.random() < 0.2:
        return mutate_bytes(data, random)
    lines = data.split(b"\n")
    for _ in range(random.choice((1, 1, 2, 4))):
        at, other = random.randrange(len(lines)), random.randrange(len(lines))
        kind = random.randrange(6)
        if kind == 0 and len(lines) > 1:
            del lines[at]
        elif kind == 1:
            lines.insert(at, lines[other])
        elif kind == 2:
            lines[at], lines[other] = lines[other], lines[at]
        else:
            words = lines[at].split(b" ")
            place = random.randrange(len(words))
            wanted = random.choice(lines[other].split(b" ")) if kind == 3 else random.choice(_WORDS).encode()
            words[place] = wanted if kind < 5 else words[place] + wanted
            lines[at] = b" ".join(words)
    return b"\n".join(lines)

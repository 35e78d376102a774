"""Texts of netlists and placements, compressed or not."""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.native._floorplan import BlockFileError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

_GZIP = b"\x1f\x8b"
_TOKEN = re.compile(r"""#[^\n]*|"(?:[^"\\\n]|\\.)*+"?|'(?:[^'\\\n]|\\.)*+'?""")
"""A comment or a text of a netlist, to its line's end if it has none: nothing is searched twice."""
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|([abfrv?])|.)", re.DOTALL)
_CONTROLS = dict(zip(b"abfrv?", b"\a\b\f\r\v?", strict=True))
_KEPT = {ord("\n"): b"\\n", ord("\t"): b"\\t", **{code: b"\\%c" % code for code in b"\\\"'"}}
"""Escapes that the reader of netlists has itself."""
_QUOTES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"})


def read_text(path: str | os.PathLike[str]) -> str:
    """Return a file's text, without a byte order mark; gzip is detected by its first bytes, whatever the file's name.

    Raises:
        BlockFileError: There is no such file, or it is neither text in UTF-8 nor that in gzip.
    """
    try:
        data = Path(path).read_bytes()
    except IsADirectoryError:
        inside = min((str(each) for each in Path(path).glob("*netlist*")), default="")
        hint = f"did you mean {inside}?" if inside else "check the path"
        raise BlockFileError(f"{path}: is a folder, expected a file; {hint}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BlockFileError(f"{path}: cannot be read ({reason}), expected a file; check the path") from None
    if data.startswith(_GZIP):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise BlockFileError(
                f"{path}: begins as gzip but is damaged ({error}), expected a whole gzip file; fetch it again"
            ) from None
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BlockFileError(f"{path}:{line}: found the byte {data[error.start]:#04x}, expected UTF-8 text") from None


def read_netlist_text(path: str | os.PathLike[str]) -> str:
    r"""Return a netlist's text like `read_text`, with bytes in place of octal and other escapes in quotes.

    Protocol buffers' own writers escape every byte beyond ASCII: `\303\251` is an é.

    Raises:
        BlockFileError: As `read_text`, or escaped bytes are not UTF-8.
    """
    text = read_text(path)
    if "\\" not in text:
        return text

    def unescaped(token: re.Match[str]) -> str:
        if token[0].startswith("#") or "\\" not in token[0]:
            return token[0]
        try:
            return _ESCAPE.sub(_byte, token[0].encode("utf-8")).decode("utf-8")
        except UnicodeDecodeError:
            line = text.count("\n", 0, token.start()) + 1
            raise BlockFileError(
                f"{path}:{line}: found {token[0][:60]}, expected a text whose escapes are bytes of UTF-8"
            ) from None

    return _TOKEN.sub(unescaped, text)


def _byte(escape: re.Match[bytes]) -> bytes:
    octal, digits, control = escape.groups()
    if octal is None and digits is None and control is None:
        return escape[0]
    code = int(octal, 8) & 0xFF if octal else int(digits, 16) if digits else _CONTROLS[control[0]]
    return _KEPT.get(code, bytes([code]))


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a file; gzip, always with the same bytes, where its name ends in .gz."""
    data = text.encode("utf-8")
    Path(path).write_bytes(gzip.compress(data, mtime=0) if str(path).endswith(".gz") else data)


def quoted(name: str) -> str:
    """Return a name as a netlist has it, in quotes."""
    return f'"{name.translate(_QUOTES)}"'


def node_text(name: str, sinks: Iterable[str], attributes: Mapping[str, str | float]) -> str:
    """Return a node of a netlist, with the names of the nodes that it drives."""
    lines = [f"node {{\n  name: {quoted(name)}", *(f"  input: {quoted(sink)}" for sink in sinks)]
    for key, value in attributes.items():
        held = f"placeholder: {quoted(value)}" if isinstance(value, str) else f"f: {value!r}"
        lines.append(f'  attr {{ key: "{key}" value {{ {held} }} }}')
    return "\n".join([*lines, "}\n"])

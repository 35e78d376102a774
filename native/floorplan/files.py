"""Texts of netlists and placements, compressed or not."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.native._floorplan import BlockFileError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

_GZIP = b"\x1f\x8b"
_QUOTES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"})


def read_text(path: str | os.PathLike[str]) -> str:
    """Return a file's text; gzip is detected by its first bytes, whatever the file's name.

    Raises:
        BlockFileError: There is no such file, or it is neither text in UTF-8 nor that in gzip.
    """
    try:
        data = Path(path).read_bytes()
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
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BlockFileError(f"{path}:{line}: found the byte {data[error.start]:#04x}, expected UTF-8 text") from None


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

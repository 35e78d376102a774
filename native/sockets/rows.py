"""Spaces as JSON, and their values as rows of bytes, for both ends; needs Python and NumPy alone, as `server.py` does.

A row has the leaves of a space one after the other, without padding, in the order of the JSON: `docs/socket.md`. Both
ends lay it out from the same JSON, which is checked before anything is allocated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

try:
    from penstock.native.sockets import wire
except ImportError:  # copied without Penstock
    import wire  # type: ignore[import-not-found, no-redef]

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_LEVELS = 32
MOST_LEAVES = 4096
MASK = "action_mask"
"""The name of the mask of allowed choices in infos, and of the field that rows begin with."""
_MOST_AXES = 16
_MOST_CHOICES = (1 << 31) - 1
_INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64")
_BOX_DTYPES = ("float32", "float64", "float16", *_INTEGERS, "bool")


@dataclass(frozen=True)
class Leaf:
    """A part of a space that is one array."""

    path: tuple[Any, ...]
    """Keys and places on the way to it."""
    kind: str
    """`box`, `discrete`, `multi_discrete` or `multi_binary`."""
    dtype: Any
    """NumPy's type of the environment's values."""
    shape: tuple[int, ...]
    sizes: tuple[int, ...] = ()
    """Values that each number may have, in row-major order; one for all of bits, () for numbers."""
    start: tuple[int, ...] = ()
    """The smallest value of each, likewise."""

    @property
    def name(self) -> str:
        """Return the path as one text, such as `arm.position`; '' for a space that is one leaf."""
        return named(self.path)

    @property
    def count(self) -> int:
        """Return the number of numbers."""
        return math.prod(self.shape)


class Rows:
    """The layout of rows of values of one space."""

    def __init__(self, described: Any, choices: int = 0) -> None:
        """Check a description, and lay out its rows.

        Args:
            described: A space as JSON has it.
            choices: Rows begin with a mask of so many choices, a byte each; 0 for none.

        Raises:
            ValueError: It is none, nested too deep, or too large; the message names the part.
        """
        self.leaves: list[Leaf] = []
        self.bytes = choices
        """Bytes of a row."""
        self.choices = choices
        self._tree = self._checked(described, ())
        fields: list[Any] = [(MASK, np.uint8, (choices,))] if choices else []
        limited = [(MASK, Leaf((MASK,), "", np.dtype(np.uint8), (choices,), (2,), (0,)))] if choices else []
        for index, leaf in enumerate(self.leaves):
            # Booleans are bytes until they are known to be 0 or 1.
            stored = np.dtype(np.uint8) if leaf.dtype == np.bool_ else leaf.dtype.newbyteorder("<")
            fields.append((str(index), stored, leaf.shape))
            if leaf.sizes:
                limited.append((str(index), leaf))
        self.dtype: Any = np.dtype(fields)
        """NumPy's type of a row, whose fields are the mask and the places of the leaves."""
        self._limited = [
            (field, leaf, np.array(leaf.start, np.int64), np.array(leaf.sizes, np.int64) + leaf.start - 1)
            for field, leaf in limited
        ]

    def check(self, rows: Any, environments: Any = None) -> None:
        """Refuse rows, which are those of some environments or all, of which a choice, a bit or the mask is none.

        Raises:
            ValueError: Names the row, the leaf and the value.
        """
        for field, leaf, least, most in self._limited if len(rows) else ():
            values = rows[field].reshape(len(rows), -1)
            if leaf.dtype == np.uint64:
                values = values.astype(np.int64)
            wrong = (values < least) | (values > most)
            if wrong.any():
                row, number = np.argwhere(wrong)[0].tolist()
                env = row if environments is None else environments[row]
                label = f"'{leaf.name}' of environment {env}" if leaf.path else f"the value of environment {env}"
                low, high = (np.broadcast_to(bound, values.shape)[row, number] for bound in (least, most))
                raise ValueError(f"{label} is {values[row, number]}, expected {low} to {high}")

    def columns(self, rows: Any) -> dict[tuple[Any, ...], Any]:
        """Return the arrays `[len(rows), *shape]` of the leaves by their paths, in the environment's types."""
        return {leaf.path: _own(rows[str(index)], leaf) for index, leaf in enumerate(self.leaves)}

    def values(self, rows: Any) -> Any:
        """Return copies of the values of rows as the space nests them; of one row, its value."""

        def made(index: int) -> Any:
            found = _own(rows[str(index)], self.leaves[index])
            return found.copy() if isinstance(found, np.ndarray) else found

        return _nested(self._tree, made)

    def write(self, rows: Any, index: Any, value: Any) -> None:
        """Write a value into the row at an index; a batch of values for a slice.

        Raises:
            ValueError: A leaf is missing, of another shape, or has no whole numbers where those are expected; the
                message names it.
        """
        for place, leaf in enumerate(self.leaves):
            part = value
            try:
                for key in leaf.path:
                    part = part[key]
            except (IndexError, KeyError, TypeError):
                raise ValueError(f"'{leaf.name}' is missing, expected shape {leaf.shape} of {leaf.dtype}") from None
            column, array = rows[str(place)], np.asarray(part)
            room = column[index]
            is_number = array.size == room.size == 1
            label = f"'{leaf.name}'" if leaf.path else "the value"
            if (array.shape != room.shape and not is_number) or array.dtype.kind not in "bfiu":
                raise ValueError(
                    f"{label} has the shape {array.shape} of {array.dtype}, expected {room.shape} of {leaf.dtype}"
                )
            if leaf.dtype.kind in "iu" and array.dtype.kind == "f" and not (array == np.trunc(array)).all():
                raise ValueError(f"{label} is {array[array != np.trunc(array)][0]}, expected whole numbers")
            if leaf.dtype.kind in "iu" and array.dtype != leaf.dtype and array.size:
                least, most = np.iinfo(leaf.dtype).min, np.iinfo(leaf.dtype).max
                if array.min() < least or array.max() > most:
                    raise ValueError(f"{label} has {array.min()} to {array.max()}, expected {least} to {most}")
            column[index] = array.reshape(room.shape)

    def _checked(self, described: Any, path: tuple[Any, ...]) -> Any:
        """Return the tree of a description with the numbers of its leaves, which are added."""
        kind = described.get("kind") if isinstance(described, dict) else None
        if kind not in ("dict", "tuple"):
            leaf = _leaf(described, kind, path)
            self.bytes += leaf.count * leaf.dtype.itemsize
            if self.bytes > wire.MAX_FRAME_BYTES or len(self.leaves) == MOST_LEAVES:
                raise ValueError(
                    f"{_where(path)} is too large: rows have at most {wire.MAX_FRAME_BYTES} bytes in {MOST_LEAVES} "
                    f"parts"
                )
            self.leaves.append(leaf)
            return len(self.leaves) - 1
        parts = described.get("parts")
        if not isinstance(parts, list) or not parts:
            raise ValueError(f"{_where(path)} is a {kind} of {_short(parts)}, expected a list of its parts")
        if len(path) == MOST_LEVELS:
            raise ValueError(f"{_where(path)} is nested deeper than {MOST_LEVELS} levels")
        if kind == "tuple":
            return tuple(self._checked(part, (*path, place)) for place, part in enumerate(parts))
        found: dict[str, Any] = {}
        for part in parts:
            key = part[0] if isinstance(part, list) and len(part) == 2 else None
            if not isinstance(key, str) or key in found:
                raise ValueError(f"{_where(path)} has the part {_short(part)}, expected a new key and its space")
            found[key] = self._checked(part[1], (*path, key))
        return found


def named(path: tuple[Any, ...]) -> str:
    """Return the name of the part at a path."""
    return ".".join(map(str, path))


def described_space(space: Any) -> dict[str, Any]:
    """Return a space of Gymnasium's, or one like it, as JSON.

    Raises:
        ValueError: A part is of another kind, such as a Text or a Sequence; the message names it.
    """
    return _described(space, ())


def bound_of(values: Any) -> Any:
    """Return one number if all are equal, otherwise all in row-major order; None for one that is infinite."""
    array = np.ravel(values)
    numbers = array.astype(np.uint8) if array.dtype == np.bool_ else array
    flat = [value if math.isfinite(value) else None for value in numbers.tolist()]
    return flat[0] if flat and all(value == flat[0] for value in flat) else flat


def _described(space: Any, path: tuple[Any, ...]) -> dict[str, Any]:
    if len(path) > MOST_LEVELS:
        raise ValueError(f"{_where(path)} is nested deeper than {MOST_LEVELS} levels")
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping) and parts and all(isinstance(key, str) for key in parts):
        return {"kind": "dict", "parts": [[key, _described(part, (*path, key))] for key, part in parts.items()]}
    if isinstance(parts, (tuple, list)) and parts and type(space).__name__ != "OneOf":
        return {"kind": "tuple", "parts": [_described(part, (*path, place)) for place, part in enumerate(parts)]}
    shape = getattr(space, "shape", None)
    if parts is None and shape is not None and all(size > 0 for size in shape):
        whole: dict[str, Any] = {"shape": [int(size) for size in shape]}
        if hasattr(space, "low") and np.dtype(space.dtype).name in _BOX_DTYPES:
            own = {"dtype": np.dtype(space.dtype).name, "low": bound_of(space.low), "high": bound_of(space.high)}
            return {"kind": "box", **whole, **own}
        if hasattr(space, "nvec"):
            start = np.broadcast_to(getattr(space, "start", 0), shape).ravel().tolist()
            own = {"dtype": np.dtype(space.dtype).name, "nvec": np.ravel(space.nvec).tolist(), "start": start}
            return {"kind": "multi_discrete", **whole, **own}
        if hasattr(space, "n") and shape:
            return {"kind": "multi_binary", **whole}
        if hasattr(space, "n"):
            own = {"n": int(space.n), "start": int(getattr(space, "start", 0)), "dtype": np.dtype(space.dtype).name}
            return {"kind": "discrete", **own}
    raise ValueError(f"{_where(path)} is {_short(space)}")


def _leaf(described: Any, kind: Any, path: tuple[Any, ...]) -> Leaf:
    """Return the leaf of a description; raises ValueError where it is none."""
    if kind not in ("box", "discrete", "multi_discrete", "multi_binary"):
        raise ValueError(f"{_where(path)} is {_short(described)}, expected a space of the protocol")
    shape = described.get("shape", [] if kind == "discrete" else None)
    right = isinstance(shape, list) and len(shape) <= _MOST_AXES and all(_is_whole(size, 1) for size in shape)
    count = math.prod(shape) if right else 0
    dtype = described.get("dtype", {"multi_binary": "int8", "box": None}.get(kind, "int64"))
    other = right and (shape if kind == "discrete" else kind != "box" and not shape)
    if not right or other or dtype not in (_BOX_DTYPES if kind == "box" else _INTEGERS):
        raise ValueError(f"{_where(path)} is a space of {_short(dtype)} with the shape {_short(shape)}")
    if count > wire.MAX_FRAME_BYTES:
        raise ValueError(f"{_where(path)} is a space of {dtype!r} with the shape {shape!r}, which is too large")
    leaf = Leaf(path, kind, np.dtype(dtype), tuple(shape))
    if kind == "box":
        return leaf if dtype != "bool" else Leaf(path, kind, leaf.dtype, leaf.shape, (2,), (0,))
    if kind == "multi_binary":
        return Leaf(path, kind, leaf.dtype, leaf.shape, (2,), (0,))
    sizes = [described.get("n")] if kind == "discrete" else described.get("nvec")
    zeros = [0] * len(sizes) if isinstance(sizes, list) else None  # as many as were sent, whatever the shape claims
    start = [described.get("start", 0)] if kind == "discrete" else described.get("start", zeros)
    if not isinstance(sizes, list) or not isinstance(start, list) or not len(sizes) == len(start) == count:
        raise ValueError(f"{_where(path)} has nvec {_short(sizes)} and start {_short(start)}, expected {count} numbers")
    info = np.iinfo(dtype)
    for size, first in zip(sizes, start):  # noqa: B905  (Python 3.9 has no `strict`)
        if not _is_whole(size, 1) or size > _MOST_CHOICES:
            raise ValueError(f"{_where(path)}: n is {_short(size)}, expected choices from 1 to {_MOST_CHOICES}")
        if not _is_whole(first, int(info.min)) or first + size - 1 > min(int(info.max), (1 << 63) - 1):
            raise ValueError(f"{_where(path)}: start is {_short(first)}, expected numbers that {dtype} holds")
    return Leaf(path, kind, leaf.dtype, leaf.shape, tuple(sizes), tuple(start))


def _is_whole(value: Any, least: int) -> bool:
    return type(value) is int and value >= least


def _own(column: Any, leaf: Leaf) -> Any:
    return column != 0 if leaf.dtype == np.bool_ else column.astype(leaf.dtype, copy=False)


def _nested(tree: Any, made: Callable[[int], Any]) -> Any:
    if isinstance(tree, dict):
        return {key: _nested(part, made) for key, part in tree.items()}
    return tuple(_nested(part, made) for part in tree) if isinstance(tree, tuple) else made(tree)


def _where(path: tuple[Any, ...]) -> str:
    return f"its part '{named(path[:8])}{'...' if len(path) > 8 else ''}'" if path else "it"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."

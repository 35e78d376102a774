"""Describes typed columns: a row's values in a shard, and how they are stored. Independent of algorithms."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.storage.digest import canonical_json, digest
from penstock.storage.errors import ConfigError

DTYPES = frozenset(
    ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64")
)
COMPRESSIONS = ("lz4", "zstd")
KINDS = ("numbers", "image", "choice", "bits")


@dataclass(frozen=True, slots=True)
class Leaf:
    """A part of a structured value, which is a run of numbers in the flat array that holds all of it.

    A `choice` is one-hot in the array, one run for each of its values; `numbers`, `image` and `bits` are there as they
    are, in row-major order.
    """

    name: str
    """Its path, such as `camera`, `arm.position` or `0.goal`."""
    kind: str
    """One of `KINDS`. An `image` has bytes, and its channels first or last, whichever axis is shorter, or none."""
    dtype: str
    """Type of its own values; int64 for a choice, which counts from 0."""
    shape: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    """Only of a choice: the number of choices of each of its values."""

    def __post_init__(self) -> None:
        values = math.prod(self.shape)
        sizes = values if self.kind == "choice" else 0
        if self.kind not in KINDS or not self.name or len(self.sizes) != sizes or min(self.sizes, default=1) < 1:
            raise ConfigError(
                f"leaf {self.name!r} is of kind {self.kind!r} with {self.sizes} choices for {values} value(s): "
                f"expected a name, one of {', '.join(KINDS)}, and the number of choices of each value of a choice."
            )

    @property
    def width(self) -> int:
        """Return how many numbers of the flat array it takes."""
        return sum(self.sizes) if self.kind == "choice" else math.prod(self.shape)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Leaf":
        """Parse a mapping of the attributes; lists are tuples.

        Raises:
            ConfigError: for anything else.
        """
        if not isinstance(value, Mapping) or set(value) != set(cls.__dataclass_fields__):
            raise ConfigError(f"{value!r} is not a leaf: expected {', '.join(cls.__dataclass_fields__)}.")
        shape, sizes = tuple(value["shape"]), tuple(value["sizes"])
        return cls(value["name"], value["kind"], value["dtype"], shape, sizes)

    def to_json(self) -> dict[str, object]:
        """Return a JSON-able form; `from_json` reads it."""
        return {
            "name": self.name,
            "kind": self.kind,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "sizes": list(self.sizes),
        }


@dataclass(frozen=True, slots=True)
class Spec:
    """A spec describes a column: the NumPy name of its type and the shape of one row's value, `()` for a scalar.

    A `bool` column takes one bit per value and is unpacked when it is read: meant for masks. Flags are uint8, which are
    mapped without a copy.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    compression: str | None = None
    """`lz4`, `zstd` or None; a shard's compressed columns share one. Such a column is decompressed when it is read."""
    stacked: bool = False
    """The first axis is a stack of frames, of which all but the last repeat the row before: each is stored once."""
    leaves: tuple[Leaf, ...] = ()
    """The parts of a flat array of a structured value. In a shard each is a column of its own, `<column>.<leaf>`."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype {self.dtype!r} of a column: expected one of {', '.join(sorted(DTYPES))}.")
        if not isinstance(self.shape, tuple) or any(type(size) is not int or size < 1 for size in self.shape):
            raise ConfigError(f"shape {self.shape!r} of a column: expected a tuple of whole numbers of at least 1.")
        if self.compression not in (None, *COMPRESSIONS):
            raise ConfigError(
                f"compression {self.compression!r} of a column: expected one of {', '.join(COMPRESSIONS)}, or None."
            )
        if self.stacked and (len(self.shape) < 2 or self.shape[0] < 2 or self.dtype == "bool"):
            raise ConfigError(
                f"a column of {self.dtype}{list(self.shape)} is not a stack of frames: expected a shape "
                "[frames, ...] of at least two frames, and numbers."
            )
        if self.leaves and (len(self.shape) != 1 or sum(leaf.width for leaf in self.leaves) != self.shape[0]):
            raise ConfigError(
                f"a column of {self.dtype}{list(self.shape)} has leaves of {[leaf.width for leaf in self.leaves]} "
                "numbers: expected a flat column of as many."
            )

    def to_json(self) -> dict[str, object]:
        """Return a JSON-able form; `from_json` reads it. Storage options appear only if they are set."""
        value: dict[str, object] = {"dtype": self.dtype, "shape": list(self.shape)}
        if self.compression:
            value["compression"] = self.compression
        if self.stacked:
            value["stacked"] = True
        if self.leaves:
            value["leaves"] = [leaf.to_json() for leaf in self.leaves]
        return value

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]" if self.shape else self.dtype

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Spec":
        """Parse the result of `to_json`.

        Raises:
            ConfigError: for anything else.
        """
        if (
            not isinstance(value, Mapping)
            or not {"dtype", "shape"} <= set(value) <= {"dtype", "shape", "compression", "stacked", "leaves"}
            or not isinstance(value["shape"], list)
        ):
            raise ConfigError(f"{value!r} is not a column spec: expected {{'dtype': name, 'shape': [sizes]}}.")
        return cls(
            value["dtype"],
            tuple(value["shape"]),
            value.get("compression"),
            stacked=bool(value.get("stacked", False)),
            leaves=tuple(Leaf.from_json(leaf) for leaf in value.get("leaves", ())),
        )


def signature(columns: Mapping[str, Spec]) -> str:
    """Return a digest of the columns' names, types and shapes, independent of their order and storage options."""
    return digest(
        canonical_json({name: {"dtype": spec.dtype, "shape": list(spec.shape)} for name, spec in columns.items()})
    )

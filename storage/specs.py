"""Typed columns: what a row of a shard holds. Knows no algorithm."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from storage.digest import canonical_json, digest
from storage.errors import ConfigError

DTYPES = frozenset(
    ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64")
)
"""No bool: Arrow packs it into bits, which can't be mapped without a copy. Flags are uint8."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One column: the NumPy name of its type and the shape of one row's value, `()` for a scalar."""

    dtype: str
    shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype {self.dtype!r} of a column: expected one of {', '.join(sorted(DTYPES))}.")
        if not isinstance(self.shape, tuple) or any(type(size) is not int or size < 1 for size in self.shape):
            raise ConfigError(f"shape {self.shape!r} of a column: expected a tuple of whole numbers of at least 1.")

    def to_json(self) -> dict[str, Any]:
        """A JSON-able form; `from_json` reads it."""
        return {"dtype": self.dtype, "shape": list(self.shape)}

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]" if self.shape else self.dtype

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Spec":
        """Read what `to_json` gave.

        Raises:
            ConfigError: for anything else.
        """
        if not isinstance(value, Mapping) or set(value) != {"dtype", "shape"} or not isinstance(value["shape"], list):
            raise ConfigError(f"{value!r} is no column spec: expected {{'dtype': name, 'shape': [sizes]}}.")
        return cls(value["dtype"], tuple(value["shape"]))


def signature(columns: Mapping[str, Spec]) -> str:
    """Digest of the columns' names, types and shapes, whatever their order."""
    return digest(canonical_json({name: spec.to_json() for name, spec in columns.items()}))

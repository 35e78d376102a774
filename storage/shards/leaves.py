"""Splits the flat arrays of structured columns into a column a leaf, in its own type, and joins them again, exactly."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.storage.errors import SpecMismatchError
from penstock.storage.shards.specs import Spec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from penstock.storage.shards.specs import Leaf


def stored_columns(columns: Mapping[str, Spec]) -> dict[str, Spec]:
    """Return the columns with `<column>.<leaf>` for each leaf in place of a structured one, in the same order."""
    return {stored: spec for name in columns for stored, spec in parts_of(name, columns[name]).items()}


def parts_of(name: str, spec: Spec) -> dict[str, Spec]:
    """Return the stored columns of one column: those of its leaves, or itself."""
    if not spec.leaves:
        return {name: spec}
    return {f"{name}.{leaf.name}": Spec(leaf.dtype, leaf.shape, spec.compression) for leaf in spec.leaves}


def stored_names(columns: Mapping[str, Spec], names: Iterable[str]) -> list[str]:
    """Return the stored columns that these columns, or leaves by name, are read from, each once."""
    parts = (parts_of(name, columns[name]) if name in columns else [name] for name in names)
    return list(dict.fromkeys(stored for each in parts for stored in each))


def joined_columns(
    columns: Mapping[str, Spec], names: Iterable[str], found: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Return columns, or leaves by name, of stored columns that were read; structured ones are joined.

    Raises:
        ValueError: as `join_leaves`.
    """
    return {name: join_leaves(columns[name], found, name) if name in columns else found[name] for name in names}


def split_leaves(name: str, spec: Spec, array: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Split an array `[..., numbers]` of a structured column into leaves `[..., *leaf]`, by stored name.

    That of another column stays as it is.

    Raises:
        SpecMismatchError: joining would give another array: a choice is not one-hot, or a type can't hold a number.
    """
    if not spec.leaves:
        return {name: array}
    found, start = {}, 0
    for stored, leaf in zip(parts_of(name, spec), spec.leaves, strict=True):
        part = array[..., start : start + leaf.width]
        start += leaf.width
        found[stored] = values = _own(leaf, part)
        if leaf.dtype != array.dtype and not _is_exact(leaf, values, part):
            wanted = (
                "one 1 among zeros for each choice" if leaf.kind == "choice" else f"numbers that {leaf.dtype} holds"
            )
            raise SpecMismatchError(
                f"column '{stored}' has other numbers than its leaf declares, expected {wanted}: the environment's "
                f"observations are outside of its observation space; correct one of them"
            )
    return found


def join_leaves(spec: Spec, leaves: Mapping[str, NDArray[Any]], name: str) -> NDArray[Any]:
    """Join leaves by stored name into a structured column's array `[..., numbers]`; undo `split_leaves`.

    Raises:
        ValueError: a choice is none of those that there are.
    """
    if not spec.leaves:
        return leaves[name]
    arrays = list(zip(parts_of(name, spec), spec.leaves, strict=True))
    first = leaves[arrays[0][0]]
    lead = first.shape[: first.ndim - len(arrays[0][1].shape)]
    joined, start = np.empty((*lead, spec.shape[0]), spec.dtype), 0
    for stored, leaf in arrays:
        _write(leaf, leaves[stored], joined[..., start : start + leaf.width])
        start += leaf.width
    return joined


def _own(leaf: Leaf, part: NDArray[Any]) -> NDArray[Any]:
    """Return a leaf's own values `[..., *shape]` of its numbers in the array, `[..., width]`."""
    lead = part.shape[:-1]
    if leaf.kind != "choice":
        with np.errstate(invalid="ignore"):  # checked by the caller
            return np.ascontiguousarray(part.astype(leaf.dtype, copy=False)).reshape(*lead, *leaf.shape)
    values, start = np.empty((*lead, len(leaf.sizes)), leaf.dtype), 0
    for place, size in enumerate(leaf.sizes):
        values[..., place] = part[..., start : start + size].argmax(-1)
        start += size
    return values.reshape(*lead, *leaf.shape)


def _is_exact(leaf: Leaf, values: NDArray[Any], part: NDArray[Any]) -> bool:
    """Return whether own values give the same numbers `[..., width]` again."""
    if leaf.kind != "choice":
        return np.array_equal(values.reshape(part.shape), part)
    again = np.empty(part.shape, part.dtype)
    _write(leaf, values, again)
    return np.array_equal(again, part)


def _write(leaf: Leaf, values: NDArray[Any], numbers: NDArray[Any]) -> None:
    """Write own values `[..., *shape]` of a leaf into its numbers in the array, `[..., width]`."""
    flat = values.reshape(*numbers.shape[:-1], math.prod(leaf.shape))
    if leaf.kind != "choice":
        np.copyto(numbers, flat, casting="unsafe")
        return
    numbers[...] = 0
    start = 0
    for place, size in enumerate(leaf.sizes):
        chosen = flat[..., place : place + 1]
        if chosen.size and not 0 <= chosen.min() <= chosen.max() < size:
            raise ValueError(
                f"leaf '{leaf.name}' has the choices {chosen.min()} to {chosen.max()}, expected below {size}"
            )
        np.put_along_axis(numbers[..., start : start + size], chosen, 1, -1)
        start += size

"""Stores named tensors as safetensors: snapshots, checkpoints, environment states. Equal tensors give equal bytes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save

from penstock.storage.digest import canonical_json, digest, parse_json
from penstock.storage.errors import CorruptObjectError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

FORMAT = "penstock-tensors/1"

BFLOAT16 = np.dtype([("bits", "<u2")])
"""This stands for bfloat16, a type that NumPy lacks: the upper half of a float32."""

# safetensors writes its metadata in no stable order, so all of ours is one canonical string under one key.
_META_KEY = "penstock"
_LENGTH_BYTES = 8
_DTYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "U32": np.uint32,
    "I32": np.int32,
    "U64": np.uint64,
    "I64": np.int64,
    "F16": np.float16,
    "BF16": BFLOAT16,
    "F32": np.float32,
    "F64": np.float64,
}


def save_tensors(tensors: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> bytes:
    """Encode one safetensors file.

    Args:
        tensors: by name; any NumPy number type.
        meta: JSON-able facts to store with them.
    """
    contiguous = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    return save(contiguous, metadata=tensors_metadata(meta))


def tensors_metadata(meta: Mapping[str, Any]) -> dict[str, str]:
    """Encode facts as a file's metadata, for callers with tensors of types that NumPy lacks."""
    return {_META_KEY: canonical_json({"format": FORMAT, **meta}).decode()}


def load_tensors(
    buffer: memoryview, name: str, expected_digest: str | None = None
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Parse a file that `save_tensors` made, without copying: the arrays are views of `buffer`.

    Args:
        buffer: the whole file.
        name: for messages.
        expected_digest: verified first unless it is None.

    Returns:
        Arrays by name, bfloat16 as `BFLOAT16`, and the facts.

    Raises:
        CorruptObjectError: the digest differs, or the file is malformed.
    """
    if expected_digest is not None and digest(buffer) != expected_digest:
        raise CorruptObjectError(
            f"'{name}' has {buffer.nbytes} bytes with digest {digest(buffer)}, expected {expected_digest}: it was "
            f"altered or cut short. Remove it, and resume the run: objects that no commit names are made again"
        )
    try:
        return _parse(buffer)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise CorruptObjectError(
            f"'{name}' ({buffer.nbytes} bytes) is not a safetensors file that Penstock wrote: {error}"
        ) from error


def _parse(buffer: memoryview) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    if buffer.nbytes < _LENGTH_BYTES:
        raise ValueError("it is too short for a header")
    body = _LENGTH_BYTES + int.from_bytes(buffer[:_LENGTH_BYTES], "little")
    if body > buffer.nbytes:
        raise ValueError("its header is cut short")
    header = parse_json(bytes(buffer[_LENGTH_BYTES:body]))
    meta = parse_json(header.pop("__metadata__")[_META_KEY])
    if meta.pop("format") != FORMAT:
        raise ValueError(f"its format is not {FORMAT}")
    tensors = {}
    for name, entry in header.items():
        start, stop = entry["data_offsets"]
        dtype, shape = np.dtype(_DTYPES[entry["dtype"]]), tuple(entry["shape"])
        if min((start, *shape)) < 0 or stop - start != dtype.itemsize * math.prod(shape) or body + stop > buffer.nbytes:
            raise ValueError(f"tensor '{name}' does not fit into the file")
        flat = np.frombuffer(buffer, dtype, math.prod(shape), body + start)
        tensors[name] = flat.reshape(shape)
    return tensors, meta

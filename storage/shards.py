"""Trajectory shards: one round of one tile as one Arrow IPC file that any Arrow tool reads as it is.

Layout (`docs/storage.md` has the whole of it): one record batch, row `t * B + b`. Scalars are primitive columns, other
shapes fixed-shape tensors, and `bootstrap_observation` is a nullable list: it is set where a row has no successor,
because the episode or the round ended there. Schema metadata carries `ShardInfo` as JSON, the episode index included.

The buffers of the caller become the file without a copy, and a file's buffers become arrays without a copy. The first
column starts at a multiple of 64 bytes, and so does every other one if the round has a multiple of 64 rows.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from storage.digest import canonical_json, digest
from storage.episodes import Episodes
from storage.errors import CorruptObjectError, SpecMismatchError
from storage.specs import Spec, signature

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from storage.refs import ShardRef
    from storage.store import Store

FORMAT = "penstock-shard/1"
BOOTSTRAP_COLUMN = "bootstrap_observation"

_ALIGNMENT_BYTES = 64
_INFO_KEY = b"penstock.shard"
_INDEX_KEY = b"penstock.episodes"
_PADDING_KEY = b"penstock.padding"


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """What a shard says of itself."""

    run_seed: int
    stage: int
    round: int
    tile: int
    steps: int
    """T: rows of one environment."""
    envs: int
    """B: environments of the tile."""
    policy_version: int
    environment: str
    environment_config: dict[str, Any]
    episodes: Episodes


@dataclass(frozen=True, slots=True)
class Shard:
    """A decoded shard. Arrays are views of the buffer that it was decoded from."""

    columns: dict[str, NDArray[Any]]
    """`[T, B, ...]` by name."""
    bootstrap_rows: NDArray[np.int64]
    """`[K]`, ascending rows without a successor."""
    bootstrap_observation: NDArray[Any]
    """`[K, ...]`, what was observed after them."""
    info: ShardInfo


def allocate(columns: Mapping[str, Spec], steps: int, envs: int) -> dict[str, NDArray[Any]]:
    """Arrays `[T, B, ...]` for a round, each starting at a multiple of 64 bytes in one slab."""
    sizes = {
        name: steps * envs * math.prod(spec.shape) * np.dtype(spec.dtype).itemsize for name, spec in columns.items()
    }
    padded = {name: -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES for name, size in sizes.items()}
    slab = np.zeros(sum(padded.values()) + _ALIGNMENT_BYTES, dtype=np.uint8)
    offset = -slab.ctypes.data % _ALIGNMENT_BYTES
    arrays = {}
    for name, spec in columns.items():
        flat = slab[offset : offset + sizes[name]].view(spec.dtype)
        arrays[name] = flat.reshape(steps, envs, *spec.shape)
        offset += padded[name]
    return arrays


class ShardColumns:
    """The columns of a shard as Arrow sees them, bound once to arrays that are filled anew for every round."""

    def __init__(self, columns: Mapping[str, Spec], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Args: what the shard holds, `observation` among it, and C-contiguous `[T, B, ...]` by name, of these types.

        Raises:
            SpecMismatchError: an array has another type or shape than its column.
        """
        self.key = tuple(columns.items())
        self.observation = columns["observation"]
        self.shape = arrays["observation"].shape[:2]
        self.built = []
        for name, spec in columns.items():
            array = arrays[name]
            if array.dtype != spec.dtype or array.shape != (*self.shape, *spec.shape):
                raise SpecMismatchError(
                    f"column '{name}' is {array.dtype}{list(array.shape)}, expected {spec.dtype}"
                    f"{[*self.shape, *spec.shape]}; an algorithm's `act` must return what its `rows` declare"
                )
            self.built.append(_arrow_array(spec, array, math.prod(self.shape)))


def encode_shard(
    columns: ShardColumns,
    bootstrap_rows: NDArray[np.int64],
    bootstrap_observation: NDArray[Any],
    info: ShardInfo,
) -> list[memoryview]:
    """The bytes of a shard, in pieces; big ones are the bound arrays themselves, so write before reusing them.

    Args:
        columns: what the shard holds.
        bootstrap_rows: int64 `[K]`, ascending.
        bootstrap_observation: `[K, ...]`, of the observation's type.
        info: what it says of itself.
    """
    bootstrap = _bootstrap_array(columns.observation, bootstrap_rows, bootstrap_observation, math.prod(columns.shape))
    metadata = _metadata(info, columns.key)
    return _serialize([*columns.built, bootstrap], _schema(columns.key), metadata, _lead_bytes(columns.key))


def decode_shard(
    buffer: memoryview, expected: Mapping[str, Spec] | None, name: str, expected_digest: str | None
) -> Shard:
    """Read a shard without copying columns.

    Args:
        buffer: the whole file; writable, if the arrays shall be.
        expected: columns that it must have, or None to take it as it is.
        name: for messages.
        expected_digest: verified first, unless it is None.

    Raises:
        CorruptObjectError: altered, cut short, or no shard.
        SpecMismatchError: it has other columns.
    """
    if expected_digest is not None and digest(buffer) != expected_digest:
        raise CorruptObjectError(
            f"shard '{name}' has {buffer.nbytes} bytes with digest {digest(buffer)}, expected {expected_digest}: it "
            f"was altered or cut short. Resume the run: a round that no commit names is acted again"
        )
    try:
        batch = pa.ipc.open_file(pa.py_buffer(buffer)).get_batch(0)
        columns, info = _read_metadata(batch.schema)
    except (pa.ArrowException, ValueError, KeyError, TypeError, IndexError) as error:
        raise CorruptObjectError(f"'{name}' ({buffer.nbytes} bytes) is no trajectory shard: {error}") from error
    if expected is not None and signature(columns) != signature(expected):
        raise SpecMismatchError(
            f"shard '{name}' has columns {_describe(columns)}, expected {_describe(expected)}; it was written by "
            f"another algorithm or environment"
        )
    shape = (info.steps, info.envs)
    arrays = {
        column: _view(batch.column(index), spec, buffer).reshape(*shape, *spec.shape)
        for index, (column, spec) in enumerate(columns.items())
    }
    lists = batch.column(len(columns))
    observation = columns["observation"]
    return Shard(
        columns=arrays,
        bootstrap_rows=np.flatnonzero(lists.is_valid().to_numpy(zero_copy_only=False)),
        bootstrap_observation=np.array(lists.values).reshape(-1, *observation.shape),
        info=info,
    )


def read_info(store: Store, ref: ShardRef) -> ShardInfo:
    """What a shard says of itself, its episode index included; the data is not looked at.

    Raises:
        CorruptObjectError: it is no shard.
    """
    buffer = store.view(ref.name)
    try:
        return _read_metadata(pa.ipc.open_file(pa.py_buffer(buffer)).schema)[1]
    except (pa.ArrowException, ValueError, KeyError, TypeError) as error:
        raise CorruptObjectError(f"'{ref.name}' ({buffer.nbytes} bytes) is no trajectory shard: {error}") from error


def _arrow_type(spec: Spec) -> pa.DataType:
    value = pa.from_numpy_dtype(np.dtype(spec.dtype))
    return pa.fixed_shape_tensor(value, spec.shape) if spec.shape else value


def _arrow_array(spec: Spec, array: NDArray[Any], rows: int) -> pa.Array:
    width = math.prod(spec.shape)
    value_type = pa.from_numpy_dtype(array.dtype)
    values = pa.Array.from_buffers(value_type, rows * width, [None, pa.py_buffer(array)])
    if not spec.shape:
        return values
    lists = pa.FixedSizeListArray.from_arrays(values, width)
    return pa.ExtensionArray.from_storage(_arrow_type(spec), lists)


def _bootstrap_array(
    spec: Spec, bootstrap_rows: NDArray[np.int64], bootstrap_observation: NDArray[Any], rows: int
) -> pa.Array:
    width = math.prod(spec.shape)
    present = np.zeros(rows, dtype=np.uint8)
    present[bootstrap_rows] = 1
    offsets = np.zeros(rows + 1, dtype=np.int32)
    np.cumsum(present, out=offsets[1:])
    offsets *= width
    flat = np.ascontiguousarray(bootstrap_observation, dtype=spec.dtype).reshape(-1)
    values = pa.Array.from_buffers(pa.from_numpy_dtype(flat.dtype), flat.size, [None, pa.py_buffer(flat)])
    validity = np.packbits(present, bitorder="little")
    buffers = [pa.py_buffer(validity), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(pa.list_(values.type), rows, buffers, rows - len(bootstrap_rows), children=[values])


def _view(column: pa.Array, spec: Spec, buffer: memoryview) -> NDArray[Any]:
    values = column.storage.values if spec.shape else column
    data = values.buffers()[1]
    offset = data.address - np.frombuffer(buffer, np.uint8).ctypes.data
    return np.frombuffer(buffer, spec.dtype, len(column) * math.prod(spec.shape), offset)


@lru_cache(maxsize=64)
def _schema(key: tuple[tuple[str, Spec], ...]) -> pa.Schema:
    fields = [pa.field(name, _arrow_type(spec), nullable=False) for name, spec in key]
    value = pa.from_numpy_dtype(np.dtype(dict(key)["observation"].dtype))
    return pa.schema([*fields, pa.field(BOOTSTRAP_COLUMN, pa.list_(value))])


@lru_cache(maxsize=64)
def _spec_json(key: tuple[tuple[str, Spec], ...]) -> tuple[dict[str, Any], str]:
    return {name: spec.to_json() for name, spec in key}, signature(dict(key))


def _metadata(info: ShardInfo, key: tuple[tuple[str, Spec], ...]) -> dict[bytes, bytes]:
    columns, columns_signature = _spec_json(key)
    facts = {
        "format": FORMAT,
        "columns": list(columns.items()),
        "signature": columns_signature,
        "run_seed": info.run_seed,
        "stage": info.stage,
        "round": info.round,
        "tile": info.tile,
        "steps": info.steps,
        "envs": info.envs,
        "policy_version": info.policy_version,
        "environment": info.environment,
        "environment_config": info.environment_config,
    }
    return {_INFO_KEY: _padded(canonical_json(facts)), _INDEX_KEY: _padded(info.episodes.to_json())}


def _padded(text: bytes) -> bytes:
    """With spaces to a multiple of 64 bytes, so that the metadata's length can't move the columns off alignment."""
    return text + b" " * (-len(text) % _ALIGNMENT_BYTES)


@lru_cache(maxsize=64)
def _lead_bytes(key: tuple[tuple[str, Spec], ...]) -> int:
    """Padding that puts the first column at a multiple of 64 bytes, found by writing a shard of one row."""
    columns = dict(key)
    observation = columns["observation"]
    first = np.zeros(1, dtype=np.int64)
    bootstrap = _bootstrap_array(observation, first, np.zeros((1, *observation.shape), observation.dtype), 1)
    built = [*ShardColumns(columns, allocate(columns, 1, 1)).built, bootstrap]
    stub = {_INFO_KEY: b" " * _ALIGNMENT_BYTES, _INDEX_KEY: b" " * _ALIGNMENT_BYTES}
    file = b"".join(_serialize(built, _schema(key), stub, _ALIGNMENT_BYTES))
    return _ALIGNMENT_BYTES + -_first_body_offset(file) % _ALIGNMENT_BYTES


def _first_body_offset(file: bytes) -> int:
    """Where the body of the record batch begins: behind the magic, the schema message and the batch's header.

    The framing is that of the Arrow columnar format, "IPC File Format": each message is a continuation marker, the
    header's length as a 32-bit integer, the header and the body.
    """
    offset = 8
    for _ in range(2):
        offset += 8 + int.from_bytes(file[offset + 4 : offset + 8], "little")
    return offset


def _serialize(
    arrays: list[pa.Array], schema: pa.Schema, metadata: dict[bytes, bytes], lead_bytes: int
) -> list[memoryview]:
    pieces = _Pieces()
    schema = schema.with_metadata({**metadata, _PADDING_KEY: b" " * lead_bytes})
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    with pa.PythonFile(pieces, mode="w") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(batch)
    return pieces.views


class _Pieces:
    """A file that keeps what is written to it, without copying: Arrow hands column buffers over as they are."""

    def __init__(self) -> None:
        self.views: list[memoryview] = []
        self.closed = False
        self._position = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.views.append(view)
        self._position += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        self.closed = True


def _read_metadata(schema: pa.Schema) -> tuple[dict[str, Spec], ShardInfo]:
    metadata = schema.metadata or {}
    facts = json.loads(metadata[_INFO_KEY])
    if facts.pop("format") != FORMAT:
        raise ValueError(f"its format is not {FORMAT}")
    columns = {name: Spec.from_json(spec) for name, spec in facts.pop("columns")}
    facts.pop("signature")
    return columns, ShardInfo(**facts, episodes=Episodes.from_json(metadata[_INDEX_KEY]))


def _describe(columns: Mapping[str, Spec]) -> str:
    return ", ".join(f"{name}: {spec}" for name, spec in sorted(columns.items()))

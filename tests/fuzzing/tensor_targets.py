"""Targets for files of tensors: checkpoints, snapshots, states, and the messages over a tile's link.

A digest vouches for the stored ones. Whoever writes to a store also chooses the digest, so each input is given its own.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from penstock.native import RoundEnd, make
from penstock.storage.digest import digest
from penstock.storage.errors import CorruptObjectError
from penstock.storage.refs import Ref, SnapshotRef
from penstock.storage.tensors import BFLOAT16, load_tensors, save_tensors
from penstock.tasks.data.snapshots.checkpoints import Checkpoint, load_checkpoint, write_checkpoint
from penstock.tasks.data.snapshots.differences import apply_difference, encode_difference
from penstock.tasks.data.snapshots.exchange import load_snapshot
from penstock.tasks.roles.stepping.protocol import pack_end, pack_start, unpack_end, unpack_start

from .mutators import changed_json, mutate_bytes
from .target import GOLDEN, MemoryStore, Target, golden

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

    from numpy.typing import NDArray

CPU = torch.device("cpu")
LENGTH_BYTES = 8


def mutate_tensors(data: bytes, random: Random) -> bytes:
    """Change the header as JSON, the length in front of it always right; or only bytes."""
    body = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")
    try:
        header = json.loads(data[LENGTH_BYTES:body])
        if random.random() < 0.3:
            return mutate_bytes(data, random)
        facts = json.loads(header["__metadata__"]["penstock"])
        raw = ""
        if random.random() < 0.3:
            facts, raw = changed_json(facts, random)
            header["__metadata__"]["penstock"] = json.dumps(facts).replace('"@raw@"', raw)
        else:
            header, raw = changed_json(header, random)
        text = json.dumps(header).replace('"@raw@"', raw).encode("utf-8", "surrogatepass")
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return mutate_bytes(data, random)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text + data[body:]


def view(data: bytes) -> memoryview:
    return memoryview(bytearray(data))


def comparable(arrays: Mapping[str, NDArray[Any]]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {name: (str(array.dtype), array.shape, array.tobytes()) for name, array in arrays.items()}


def check_tensors(found: tuple[dict[str, NDArray[Any]], dict[str, Any]], data: bytes) -> None:
    arrays, facts = found
    body = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")
    header = json.loads(data[LENGTH_BYTES:body])
    assert {name: list(array.shape) for name, array in arrays.items()} == {
        name: header[name]["shape"] for name in arrays
    }
    kept = {name: array for name, array in arrays.items() if array.dtype != BFLOAT16}
    again, facts_again = load_tensors(view(save_tensors(kept, facts)), "again")
    assert comparable(again) == comparable(kept)
    assert facts_again == facts


def checkpoint_of(data: bytes) -> Checkpoint:
    ref = Ref("checkpoint", digest(data), len(data))
    return load_checkpoint(MemoryStore({"checkpoint": data}), ref, CPU)


def check_checkpoint(found: Checkpoint, data: bytes) -> None:
    if not found.state.params or any(array.dtype == BFLOAT16 for array in found.window.values()):
        return
    store = MemoryStore()
    ref = write_checkpoint(store, 3, found.state, found.reader, found.window)
    again = load_checkpoint(store, ref, CPU)
    assert again.reader == found.reader
    assert {name: list(group) for name, group in again.state.params.items()} == {
        name: list(group) for name, group in found.state.params.items()
    }
    assert comparable(again.window) == comparable(found.window)


def snapshot_of(data: bytes) -> dict[str, dict[str, torch.Tensor]]:
    return load_snapshot(view(data), SnapshotRef("snapshot", digest(data), len(data), 3))


def check_difference(found: memoryview, data: bytes) -> None:
    """Whatever a difference makes has the size of the file before, and has a difference from it."""
    assert found.nbytes == len(BEFORE)
    again = encode_difference(BEFORE, found)
    assert again is not None
    assert apply_difference(BEFORE, again) == found


POOL = make("CartPole-v1", num_envs=2, num_threads=1)
POOL.reset_ids(np.arange(2, dtype=np.uint64))


def restored(data: bytes) -> dict[str, NDArray[Any]]:
    """Restore a pool from a stored state, and step it."""
    arrays, _ = load_tensors(view(data), "state", digest(data))
    POOL.restore(arrays)
    saved = POOL.save()
    POOL.step(np.zeros(2, np.int64))
    return saved


def check_restored(saved: dict[str, NDArray[Any]], data: bytes) -> None:
    arrays, _ = load_tensors(view(data), "state")
    assert comparable(arrays) == comparable(saved)


def check_end(found: tuple[RoundEnd, dict[str, NDArray[Any]], NDArray[Any]], data: bytes) -> None:
    again = unpack_end(view(pack_end(*found)), "peer")
    assert comparable(again[1]) == comparable(found[1])
    assert comparable(again[0].episodes) == comparable(found[0].episodes)


def check_start(found: tuple[int, bool, dict[str, NDArray[Any]]], data: bytes) -> None:
    assert type(found[0]) is int
    assert type(found[1]) is bool
    assert comparable(unpack_start(view(pack_start(*found)), "peer")[2]) == comparable(found[2])


def target(name: str, decode: Any, seeds: tuple[bytes, ...], check: Any, *refusals: type[Exception]) -> Target:
    return Target(name, decode, seeds, (CorruptObjectError, *refusals), check, mutate_tensors)


CHECKPOINTS = golden("files/checkpoint.safetensors", *sorted(
    str(path.relative_to(GOLDEN)) for path in (GOLDEN / "replayed" / "checkpoints").iterdir()
))  # fmt: skip
SNAPSHOTS = golden(*(f"files/snapshot-{dtype}.safetensors" for dtype in ("bfloat16", "float32", "int8")))
BEFORE = SNAPSHOTS[0]
DIFFERENCES = tuple(
    difference
    for after in (BEFORE, BEFORE[:-9] + bytes(9), bytes(reversed(BEFORE)))
    if (difference := encode_difference(BEFORE, after)) is not None
)
NUMBERS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([1, 2], np.int64)}
END = RoundEnd(np.array([3], np.int64), np.zeros((1, 4), np.float32), {"row": np.array([3], np.int64)})
TENSOR_TARGETS = (
    target("tensors", lambda data: load_tensors(view(data), "file"),
           (*golden("files/state.safetensors"), save_tensors(NUMBERS, {"x": [1, 2.5]}), SNAPSHOTS[0]), check_tensors),
    target("checkpoint", checkpoint_of, CHECKPOINTS, check_checkpoint),
    target("snapshot", snapshot_of, SNAPSHOTS, lambda value, data: None),
    Target("difference", lambda data: apply_difference(BEFORE, data), DIFFERENCES, (CorruptObjectError,),
           check_difference),
    target("state", restored, (save_tensors(POOL.save(), {"next_round": 3}),), check_restored, ValueError),
    target("tile-end", lambda data: unpack_end(view(data), "peer"), (pack_end(END, NUMBERS, NUMBERS["a"]),), check_end),
    target("tile-start", lambda data: unpack_start(view(data), "peer"), (pack_start(3, True, NUMBERS),), check_start),
)  # fmt: skip

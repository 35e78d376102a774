"""Shards for the pipeline's benchmarks, and a store that is as far away as it is told to be."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from storage.episodes import Episodes
from storage.refs import ShardRef, shard_name
from storage.shards import ShardColumns, ShardInfo, allocate, encode_shard
from storage.specs import Spec

if TYPE_CHECKING:
    from storage.store import Store

ENVS = 64
COLUMNS = {
    "observation": Spec("float32", (255,)),
    "reward": Spec("float32"),
    "terminated": Spec("uint8"),
    "truncated": Spec("uint8"),
    "action": Spec("int64"),
}
ROW_BYTES = 255 * 4 + 4 + 1 + 1 + 8


def make_shards(store: Store, count: int, nbytes: int) -> list[ShardRef]:
    """So many shards of about so many bytes, of random numbers."""
    steps = max(1, nbytes // ROW_BYTES // ENVS)
    arrays = allocate(COLUMNS, steps, ENVS)
    columns = ShardColumns(COLUMNS, arrays)
    nothing = np.zeros(0, np.int64)
    flags = np.zeros(0, np.uint8)
    episodes = Episodes.from_flags(nothing, nothing, nothing, nothing, np.zeros(0), flags, flags, nothing, nothing)
    last = np.arange((steps - 1) * ENVS, steps * ENVS)
    refs = []
    for index in range(count):
        rng = np.random.default_rng(index)
        rng.random(out=arrays["observation"], dtype=np.float32)
        rng.random(out=arrays["reward"], dtype=np.float32)
        arrays["action"][...] = rng.integers(0, 9, arrays["action"].shape)
        info = ShardInfo(1, 0, index, 0, steps, ENVS, 0, 0, "made", {}, episodes)
        encoded = encode_shard(columns, last, np.zeros((ENVS, 255), np.float32), info)
        name = shard_name(0, 0, index, 0, encoded.digest)
        store.write(name, encoded.parts)
        refs.append(ShardRef(name, encoded.digest, encoded.nbytes, index, 0, steps * ENVS))
    return refs


class DistantStore:
    """A store that is taken for a remote one: every read waits, then its bytes pass through one pipe that all share."""

    def __init__(self, inner: Store, latency_seconds: float = 0.0, bytes_per_second: float = float("inf")) -> None:
        self._inner = inner
        self._latency_seconds = latency_seconds
        self._bytes_per_second = bytes_per_second
        self._lock = threading.Lock()
        self._free_at = 0.0
        self.url = inner.url

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def path(self, name: str) -> None:
        """No local file."""

    def read(self, name: str) -> bytes:
        """Whole object, late."""
        return self._late(self._inner.read(name))

    def view(self, name: str) -> memoryview:
        """Whole object in memory of its own, late."""
        return memoryview(bytearray(self.read(name)))

    def read_range(self, name: str, start: int, stop: int) -> memoryview:
        """A part of an object, late."""
        return self._late(self._inner.read_range(name, start, stop))

    def _late(self, content: Any) -> Any:
        begins = time.monotonic() + self._latency_seconds
        with self._lock:
            self._free_at = max(begins, self._free_at) + len(content) / self._bytes_per_second
            done = self._free_at
        time.sleep(max(0.0, done - time.monotonic()))
        return content

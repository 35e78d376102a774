"""Shards for the pipeline's benchmarks, and a store with a given latency and bandwidth."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.storage.refs import ShardRef, shard_name
from penstock.storage.shards.codec import ShardColumns, ShardInfo, allocate, encode_shard
from penstock.storage.shards.episode_index import Episodes
from penstock.storage.shards.specs import Spec

if TYPE_CHECKING:
    from penstock.storage.stores.protocol import Store

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
    """Write `count` shards of about `nbytes` bytes each, with random numbers."""
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
    """A store that appears remote: every read waits, then its bytes pass through one shared pipe."""

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
        """Return None: there is no local file."""

    def read(self, name: str) -> bytes:
        """Return the whole object, delayed."""
        return self._late(self._inner.read(name))

    def view(self, name: str) -> memoryview:
        """Return the whole object in its own memory, delayed."""
        return memoryview(bytearray(self.read(name)))

    def read_range(self, name: str, start: int, stop: int) -> memoryview:
        """Return a part of an object, delayed."""
        return self._late(self._inner.read_range(name, start, stop))

    def _late(self, content: Any) -> Any:
        begins = time.monotonic() + self._latency_seconds
        with self._lock:
            self._free_at = max(begins, self._free_at) + len(content) / self._bytes_per_second
            done = self._free_at
        time.sleep(max(0.0, done - time.monotonic()))
        return content

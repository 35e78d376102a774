"""Contents of the simulated objects: digests of what they were made from, so a lost or doubled row changes all later.

Shards are real files, because `copy`, `verify` and a resume after a power cut check them as such.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.storage.digest import digest
from penstock.storage.shards.codec import ShardColumns, ShardInfo, encode_shard
from penstock.storage.shards.episode_index import Episodes
from penstock.storage.shards.specs import Spec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

_COLUMNS = {"observation": Spec("uint8", (16,)), "reward": Spec("float32")}
_NOTHING = np.zeros(0, np.int64)
ROWS = 1


@lru_cache(maxsize=4096)
def shard_file(stage: int, round_: int, tile: int, state: str, params: str) -> tuple[str, bytes]:
    """Return the digest and the content of a shard that was acted from a state with some parameters."""
    arrays: dict[str, NDArray[Any]] = {
        "observation": np.frombuffer(bytes.fromhex(digest(f"{state} {params}".encode())), np.uint8).reshape(1, 1, 16),
        "reward": np.zeros((1, 1), np.float32),
    }
    none = np.zeros(0, np.uint8)
    episodes = Episodes.from_flags(
        row=_NOTHING,
        env_id=_NOTHING,
        episode_id=_NOTHING,
        length=_NOTHING,
        return_=np.zeros(0),
        terminated=none,
        truncated=none,
        first_policy_version=_NOTHING,
        last_policy_version=_NOTHING,
    )
    info = ShardInfo(1, stage, round_, tile, 1, 1, 0, 0, "simulated", {}, episodes)
    encoded = encode_shard(ShardColumns(_COLUMNS, arrays), np.zeros(1, np.int64), np.zeros((1, 16), np.uint8), info)
    return encoded.digest, b"".join(bytes(part) for part in encoded.parts)


def state_file(round_: int, tile: int, state: str, params: str) -> bytes:
    """Return the environments' state after a round."""
    return f"state {round_} {tile} {digest(f'{state} {params}'.encode())}".encode()


def first_state(tile: int) -> str:
    """Return the digest that stands for a tile's environments before the first round."""
    return digest(f"tile {tile}".encode())


def first_params() -> str:
    """Return the digest that stands for the first parameters."""
    return digest(b"parameters")


def learned_params(params: str, shards: Iterable[str]) -> str:
    """Return the parameters after a round that was learned from shards with these digests, in this order."""
    return digest(" ".join((params, *shards)).encode())


def snapshot_file(version: int, params: str) -> bytes:
    """Return the content of a snapshot."""
    return f"snapshot {version} {params}".encode()


def checkpoint_file(stage: int, params: str) -> bytes:
    """Return the content of a checkpoint."""
    return f"checkpoint {stage} {params}".encode()


def params_of(content: bytes | memoryview) -> str:
    """Return the parameters that a snapshot or checkpoint has."""
    return bytes(content).rsplit(b" ", 1)[1].decode()

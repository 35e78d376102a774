"""Synthetic shards, whose every row holds its own position, stored and committed as a run's are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.storage.records import from_json
from penstock.storage.refs import (
    Ref,
    ShardRef,
    SnapshotRef,
    StateRef,
    checkpoint_name,
    shard_name,
    snapshot_name,
    state_name,
)
from penstock.storage.runs.commit_schema import Commit
from penstock.storage.shards.codec import ShardColumns, ShardInfo, allocate, encode_shard
from penstock.storage.shards.episode_index import Episodes
from penstock.storage.shards.specs import Spec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.storage.runs.run import RunFolder
    from penstock.storage.stores.protocol import Store

COLUMNS = {
    "observation": Spec("float32", (3,)),
    "reward": Spec("float32"),
    "terminated": Spec("uint8"),
    "truncated": Spec("uint8"),
    "action": Spec("int64"),
    "env_id": Spec("int32"),
}
NOTHING = np.zeros(0, np.int64)


def fill(columns: Mapping[str, Spec], round_: int, tile: int, steps: int, envs: int) -> dict[str, np.ndarray]:
    """Column values that no other shard has in these rows; `env_id` is the environment's."""
    arrays = allocate(columns, steps, envs)
    rows = np.arange(steps * envs).reshape(steps, envs)
    for index, array in enumerate(arrays.values()):
        value = (rows + 1000 * round_ + 100 * tile + index) % 251
        array[...] = value.reshape(steps, envs, *[1] * (array.ndim - 2))
    if "env_id" in arrays:
        arrays["env_id"][...] = tile * envs + np.arange(envs)
    return arrays


def store_shard(
    store: Store,
    columns: Mapping[str, Spec],
    stage: int,
    round_: int,
    tile: int,
    steps: int,
    envs: int,
    *,
    continues: bool = False,
) -> ShardRef:
    """One shard, in the store of a run; the second environment's episode ends in its first step.

    By default no episode continues in another round.
    """
    arrays = fill(columns, round_, tile, steps, envs)
    if continues:
        arrays["episode_id"][...] = 0
    arrays["terminated"][...] = 0
    arrays["truncated"][...] = 0
    arrays["terminated"][0, 1] = 1
    bootstrap_rows = np.array([1, *range((steps - 1) * envs, steps * envs)], np.int64)
    observation = columns["observation"]
    bootstrap = np.zeros((len(bootstrap_rows), *observation.shape), observation.dtype)
    bootstrap += (100 + bootstrap_rows).reshape(-1, *[1] * len(observation.shape)).astype(observation.dtype)
    one = np.ones(1, np.int64)
    episodes = Episodes.from_flags(
        row=one,
        env_id=tile * envs + one,
        episode_id=0 * one,
        length=one,
        return_=np.array([2.5]),
        terminated=one.astype(np.uint8),
        truncated=0 * one.astype(np.uint8),
        first_policy_version=round_ * one,
        last_policy_version=round_ * one,
    )
    info = ShardInfo(1, stage, round_, tile, steps, envs, round_, round_, "CartPole-v1", {}, episodes)
    shard = encode_shard(ShardColumns(columns, arrays), bootstrap_rows, bootstrap, info)
    name = shard_name(stage, 0, round_, tile, shard.digest)
    store.write(name, shard.parts)
    return ShardRef(name, shard.digest, shard.nbytes, round_, tile, steps * envs)


def commit_stage(run: RunFolder, stage: int, shards: list[ShardRef], **changes: Any) -> None:
    """A commit as a run makes it, of which readers use the shards alone."""
    content, rounds = "0" * 32, sorted({ref.round for ref in shards})
    run.log.append(
        from_json(
            Commit,
            {
                "stage": stage,
                "parent": run.log.digest_of(stage - 1) if stage else "genesis",
                "rounds": [rounds[0], rounds[-1]],
                "version": rounds[-1] + 1,
                "env_steps": sum(ref.rows for ref in shards) * (stage + 1),
                "episodes": len(shards),
                "shards": [ref.to_json() for ref in shards],
                "states": [StateRef(state_name(stage, 0, rounds[-1], 0, content), content, 1, rounds[-1], 0).to_json()],
                "snapshots": [
                    SnapshotRef(snapshot_name(rounds[-1] + 1, content), content, 1, rounds[-1] + 1).to_json()
                ],
                "checkpoint": Ref(checkpoint_name(stage, content), content, 1).to_json(),
                "metrics": {},
                "evaluation": None,
                "finished": None,
                **changes,
            },
        )
    )


def make_stage(run: RunFolder, stage: int, rounds: int = 2, tiles: int = 3, steps: int = 4, envs: int = 2) -> None:
    """A stage of a made run: its shards, then its commit."""
    commit_stage(
        run,
        stage,
        [
            store_shard(run.store, COLUMNS, stage, round_, tile, steps, envs)
            for round_ in range(stage * rounds, (stage + 1) * rounds)
            for tile in range(tiles)
        ],
    )

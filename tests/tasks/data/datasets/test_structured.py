"""Public readers give a structured observation whole, as the networks' array, and its leaves by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from penstock import StoredReplayBuffer, TrajectoryDataset
from penstock.storage.digest import digest
from penstock.storage.errors import ConfigError
from penstock.storage.refs import Ref, ShardRef, checkpoint_name, shard_name
from penstock.storage.runs.commit_schema import Commit
from penstock.storage.runs.run import RunFolder
from penstock.storage.shards.codec import ShardColumns, ShardInfo, encode_shard
from penstock.storage.shards.episode_index import Episodes
from penstock.storage.shards.leaves import join_leaves
from penstock.storage.shards.specs import Leaf, Spec
from penstock.storage.stores.open import open_store
from penstock.tasks.data.input.memory_budget import BudgetShares
from penstock.tasks.data.input.shard_source import ShardSource

from ....support.stored.committed_run import CommittedRun

if TYPE_CHECKING:
    from pathlib import Path

STEPS, ENVS = 8, 2
LEAVES = (Leaf("camera", "image", "uint8", (6, 5, 3)), Leaf("shift", "choice", "int64", (), (3,)))
SEEN = Spec("float32", (93,), leaves=LEAVES)
COLUMNS = {"observation": SEEN, "reward": Spec("float32"), "action": Spec("int64")}


@pytest.fixture
def stored(tmp_path: Path) -> dict[str, np.ndarray]:
    """Commit a run of one stage in `runs`; its columns, and `after`."""
    draw = np.random.default_rng(3)
    leaves = {
        "observation.camera": draw.integers(0, 256, (STEPS, ENVS, 6, 5, 3), dtype=np.uint8),
        "observation.shift": draw.integers(0, 3, (STEPS, ENVS)),
    }
    columns = {"observation": join_leaves(SEEN, leaves, "observation"), "action": draw.integers(0, 2, (STEPS, ENVS))}
    columns["reward"] = draw.normal(size=(STEPS, ENVS)).astype(np.float32)
    after = columns["observation"][0]
    none: Any = np.empty(0, np.int64)
    episodes = Episodes.from_flags(
        row=none, env_id=none, episode_id=none, length=none, return_=none, terminated=none, truncated=none,
        first_policy_version=none, last_policy_version=none,
    )  # fmt: skip
    info = ShardInfo(1, 0, 0, 0, STEPS, ENVS, 0, 0, "any", {}, episodes)
    ends = np.arange((STEPS - 1) * ENVS, STEPS * ENVS)
    encoded = encode_shard(ShardColumns(COLUMNS, columns), ends, after, info)
    run = CommittedRun(tmp_path).folder
    ref = ShardRef(shard_name(0, 0, 0, 0, encoded.digest), encoded.digest, encoded.nbytes, 0, 0, STEPS * ENVS)
    run.store.write(ref.name, encoded.parts)
    run.log.append(
        Commit(
            stage=0,
            parent=run.genesis(),
            rounds=(0, 0),
            version=1,
            env_steps=STEPS * ENVS,
            episodes=0,
            shards=(ref,),
            states=(),
            snapshots=(),
            checkpoint=Ref(checkpoint_name(0, digest(b"")), digest(b""), 0),
            metrics={},
            evaluation=None,
            finished=None,
        )
    )
    return {**columns, **leaves, "after": after}


def test_a_dataset_reads_leaves_by_name(stored: dict[str, np.ndarray], tmp_path: Path):
    """In their own types, next to whole columns and what followed; without names, the array is read."""
    names = ("observation.camera", "observation.shift", "next_observation", "action")
    (batch,) = TrajectoryDataset(str(tmp_path / "runs"), "small", columns=names, batch_rows=STEPS * ENVS)
    assert set(batch) == set(names)
    for name in ("observation.camera", "observation.shift", "action"):
        assert batch[name].numpy().dtype == stored[name].dtype
        assert np.array_equal(batch[name].unflatten(0, (STEPS, ENVS)).numpy(), stored[name]), name
    following = np.concatenate([stored["observation"][1:], stored["after"][None]])
    assert np.array_equal(batch["next_observation"].unflatten(0, (STEPS, ENVS)).numpy(), following)
    (whole,) = TrajectoryDataset(str(tmp_path / "runs"), "small", batch_rows=STEPS * ENVS)
    assert set(whole) == set(COLUMNS)
    assert whole["observation"].numpy().tobytes() == stored["observation"].tobytes()


def test_a_replay_buffer_reads_leaves_by_name(stored: dict[str, np.ndarray], tmp_path: Path):
    """Rows belong together, and an unknown leaf is refused with those that there are."""
    names = ("observation.camera", "observation.shift", "observation")
    with StoredReplayBuffer(str(tmp_path / "runs"), "small", capacity_rows=100, columns=names) as buffer:
        rows = {name: torch.as_tensor(column).numpy() for name, column in buffer.sample(32).columns.items()}
    assert rows["observation.camera"].dtype == np.uint8
    again = join_leaves(SEEN, {name: rows[name] for name in names[:2]}, "observation")
    assert np.array_equal(again, rows["observation"])
    with (
        pytest.raises(ConfigError, match=r"has no observation\.sound; it has observation, .*observation\.camera"),
        StoredReplayBuffer(str(tmp_path / "runs"), "small", capacity_rows=100, columns=("observation.sound",)) as other,
    ):
        other.sample(1)


@pytest.mark.parametrize(
    ("columns", "joined"), [(None, 93 * 4), (("observation.camera",), 0), (("observation",), 93 * 4)]
)
def test_the_memory_budget_counts_arrays_that_are_joined(
    stored: dict[str, np.ndarray], tmp_path: Path, columns: Any, joined: int
):
    """They are no views of the file, and larger than it."""
    run = RunFolder(open_store(str(tmp_path / "runs")), "small")
    (ref,) = run.log.shard_refs()
    source = ShardSource(
        run.store,
        BudgetShares(1 << 20, 1 << 20, 1),
        None,
        expected=COLUMNS,
        columns=columns,
        cache=None,
        verify_all=False,
    )  # type: ignore[arg-type]
    read = source.read(ref)
    assert source.memory_bytes(ref) == read.held_bytes == ref.nbytes + joined * STEPS * ENVS
    source.close()

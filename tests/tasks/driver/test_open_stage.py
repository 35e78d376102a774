"""Objects that a power cut left empty or cut are removed before a run is resumed; intact ones stay."""

from __future__ import annotations

import errno
import logging
import os
from typing import TYPE_CHECKING

import pytest

from penstock.storage.digest import digest
from penstock.storage.errors import StoreError
from penstock.storage.refs import checkpoint_name, snapshot_name, state_name
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store
from penstock.tasks.driver.attempts import give_up
from penstock.tasks.driver.open_stage import repair_open_stage

from ...support.stored.stored_run import damage
from ...support.stored.synthetic_shards import store_shard

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.storage.stores.local import LocalStore
    from penstock.tasks.runtime.run_context import RunContext

    from ..conftest import MakeContext

KINDS = ["altered", "cut", "empty"]


@pytest.fixture
def context(make_context: MakeContext) -> RunContext:
    """Return a run without commits, in a folder."""
    return make_context()


@pytest.fixture
def stored(context: RunContext) -> list[str]:
    """Store two of each kind of object that a stage leaves, as if it had not been committed."""
    store = context.run.store
    names = [store_shard(store, context.columns, 0, 0, tile, 8, 3).name for tile in (0, 1)]
    for number, name in enumerate(
        (
            lambda content: state_name(0, 0, 0, 0, content),
            lambda content: state_name(0, 0, 0, 1, content),
            lambda content: snapshot_name(1, content),
            lambda content: snapshot_name(2, content),
            lambda content: checkpoint_name(0, content),
        )
    ):
        data = bytes([number]) * 1000
        names.append(name(digest(data)))
        store.write(names[-1], [data])
    return names


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_objects_are_removed(context: RunContext, stored: list[str], kind: str, caplog, tmp_path: Path):
    """One of each kind is damaged: those go, the others stay, and one line says how many there were."""
    folder = tmp_path / "root" / "small"
    damaged = [stored[0], stored[2], stored[4], stored[6]]
    for name in damaged:
        damage(folder, name, kind)
    with caplog.at_level(logging.WARNING):
        assert repair_open_stage(context.run, 0, 0) == 4
    assert [name for name in stored if not context.run.store.exists(name)] == damaged
    (line,) = caplog.messages
    assert "4 of 7 objects of the unfinished stage" in line
    assert "1 checkpoints, 1 shards, 1 snapshots, 1 states" in line
    caplog.clear()
    assert repair_open_stage(context.run, 0, 0) == 0
    assert caplog.messages == []


def test_the_first_snapshot_belongs_to_the_first_stage(context: RunContext, tmp_path: Path):
    """Version 0 is published before the first round, and no commit names it yet."""
    name = snapshot_name(0, digest(b"parameters"))
    context.run.store.write(name, [b"parameters"])
    damage(tmp_path / "root" / "small", name, "empty")
    assert repair_open_stage(context.run, 0, -1) == 1
    assert not context.run.store.exists(name)


def test_objects_of_an_earlier_attempt_are_left_alone(context: RunContext, stored: list[str], tmp_path: Path):
    """Nothing reads them any more; only the checkpoint is not an attempt's own."""
    for name in stored:
        damage(tmp_path / "root" / "small", name, "empty")
    give_up(context.run, 0, 0, "shards differ")
    assert repair_open_stage(context.run, 0, 0) == 1
    assert [name for name in stored if not context.run.store.exists(name)] == stored[-1:]


def test_a_remote_store_is_not_asked(s3_url: str):
    """It keeps whole objects or none, and every request costs."""
    run = RunFolder(open_store(s3_url, endpoint_url="http://127.0.0.1:9"), "small")
    assert repair_open_stage(run, 0, 0) == 0


def test_what_is_committed_and_what_is_foreign_is_left_alone(context: RunContext, stored: list[str], tmp_path: Path):
    """Snapshots of committed versions, objects of other stages and attempts, and other programs' files."""
    folder = tmp_path / "root" / "small"
    for name in stored:
        damage(folder, name, "empty")
    foreign = ["shards/00000000/.DS_Store", "snapshots/readme.txt", "states/00000000/.nfs0001"]
    for name in foreign:
        (folder / name).write_bytes(b"")
    assert repair_open_stage(context.run, 1, 2) == 0
    assert repair_open_stage(context.run, 0, 1) == 6
    assert context.run.store.exists(stored[4])
    assert all((folder / name).exists() for name in foreign)


def test_what_a_disk_cannot_read_is_removed(context: RunContext, stored: list[str], monkeypatch):
    """It is made again, as what is damaged is; a store that answers otherwise may have it a minute later."""
    store = type(context.run.store)
    read, code = store.read, errno.EIO

    def failing(self: LocalStore, name: str) -> bytes:
        if name == stored[3]:
            raise StoreError("cannot read") from OSError(code, os.strerror(code))
        return read(self, name)

    monkeypatch.setattr(store, "read", failing)
    assert repair_open_stage(context.run, 0, 0) == 1
    monkeypatch.undo()
    assert [name for name in stored if not context.run.store.exists(name)] == [stored[3]]
    context.run.store.write(stored[3], [b"again"])
    code = errno.ETIMEDOUT
    monkeypatch.setattr(store, "read", failing)
    with pytest.raises(StoreError, match="cannot read"):
        repair_open_stage(context.run, 0, 0)

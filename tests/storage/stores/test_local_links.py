"""A folder that others can write to: symbolic links and pipes in it lead nowhere, and nothing waits for them."""

import os
import time
from pathlib import Path

import pytest

from penstock.storage.errors import ObjectNotFoundError, StoreError
from penstock.storage.stores.local import LEFTOVER_SECONDS, LocalStore


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Return a folder of somebody's with two files, one of which looks half-written and old."""
    (folder := tmp_path / "elsewhere").mkdir()
    (folder / "precious").write_text("mine")
    (old := folder / ".tmp-mine").write_text("mine")
    long_ago = time.time() - 2 * LEFTOVER_SECONDS
    os.utime(old, (long_ago, long_ago))
    return folder


def contents(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_nothing_behind_a_link_is_listed_written_or_removed(tmp_path: Path, elsewhere: Path):
    """A link in a run would else choose what its readers and `penstock gc` write and remove."""
    store = LocalStore(tmp_path / "run")
    store.write("commits/a", [b"one"])
    (tmp_path / "run" / "shards").symlink_to(elsewhere)
    (tmp_path / "run" / "notes").symlink_to(elsewhere / "precious")
    before = contents(elsewhere)
    assert store.list() == ["commits/a"]
    for refused in (
        lambda: store.write("shards/new", [b"two"]),
        lambda: store.write("shards/deep/new", [b"two"]),
        lambda: store.create("shards/new", b"two"),
        lambda: store.delete(["shards/precious"]),
    ):
        with pytest.raises(StoreError, match="'shards' is a symbolic link"):
            refused()
    assert contents(elsewhere) == before
    store.delete(["commits/a"])
    assert store.list() == []


def test_the_root_may_be_a_link(tmp_path: Path):
    """People move their runs to a larger disk."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    store = LocalStore(tmp_path / "runs")
    store.write("shards/a", [b"one"])
    assert LocalStore(tmp_path / "disk").list() == store.list() == ["shards/a"]
    store.delete(["shards/a"])
    assert contents(tmp_path / "disk") == set()


def test_a_pipe_is_no_object(tmp_path: Path):
    """Opening it would wait for somebody to write into it."""
    store = LocalStore(tmp_path)
    os.mkfifo(tmp_path / "run.json")
    for read in (store.read, store.view, lambda name: store.read_range(name, 0, 10)):
        with pytest.raises(ObjectNotFoundError):
            read("run.json")
    assert not store.exists("run.json")

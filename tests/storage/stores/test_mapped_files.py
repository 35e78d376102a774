"""A file that a process has mapped: replacing it changes nothing there, and cutting it in place ends that process."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from penstock.storage.stores.local import LocalStore

if TYPE_CHECKING:
    from pathlib import Path

NBYTES = 1 << 20
CUT_WHILE_READ = f"""
import os, sys
from penstock.storage.stores.local import LocalStore
view = LocalStore(sys.argv[1]).view("shards/s")
os.truncate(os.path.join(sys.argv[1], "shards/s"), 8192)
print(view[0], flush=True)
print(view[{NBYTES // 2}], flush=True)
"""


@pytest.mark.parametrize("is_ranged", [False, True])
def test_what_was_mapped_outlives_a_replaced_or_removed_file(tmp_path: Path, is_ranged: bool):
    """As a resumed run replaces a damaged shard, and garbage collection removes an old one."""
    store = LocalStore(tmp_path)
    store.write("shards/s", [bytes(range(256)) * (NBYTES // 256)])
    view = store.read_range("shards/s", 0, NBYTES) if is_ranged else store.view("shards/s")
    store.write("shards/s", [b"short"])
    assert bytes(view[-256:]) == bytes(range(256))
    store.delete(["shards/s"])
    assert bytes(view[:256]) == bytes(range(256))


def test_a_file_that_is_cut_in_place_ends_its_reader_by_a_bus_error(tmp_path: Path):
    """As docs/operations.md says: no program of Penstock's writes a stored file in place."""
    LocalStore(tmp_path).write("shards/s", [bytes([7]) * NBYTES])
    ended = subprocess.run([sys.executable, "-c", CUT_WHILE_READ, str(tmp_path)], capture_output=True, check=False)
    assert ended.stdout == b"7\n"
    assert ended.returncode == -signal.SIGBUS

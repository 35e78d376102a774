"""Files that were not flushed may be lost in a power cut: the run is resumed to the same bytes nevertheless.

Works on any disk: a run's processes record which files they flush. After all are killed, each other file is kept,
emptied or cut by chance, in many ways for each stop. `test_power_cut.py` does the same with a real file system.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.storage.runs.lease import LEASE

from ...support.processes.commands import Cluster
from ...support.stored.stored_run import StoredRun, assert_same
from ..conftest import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

STOPS, CUTS = 5, 10
SETTINGS = Settings(lag=1)
RECORDING = """
import os
_fsync, _log = os.fsync, os.open(os.environ["PENSTOCK_SYNC_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def fsync(file):
    _fsync(file)
    found = os.fstat(file if isinstance(file, int) else file.fileno())
    os.write(_log, b"%d,%d\\n" % (found.st_ino, found.st_mtime_ns))

os.fsync = fsync
"""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of processes that record which files they flush: by inode and time, as inodes recur."""
    folder = tmp_path_factory.mktemp("recording")
    (folder / "sitecustomize.py").write_text(RECORDING)
    return {"PYTHONPATH": str(folder), "PENSTOCK_SYNC_LOG": str(folder / "flushed")}


@pytest.fixture(scope="module")
def recording_cluster(recording, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(2, 2, recording, tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.close()


@pytest.mark.parametrize("stop", [0, *(pytest.param(stop, marks=pytest.mark.long) for stop in range(1, STOPS))])
def test_forgotten_writes_are_made_again(bench, references, recording, recording_cluster, stop):
    """Objects that commits name were flushed; of the rest any may be missing, in any combination, also the lease."""
    chance = random.Random(stop)
    where = ("--store", bench.store, "--scheduler", recording_cluster.address)
    flow = bench.penstock("train", bench.preset(SETTINGS), "--name", "stopped", *where, cold=True, **recording)
    run, folder = bench.run("stopped"), Path(bench.store) / "stopped"
    run.wait_for_round(chance.randrange(2, SETTINGS.all_rounds - 4), flow)
    flow.kill()
    recording_cluster.members.wait_idle()
    flushed = set(Path(recording["PENSTOCK_SYNC_LOG"]).read_text().split())
    found = {name: (folder / name).stat() for name in run.store.list()}
    forgotten = [name for name, status in found.items() if f"{status.st_ino},{status.st_mtime_ns}" not in flushed]
    named = {
        ref["name"] for commit in run.commits() for kind in ("shards", "states", "snapshots") for ref in commit[kind]
    }
    named |= {commit["checkpoint"]["name"] for commit in run.commits()}
    assert not {*named, "run.json", *run.store.list("commits/")} & {*forgotten}
    assert forgotten
    for cut in range(CUTS):
        name = f"cut-{cut}"
        shutil.copytree(folder, Path(bench.store) / name)
        for path in (Path(bench.store) / name / file for file in forgotten):
            # An empty lease is watched for half a minute: once for each stop.
            if path.name != LEASE or not cut:
                data = path.read_bytes()
                path.write_bytes(data[: chance.choice((0, chance.randrange(max(1, len(data))), len(data)))])
        bench.resume(name).succeed()
        assert_same(StoredRun(bench.store, name), references.content(SETTINGS))

"""Disks that are full or can only be read: the first is named and survived, the second is enough for readers.

Needs the right to mount a file system; where the machine does not give it, the test is skipped and says so.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ...support.stored.stored_run import StoredRun, assert_same
from ..conftest import BRIEF

pytestmark = pytest.mark.slow


PAGE_BYTES = 4096


@pytest.fixture
def disk(tmp_path):
    """Mount a file system, and give its folder."""
    (folder := tmp_path / "disk").mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=100m", "penstock", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_is_named(bench, references, disk):
    """The last line has the disk's error, not the lease's."""
    store, finished = str(disk / "runs"), references.run(BRIEF)
    files = [path for path in (Path(finished.url) / finished.name).rglob("*") if path.is_file()]
    half = sum(-(-path.stat().st_size // PAGE_BYTES) for path in files) * PAGE_BYTES // 2
    subprocess.run(["mount", "-o", f"remount,size={half}", str(disk)], check=True)
    flow = bench.train("full", BRIEF, store=store)
    assert flow.wait() == 1, flow.output
    *_, last = flow.errors.strip().splitlines()
    assert last.startswith("error: ")
    assert "No space left on device" in last, flow.output
    subprocess.run(["mount", "-o", "remount,size=100m", str(disk)], check=True)
    bench.resume("full", store=store).succeed()
    assert_same(StoredRun(store, "full"), references.content(BRIEF))


def test_a_read_only_archive_can_be_evaluated(bench, references, disk):
    """All commands that read work; the result of an evaluation is printed, with a warning that it is not kept."""
    run = references.run(BRIEF)
    shutil.copytree(Path(run.url) / run.name, disk / run.name)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    where = ("--store", str(disk))
    expected = bench.penstock("evaluate", run.name, "--episodes", "3", "--store", run.url).succeed()
    evaluation = bench.penstock("evaluate", run.name, "--episodes", "3", *where, cold=True)
    assert evaluation.succeed().rpartition(" in ")[0] == expected.rpartition(" in ")[0]
    assert "Read-only file system" in evaluation.errors
    for command in (("runs",), ("show", run.name), ("verify", run.name), ("gc", run.name, "--dry-run")):
        bench.penstock(*command, *where).succeed()
    bench.penstock("fork", run.name, "forked", "--from-stage", "0", *where, "--to", bench.store).succeed()

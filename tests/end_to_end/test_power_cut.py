"""A run on a disk that loses its power is resumed without help, and ends with the bytes of an undisturbed run."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import struct
import subprocess
from typing import TYPE_CHECKING

import pytest

from ..support.processes import wait_until
from ..support.stored_run import StoredRun, assert_same
from .conftest import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

CUTS = int(os.environ.get("PENSTOCK_POWER_CUTS", "3"))
LONG = Settings(stages=2, rounds=600, tiles=2, act_tasks=1)
# From Linux's ext4.h: the file system stops at once, and loses what is neither on the disk nor in the journal there.
FS_IOC_SHUTDOWN = 0x8004587D
WITHOUT_FLUSHING = 2


class Disk:
    """An ext4 file system in a file. Its journal is written every second: names reach the disk before contents."""

    def __init__(self, folder: Path) -> None:
        self.image, self.mounted = folder / "image", folder / "mounted"
        with self.image.open("wb") as image:
            image.truncate(256 << 20)
        subprocess.run(["mkfs.ext4", "-q", self.image], check=True)
        self.mounted.mkdir()
        self.mount()

    def mount(self) -> None:
        subprocess.run(["mount", "-o", "loop,commit=1", self.image, self.mounted], check=True, capture_output=True)

    def cut(self) -> None:
        descriptor = os.open(self.mounted, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, FS_IOC_SHUTDOWN, struct.pack("I", WITHOUT_FLUSHING))
        finally:
            os.close(descriptor)

    def unmount(self) -> None:
        """Unmount, as soon as the last process that used it has ended."""
        wait_until(
            lambda: subprocess.run(["umount", self.mounted], check=False, capture_output=True).returncode == 0,
            "the end of all processes that use the disk",
        )


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if os.geteuid() or not shutil.which("mkfs.ext4"):
        pytest.skip("cutting the power of a disk needs root and mkfs.ext4 (apt-get install e2fsprogs)")
    try:
        disk = Disk(tmp_path)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this machine mounts no file as a disk: {error.stderr}")
    yield disk
    disk.unmount()


@pytest.mark.parametrize("seed", range(CUTS))
def test_a_power_cut_is_survived_without_help(bench, references, disk, seed, request):
    """At a random moment of the second stage, everything that was not synced is lost, and all processes end."""
    expected = references.content(LONG)
    where = ("--store", str(disk.mounted / "runs"), "--lease-seconds", "3")
    flow = bench.penstock("train", bench.preset(LONG), "--name", "cut", *where)
    run = StoredRun(str(disk.mounted / "runs"), "cut")
    run.wait_for_round(LONG.rounds + random.Random(seed).randrange(100, 500), flow)
    disk.cut()
    request.addfinalizer(bench.close)  # before the disk is unmounted
    flow.kill_group()
    disk.unmount()
    disk.mount()
    assert len(run.commits()) == 1
    again = bench.penstock("resume", "cut", *where)
    again.succeed()
    assert_same(run, expected)

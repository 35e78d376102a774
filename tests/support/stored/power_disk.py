"""A real file system that loses its power: ext4 in a file, with everything lost that was not flushed."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from typing import TYPE_CHECKING

from ..processes.commands import wait_until

if TYPE_CHECKING:
    from pathlib import Path

# From Linux's ext4.h: the file system stops at once, and loses what is neither on the disk nor in the journal there.
FS_IOC_SHUTDOWN = 0x8004587D
WITHOUT_FLUSHING = 2


class NoDiskError(Exception):
    """No file can be mounted as a disk here."""


class PowerDisk:
    """An ext4 file system in a file. Its journal is written every second: names reach the disk before contents."""

    def __init__(self, folder: Path) -> None:
        """Make and mount it.

        Args:
            folder: gets the file and the mount point.

        Raises:
            NoDiskError: this machine or user cannot.
        """
        self.image, self.mounted = folder / "image", folder / "mounted"
        if os.geteuid() or not shutil.which("mkfs.ext4"):
            raise NoDiskError("cutting the power of a disk needs root and mkfs.ext4 (apt-get install e2fsprogs)")
        with self.image.open("wb") as image:
            image.truncate(256 << 20)
        try:
            subprocess.run(["mkfs.ext4", "-q", self.image], check=True)
            self.mounted.mkdir()
            self.mount()
        except subprocess.CalledProcessError as error:
            raise NoDiskError(f"this machine mounts no file as a disk: {error.stderr}") from error

    def mount(self) -> None:
        """Mount it, as a machine that starts again does."""
        subprocess.run(["mount", "-o", "loop,commit=1", self.image, self.mounted], check=True, capture_output=True)

    def cut(self) -> None:
        """Lose everything that is not on the disk, and fail from now on."""
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

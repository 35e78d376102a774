"""The built distributions, once for all tests of this folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import venv
from typing import TYPE_CHECKING

import pytest
from filelock import FileLock

from ..support.processes.installing import ROOT, run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The source distribution of the tracked files, and the wheel that is built from it.

    Compiling takes minutes, so that the first of pytest's processes builds and the others wait.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "distributions"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            _build(base / "sources", base / "built")
            (base / "built").rename(folder)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


def _build(source: Path, folder: Path) -> None:
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, files.decode().split("\0")):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name, follow_symlinks=False)
    venv.create(source / ".venv", with_pip=True)
    python = source / ".venv" / "bin" / "python"
    for command in (
        [python, "-m", "pip", "install", "--quiet", "build"],
        [python, "-m", "build", "--outdir", folder, source],  # the sources, and the wheel from them
    ):
        done = run(command, source)
        assert done.returncode == 0, done.stdout + done.stderr

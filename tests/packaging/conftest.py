"""The built distributions, once for all tests of this folder."""

from __future__ import annotations

import shutil
import subprocess
import venv
from typing import TYPE_CHECKING

import pytest

from ..support.installing import ROOT, run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel and the source distribution, from a copy of the tracked files."""
    folder = tmp_path_factory.mktemp("distributions")
    source = folder / "source"
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, files.decode().split("\0")):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name, follow_symlinks=False)
    venv.create(folder / "build", with_pip=True)
    python = folder / "build" / "bin" / "python"
    for command in (
        [python, "-m", "pip", "install", "--quiet", "build"],
        [python, "-m", "build", "--sdist", "--outdir", folder, source],
        [python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, source],
    ):
        done = run(command, folder)
        assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}

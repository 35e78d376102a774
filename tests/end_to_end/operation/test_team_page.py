"""The commands of docs/team.md, run as they stand on the page."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock import tasks
from penstock.storage.runs.copying import copy_run
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store

from ...support.stored.stored_run import StoredRun
from ..conftest import BRIEF

if TYPE_CHECKING:
    from ..conftest import References

PAGE = Path(tasks.__path__[0]).resolve().parent / "docs/team.md"


def commands(heading: str) -> list[str]:
    """Return the indented blocks below a heading."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    blocks: list[list[str]] = [[]]
    for line in section.splitlines():
        if line.startswith("    "):
            blocks[-1].append(line)
        elif line and blocks[-1]:
            blocks.append([])
        elif blocks[-1]:
            blocks[-1].append("")
    return [textwrap.dedent("\n".join(block)).strip() for block in blocks if block]


@pytest.mark.slow
def test_a_backup_is_made_verified_and_restored(references: References, tmp_path: Path):
    """Each command of the section succeeds, and the restored run has the bytes of the lost one."""
    reference = references.run(BRIEF)
    copy_run(reference.folder, RunFolder(open_store(tmp_path / "runs"), "cartpole-1"))
    home = tmp_path / "home"
    (home / ".prefect").mkdir(parents=True)
    (home / ".prefect/prefect.db").touch()  # an empty database
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(home)}
    blocks = commands("Backup")
    assert len(blocks) == 5
    for block in blocks:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
    (dated,) = tmp_path.glob("backup/2*")
    for store in (tmp_path / "runs", dated):
        assert StoredRun(str(store), "cartpole-1").content() == reference.content()
    assert StoredRun(str(tmp_path / "backup/live"), "cartpole-1").commits() == reference.commits()[:1]
    assert (tmp_path / "prefect-backup.db").exists()

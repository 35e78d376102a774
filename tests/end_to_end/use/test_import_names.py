"""No process of a run imports `flows`, `tasks`, `storage` or `native` under its bare name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ...support.processes.commands import Command
from ..conftest import BRIEF

if TYPE_CHECKING:
    from ..conftest import Bench

ROOT = Path(__file__).parents[3]
RECORDER = """
import os, pathlib, sys

FOLDER = pathlib.Path(os.environ["PENSTOCK_TEST_IMPORTS"])


class Recorder:
    def find_spec(self, name, path=None, target=None):
        if name in ("flows", "tasks", "storage", "native"):
            (FOLDER / f"bare-{name}-{os.getpid()}").write_text(repr(sys.argv))
        elif name in ("penstock.tasks.roles.worker.entrypoint", "penstock.tasks.driver.run"):
            (FOLDER / f"{name.rpartition('.')[2]}-{os.getpid()}").touch()
        return None


sys.meta_path.insert(0, Recorder())
"""


@pytest.mark.slow
def test_no_process_of_a_run_imports_bare_names(bench: Bench):
    """The flow and its workers start in the checkout, where `import tasks` would load a second copy of everything."""
    folder = bench.folder / "imports"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(RECORDER)
    environment = {**bench.environment, "PYTHONPATH": str(folder), "PENSTOCK_TEST_IMPORTS": str(folder)}
    arguments = ("train", bench.preset(BRIEF), "--name", "named", "--store", bench.store)
    command = Command(arguments, environment, bench.folder / "command", cwd=ROOT, cold=True)
    bench.commands.append(command)
    command.succeed()
    recorded = sorted(path.name for path in folder.iterdir() if not path.name.startswith(("sitecustomize", "__")))
    assert [name for name in recorded if name.startswith("bare-")] == []
    assert len({name for name in recorded if name.startswith("entrypoint-")}) >= 2  # an actor's process and a learner's
    assert any(name.startswith("run-") for name in recorded)

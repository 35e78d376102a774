"""Runs from Python have the bytes of the command's: in scripts without guard, event loops, and after interrupts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock

from ...support.processes.commands import PATIENCE_SECONDS
from ...support.stored.stored_run import assert_same
from ..conftest import BRIEF, Settings

if TYPE_CHECKING:
    from ..conftest import Bench, References

NOTEBOOK = Path(__file__).parents[3] / "docs" / "training.ipynb"
INTERRUPTED = Settings(stages=2, rounds=60, tiles=2, act_tasks=1)

IN_A_LOOP = """
import asyncio, sys, penstock
preset, store, scheduler = sys.argv[1:]

async def main():
    run = penstock.train(preset, name="python", store=store, scheduler=scheduler)
    again = penstock.resume(run)
    print(repr(again), again.finished)

asyncio.run(main())
"""

TWICE = """
import os, signal, sys, threading, time
import penstock

preset, store = sys.argv[1:]
print("imported", flush=True)

def interrupt():
    while not any(os.scandir(shards)) if os.path.isdir(shards := f"{store}/python/shards") else True:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
before = dict(os.environ)
try:
    penstock.train(preset, name="python", store=store)
except KeyboardInterrupt as stop:
    print(*stop.__notes__)
else:
    sys.exit("not interrupted")
print("changed", {name for name in {*before, *os.environ} if before.get(name) != os.environ.get(name)
                  and name.startswith(("PREFECT_", "OMP_", "MKL_"))})
run = penstock.resume("python", store=store)
print(run.finished)
"""


def run_script(bench: Bench, script: str, *arguments: str, environment: dict[str, str] | None = None) -> str:
    """Run a script as a user does, by default with the shared server of Prefect; return what it printed."""
    path = bench.folder / "script.py"
    path.write_text(script)
    done = subprocess.run(
        [sys.executable, str(path), *arguments],
        env={**os.environ, **(bench.environment if environment is None else environment)},
        cwd=bench.folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_run_from_python_has_the_bytes_of_the_commands(bench: Bench, references: References):
    """Also where an event loop runs, as in a notebook; a finished run is resumed without effect."""
    said = run_script(bench, IN_A_LOOP, bench.preset(BRIEF), bench.store, bench.scheduler)
    assert "stage   1" in said, said
    assert f"penstock.Run('python', store={bench.store!r}) max_stages 2 done" in said
    assert "never awaited" not in said
    assert_same(bench.run("python"), references.content(BRIEF))


@pytest.mark.slow
def test_an_interrupted_script_continues(bench: Bench, references: References, tmp_path: Path):
    """A script without guard, with a server and workers of its own, is interrupted, and resumes to the same bytes.

    No worker imports the script, what it started is gone, and its environment is as before.
    """
    environment = {"PREFECT_HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    said = run_script(bench, TWICE, bench.preset(INTERRUPTED), bench.store, environment=environment)
    assert said.count("imported") == 1
    assert (
        f"run 'python' is stopped and its last commit is intact; penstock.resume('python', store={bench.store!r})"
        in said
    )
    assert "changed set()" in said
    assert "max_stages 2 done" in said
    assert_same(bench.run("python"), references.content(INTERRUPTED))


@pytest.mark.slow
def test_the_notebook_runs(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """docs/training.ipynb, committed without outputs, runs in a real kernel, with plain lines and a curve."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    for name, value in bench.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    NotebookClient(
        notebook, timeout=int(PATIENCE_SECONDS), kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    outputs = [output for cell in code for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs), outputs
    said = "".join(output.text for output in outputs if output.output_type == "stream")
    assert "stage   3" in said
    assert "\x1b" not in said, "a cell moves no cursor"
    assert penstock.Run(tmp_path / "runs" / "notebook").finished

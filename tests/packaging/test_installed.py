"""The wheel that the source distribution gives works where nothing of the checkout is, next to a user's own modules.

It is installed with its dependencies, which takes minutes and a package index.
"""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
import tomllib
import venv
import zipfile
from typing import TYPE_CHECKING

import pytest

from ..support.processes.installing import ROOT, Installed

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^(?://|#) ([\w./]+\.\w+)\n")
INSTALL = re.compile(r"^    (pip install (?:scikit-build-core .*|--no-build-isolation \.))$", re.MULTILINE)
PRINTED = re.compile(r"^print\(.*\)  # (.*)$", re.MULTILINE)
NAMES = ("flows", "tasks", "storage", "native")
WORKER = """
import sys

from distributed import Client, get_worker

def loaded():
    import penstock.tasks.roles.worker.entrypoint
    return penstock.__file__, sorted({"flows", "tasks", "storage", "native"} & set(sys.modules))

with Client(sys.argv[1], timeout=150) as client:
    client.wait_for_workers(1, timeout=150)
    print(*client.submit(loaded).result(120))
"""


@pytest.fixture(scope="module")
def installed(distributions: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """A fresh environment, and a folder with modules of the user's that must not be imported."""
    place = tmp_path_factory.mktemp("installed")
    venv.create(place / "venv", with_pip=True)
    folder = place / "work"
    for name in ("storage", "flows", "native"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"raise ImportError('the {name} of the user was imported')\n")
    (folder / "tasks.py").write_text("raise ImportError('the tasks of the user were imported')\n")
    there = Installed(place / "venv" / "bin", folder)
    there.run("python", "-m", "pip", "install", "--quiet", str(distributions["wheel"]))
    return there


def test_the_wheel_holds_everything_and_the_sources_hold_it_too(distributions: dict[str, Path]):
    """Modules, presets, pages, headers and compiled modules below `penstock/`; nothing under a bare name."""
    tracked = subprocess.run(["git", "ls-files", *NAMES], cwd=ROOT, capture_output=True, text=True, check=True)
    modules = {f"penstock/{name}" for name in tracked.stdout.splitlines() if name.endswith((".py", ".toml", ".hpp"))}
    modules = {name for name in modules if not name.startswith(("penstock/native/src/", "penstock/native/packages/"))}
    with zipfile.ZipFile(distributions["wheel"]) as wheel:
        names = set(wheel.namelist())
    assert modules <= names
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"penstock"}
    assert any(re.fullmatch(r"penstock/native/_core\..*\.so", name) for name in names)
    assert "penstock/py.typed" in names
    with tarfile.open(distributions["sdist"]) as sdist:
        sources = {name.partition("/")[2] for name in sdist.getnames()}
    assert modules <= sources
    assert "native/CMakeLists.txt" in sources


def test_a_script_imports_penstock(installed: Installed):
    """In a folder with modules of the same names, which a script's folder puts first on the path."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    (installed.folder / "script.py").write_text(
        "import sys, penstock\n"
        "from penstock import TrainConfig, make\n"
        "observation, _ = make('CartPole-v1', 2).reset(seed=0)\n"
        f"print(penstock.__version__, observation.shape, sorted(set({NAMES!r}) & set(sys.modules)))\n"
    )
    assert installed.run("python", "script.py") == f"{version} (2, 4) []\n"
    assert installed.run("penstock", "--version") == f"penstock {version}\n"
    one = "import penstock; from penstock import native; print('CartPole-v1' in native.environment_ids())"
    assert installed.run("python", "-c", one) == "True\n"


def test_a_run_trains(installed: Installed):
    """`penstock train cartpole`, with its own Prefect server and workers, started in the user's folder."""
    options = ("--max-stages", "2", "--rounds-per-stage", "4", "--evaluation-episodes", "4", "--name", "first")
    said = installed.run("penstock", "train", "cartpole", *options)
    assert "run first" in said
    assert (installed.folder / "runs" / "first" / "commits" / "00000001.json").exists()


def test_a_dask_worker_imports_penstock(installed: Installed):
    """Dask puts a worker's folder on its path, where the user's modules are."""
    scheduler_file = installed.folder.parent / "scheduler.json"
    environment = {**os.environ, **installed.variables}
    for name in [name for name in environment if name.startswith(("PYTHON", "PREFECT_API"))]:
        del environment[name]
    common = {"cwd": installed.folder, "env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    where = ("--scheduler-file", str(scheduler_file))
    (installed.folder / "ask.py").write_text(WORKER)
    scheduler = [installed.bin / "dask", "scheduler", "--port", "0", "--no-dashboard", *where]
    worker = [installed.bin / "dask", "worker", "--nthreads", "1", "--no-dashboard", *where]
    with subprocess.Popen(scheduler, **common) as first, subprocess.Popen(worker, **common) as second:
        try:
            program = (
                (installed.folder / "ask.py")
                .read_text()
                .replace("Client(sys.argv[1], timeout=150)", "Client(scheduler_file=sys.argv[1], timeout=150)")
            )
            said = installed.run("python", "-c", program, str(scheduler_file))
        finally:
            second.terminate()
            first.terminate()
    assert said.startswith(str(installed.bin.parent))
    assert said.endswith("[]\n")


def test_the_environment_package_of_the_docs_installs(installed: Installed):
    """docs/environments.md: its header passes `check-env`, and its package, by pip, is found by `native.make`."""
    blocks = BLOCK.findall((ROOT / "docs" / "environments.md").read_text(encoding="utf-8"))
    package = installed.folder / "hover"
    for _, text in blocks:
        if named := FILE.match(text):
            (package / named[1]).parent.mkdir(parents=True, exist_ok=True)
            (package / named[1]).write_text(text)
    there = installed._replace(folder=package)
    (command,) = (text.split() for language, text in blocks if language == "sh")
    assert "all is well" in there.run(*command)

    installs = INSTALL.findall((ROOT / "docs" / "environments.md").read_text(encoding="utf-8"))
    assert len(installs) == 2
    for install in installs:
        there.run(*install.split())
    texts = iter(blocks)
    next(text for _, text in texts if text.startswith("# hover_env/__init__.py"))
    program = next(text for language, text in texts if language == "python")
    said = installed.run("python", "-c", f"from penstock import native\n{program}")
    assert said.splitlines() == PRINTED.findall(program)

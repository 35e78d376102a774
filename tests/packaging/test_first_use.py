"""A new user's path with the installed wheel: train, load, act, export, serve, query, warm start, sweep, and mistakes.

Installs the wheel with the extras that a path needs, which takes minutes and a package index.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
import venv
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from ..support.processes.commands import wait_until
from ..support.processes.installing import Installed, run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

EXTRAS = "analysis,onnx,sweeps,video"
SMALL = ("--rounds-per-stage", "4", "--evaluation-episodes", "4", "--target-return", "none")
ACT = """
import numpy, penstock
policy = penstock.load_policy("runs/c1")
print(policy.act(numpy.zeros(4, "float32")).shape, policy.act(numpy.zeros((3, 4), "float32")).shape)
print(list(penstock.Run("c1", store="runs").to_pandas()["stage"]))
"""
# Inputs and outputs have names, as docs/policy.md says, and zero noise gives the greedy action.
ONNX = """
import numpy, onnx
from onnx.reference import ReferenceEvaluator
import penstock
rows = numpy.random.default_rng(0).normal(size=(8, 4)).astype("float32")
noise = numpy.zeros((8, 2), "float32")
(action,) = ReferenceEvaluator(onnx.load("p.onnx")).run(None, {"observation": rows, "noise": noise})
print((action == penstock.load_policy("runs/c1").act(rows)).all())
"""
SWEEP = """
from penstock.flows.api.surroundings import quieten_prefect
quieten_prefect()
from penstock.flows.sweep import sweep
from penstock.tasks.setup.config.run import TrainConfig

if __name__ == "__main__":
    small = {"rounds_per_stage": 2, "max_stages": 1, "evaluation_episodes": 2, "target_return": None}
    config = TrainConfig(store="runs", environment={"num_envs": 8, "envs_per_tile": 8}, schedule=small)
    print(len(sweep(name=NAME, grid=GRID, config=config)))
"""
WRONG = {
    "train": ["no-such-preset", "cartpole --learning-rate fast", "broken.toml"],
    "replay": ["r --from nobody", "r --from c1 --stages 9:3", "r --from c1 --algorithm.name chess"],
    "resume": ["nobody", "c1 --act-tasks many", "c1 --store notes.txt"],
    "extend": ["nobody --max-stages 3", "c1 --max-stages 0", "c1 --target-return high"],
    "fork": ["nobody f --from-stage 0", "c1 f --from-stage 9", "c1 c1 --from-stage 0"],
    "copy": ["nobody backup", "c1 notes.txt", "c1 backup --name Not/A"],
    "runs": ["--store nowhere", "--store notes.txt", "--store ftpx://x"],
    "show": ["nobody", "c1 --last 0", "c1 --store notes.txt"],
    "evaluate": ["nobody", "c1 --stage 99", "c1 --episodes none"],
    "verify": ["nobody", "c1 --since -1", "c1 --store notes.txt"],
    "gc": ["nobody", "c1 --keep-checkpoints 0", "c1 --store notes.txt"],
    "report": ["nobody", "c1 --out page.pdf", "c1 c1"],
    "export": ["nobody q.pt2 --to torch", "c1 q.csv --to csv", "c1 q.pt2 --to torch --version 99"],
    "import": ["nowhere --name i", "notes.txt --name i", "runs --name i --from csv"],
    "play": ["nobody --video x.gif", "c1 --video x.avi", "c1 --video x.gif --version last"],
    "serve-env": ["Chess-v1 --port 0", "CartPole-v1 --port 99999", "CartPole-v1 --host 0.0.0.0 --port 0"],
    "serve-policy": ["nobody --port 0", "c1 --port 99999", "c1 --port 0 --version last"],
    "serve": ["--file nowhere.yaml", "--file broken.toml", "--file notes.txt"],
    "ui": ["--port many", "--port 99999", "--port -1"],
    "plan": ["no-such-preset", "cartpole --learning-rate fast", "broken.toml"],
    "scale": ["no-such-preset", "cartpole --actors none", "cartpole --assume nothing=1"],
    "simulate": ["--seeds 0", "--seed one", "--processes 0"],
    "envs": ["Chess-v1", "CartPole-v1 Ant-v5", "--all maybe"],
    "settings": ["no-such-setting", "--colour red", "lag stages"],
    "new-env": ["Two-Carts", "two-carts --folder nowhere", "runs"],
    "check-env": [
        "Chess-v1",
        "nowhere.hpp",
        "runs",
        "CartPole-v1 --environment.structured true",
        "CartPole-v1 --lag 1",
    ],
    "check-algorithm": ["chess", "nowhere.py", "ppo --env Chess-v1"],
    "floorplan": ["cost nowhere.pb.txt", "place notes.txt", "place notes.txt notes.txt o --moves 0", "best nobody o"],
}
"""By command, three kinds of invalid input: what is not there, a value out of bounds, another kind of file.

tests/flows/cli/test_commands.py checks that no command lacks an entry."""


@pytest.fixture(scope="module")
def user(distributions: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """A fresh environment with the wheel and extras, and an empty folder."""
    place = tmp_path_factory.mktemp("user")
    folder = place / "work"
    folder.mkdir()
    venv.create(place / "venv", with_pip=True)
    there = Installed(place / "venv" / "bin", folder)
    there.run("python", "-m", "pip", "install", "--quiet", f"{distributions['wheel']}[{EXTRAS}]")
    return there


@pytest.fixture(scope="module")
def trained(user: Installed) -> Installed:
    """The same user with the run `c1` of two stages."""
    said = user.run("penstock", "train", "cartpole", "--name", "c1", "--max-stages", "2", *SMALL)
    assert "run c1" in said
    return user


def left_running(user: Installed) -> list[str]:
    """Return the command lines of processes that the environment's programs or this folder's commands still run."""
    lines = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        if str(user.bin.parent) in line:
            lines.append(line)
    return lines


def contents(folder: Path) -> dict[str, str]:
    """Return every path below a folder, with the digest of a file's bytes; a copy takes and returns the run's lease."""
    paths = sorted(path for path in folder.rglob("*") if path.name != "lease.json")
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "" for path in paths}


def commits(user: Installed, run: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((user.folder / "runs" / run / "commits").glob("*.json"))]


def ask(address: str, body: Any) -> tuple[int, dict[str, Any]]:
    """Post JSON to an address; return the status and the answer."""
    request = urllib.request.Request(address, json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=150) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def start(user: Installed, *command: str) -> subprocess.Popen[str]:
    environment = {**os.environ, **user.variables}
    for name in [name for name in environment if name.startswith(("PYTHON", "PREFECT_API"))]:
        del environment[name]
    return subprocess.Popen(
        [user.bin / command[0], *command[1:]], cwd=user.folder, env=environment, stdout=subprocess.PIPE, text=True
    )


def test_a_new_user_gets_from_the_wheel_to_a_sweep(trained: Installed):
    """Train, load, act, export, serve, query, warm start, extend, play, report, sweep; then no process is left."""
    user = trained
    assert len(commits(user, "c1")) == 2
    assert user.run("python", "-c", ACT).splitlines() == ["() (3,)", "[0, 1]"]

    user.run("penstock", "export", "c1", "p.onnx", "--to", "onnx")
    assert user.run("python", "-c", ONNX).strip() == "True"
    user.run("penstock", "export", "c1", "p.pt2", "--to", "torch", "--version", "best")
    assert (user.folder / "p.pt2").stat().st_size

    with start(user, "penstock", "serve-policy", "c1", "--port", "0") as server:
        try:
            assert server.stdout
            found = re.search(r"version (\d+) of run c1 at (http://\S+);", server.stdout.readline())
            assert found
            status, answer = ask(f"{found[2]}/act", {"observation": [0.1, 0.2, 0.3, 0.4]})
            assert (status, answer["version"], answer["action"] in {0, 1}) == (200, int(found[1]), True)
            for wrong in ({}, {"observation": [1, 2]}, {"observation": "left"}):
                status, answer = ask(f"{found[2]}/act", wrong)
                assert status in {400, 422}
                assert "observation" in answer["error"]
        finally:
            server.send_signal(signal.SIGINT)
        assert server.wait(300) == 130

    user.run("penstock", "train", "cartpole", "--name", "c2", "--init-from", "c1@best", "--max-stages", "1", *SMALL)
    assert len(commits(user, "c2")) == 1
    user.run("penstock", "extend", "c2", "--max-stages", "2")
    assert len(commits(user, "c2")) == 2
    user.run("penstock", "play", "c2", "--video", "x.gif", "--episodes", "1", "--max-steps", "20")
    assert (user.folder / "x.gif").read_bytes().startswith(b"GIF89a")
    user.run("penstock", "report", "c1", "c2", "--out", "both.html", "--no-clip")
    assert "c2" in (user.folder / "both.html").read_text()
    for command in (("runs",), ("show", "c2"), ("verify", "c2"), ("evaluate", "c2", "--episodes", "2"), ("gc", "c2")):
        user.run("penstock", *command)

    program = SWEEP.replace("NAME", "'rates'").replace("GRID", "{'learning_rate': [0.01, 0.003]}")
    (user.folder / "sweep.py").write_text(program)
    assert user.run("python", "sweep.py").splitlines()[-1] == "2"
    rows = json.loads((user.folder / "runs/.sweeps/rates/table.json").read_text())
    assert sorted(row["algorithm.learning_rate"] for row in rows) == [0.003, 0.01]
    assert (user.folder / "runs/.sweeps/rates/parallel_coordinates.svg").exists()
    wait_until(lambda: not left_running(user), lambda: f"the end of {left_running(user)}", 150, 0.5)


@pytest.mark.parametrize("command", WRONG)
def test_mistakes_are_one_line_of_error_and_leave_nothing(trained: Installed, command: str):
    """Exit status 1, or 2 with the usage; no traceback; no file is made or changed, and no process stays."""
    folder = trained.folder
    (folder / "broken.toml").write_text("[environment\n")
    (folder / "notes.txt").write_text("buy milk\n")
    before = contents(folder)
    for arguments in WRONG[command]:
        done = run([trained.bin / "penstock", command, *arguments.split()], folder, **trained.variables)
        said = f"{command} {arguments}: status {done.returncode}\n{done.stdout}{done.stderr}"
        assert done.returncode in {1, 2}, said
        assert "Traceback" not in said, said
        assert len(re.findall(r"^(?:error: |Error: |  FAIL )", said, re.MULTILINE)) == 1, said
        assert contents(folder) == before, said
        assert json.loads((folder / "runs/c1/lease.json").read_text())["released"], said
    wait_until(lambda: not left_running(trained), lambda: f"the end of {left_running(trained)}", 60, 0.5)


@pytest.mark.parametrize(
    ("grid", "says"),
    [
        ("{'learning_rat': [0.01]}", "learning_rat"),
        ("{'learning_rate': ['fast']}", "learning_rate"),
        ("{'learning_rate': 0.01}", "grid"),
    ],
)
def test_mistakes_in_a_sweep_start_no_run(trained: Installed, grid: str, says: str):
    """The error names the setting, and neither a run nor a record of the sweep is made."""
    before = contents(trained.folder / "runs")
    program = SWEEP.replace("NAME", "'wrong'").replace("GRID", grid)
    with pytest.raises(AssertionError, match=says):
        trained.run("python", "-c", program)
    assert contents(trained.folder / "runs") == before

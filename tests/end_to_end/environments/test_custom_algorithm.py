"""The files and commands of docs/custom_algorithm.md work as written; workers without the module report it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from penstock.flows.cli.check import check_one_algorithm

from ...support.processes.commands import Command
from ...support.stored.stored_run import StoredRun

DOCUMENT = Path(__file__).parents[3] / "docs" / "custom_algorithm.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^# (\w+\.\w+)\n")


@pytest.fixture
def blocks() -> list[tuple[str, str]]:
    return BLOCK.findall(DOCUMENT.read_text(encoding="utf-8"))


@pytest.fixture
def folder(blocks, tmp_path) -> Path:
    """Return a folder with the document's files."""
    for _, text in blocks:
        if named := FILE.match(text):
            (tmp_path / named[1]).write_text(text)
    return tmp_path


@pytest.mark.slow
def test_the_commands_of_the_tutorial_work(blocks, folder, flow_environment):
    """The algorithm passes its checks, reaches its target, and trains with two learners by one flag."""
    commands = [shlex.split(text) for language, text in blocks if language == "sh"]
    assert [command[:2] for command in commands] == [
        ["penstock", "check-algorithm"],
        ["penstock", "train"],
        ["penstock", "train"],
    ]
    said = []
    for number, command in enumerate(commands):
        started = Command(command[1:], flow_environment, folder / f"command-{number}", cwd=folder)
        try:
            said.append(started.succeed())
        finally:
            started.kill_group()
    assert said[0].rstrip().endswith("all is well")
    alone, together = StoredRun(str(folder / "runs"), "alone"), StoredRun(str(folder / "runs"), "together")
    assert alone.commits()[-1]["finished"] == "target_return 200 reached"
    assert alone.folder.load()["config"]["algorithm"]["entropy_weight"] == 0.01
    assert [commit["env_steps"] for commit in together.commits()] == [32 * 64 * 10]
    assert sorted(together.timings()[0]["members"]) == ["worker-0", "worker-1"]


def test_the_error_in_the_document_is_the_real_one(blocks, folder):
    """The message in the document is the one that a reader gets."""
    (shown,) = (text for language, text in blocks if language == "text")
    wrong = folder / "wrong_critic.py"
    source = (folder / "actor_critic.py").read_text()
    assert "batch.mean(square)" in source
    wrong.write_text(source.replace("batch.mean(square)", "square.mean()"))
    (found,) = (
        check.detail for check in check_one_algorithm(str(wrong), "CartPole-v1", []).checks if check.outcome == "fail"
    )
    assert re.sub(r"\d+%", "%", found) == re.sub(r"\d+%", "%", shown.strip())


@pytest.mark.slow
def test_workers_without_the_module_report_it(bench, folder):
    """On a cluster without the module, the error is one line with its name and what to do."""
    where = ["--store", bench.store, "--scheduler", bench.scheduler, "--name", "lost", "--max-stages", "1"]
    preset = str(folder / "actor_critic.toml")
    lost = bench.penstock("train", preset, *where, PYTHONPATH=str(folder))
    lost.refuse("there is no module 'actor_critic'", "PYTHONPATH")


@pytest.mark.slow
def test_another_user_must_trust_code_in_the_working_directory(bench, folder, tmp_path):
    """The user who trained is not asked; another one reads the error, and agrees once."""
    store = ["--store", bench.store]

    def penstock(name, *arguments, **environment):
        started = Command(arguments, {**bench.environment, **environment}, tmp_path / name, cwd=folder)
        bench.commands.append(started)
        return started

    penstock("train", "train", "actor_critic.toml", "--name", "mine", "--max-stages", "1", *store).succeed()
    penstock("mine", "evaluate", "mine", "--episodes", "2", *store).succeed()
    other = {"PENSTOCK_CONFIG_DIR": str(tmp_path / "other")}
    for number, command in enumerate((("evaluate", "mine"), ("resume", "mine"), ("replay", "again", "--from", "mine"))):
        penstock(f"refused-{number}", *command, *store, **other).refuse("actor_critic:", "--trust")
    penstock("trusted", "evaluate", "mine", "--episodes", "2", "--trust", *store, **other).succeed()
    penstock("again", "evaluate", "mine", "--episodes", "2", *store, **other).succeed()

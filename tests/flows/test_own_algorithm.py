"""docs/own_algorithm.md does what it says: its files are written, its commands run; who can not find it says so."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from flows.algorithm_checking import check_one_algorithm

from .processes import Command
from .stored import StoredRun

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "own_algorithm.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^# (\w+\.\w+)\n")


@pytest.fixture
def blocks() -> list[tuple[str, str]]:
    return BLOCK.findall(DOCUMENT.read_text(encoding="utf-8"))


@pytest.fixture
def folder(blocks, tmp_path) -> Path:
    """The document's files, as a reader would have them."""
    for _, text in blocks:
        if named := FILE.match(text):
            (tmp_path / named[1]).write_text(text)
    return tmp_path


def test_the_tutorial_does_what_it_says(blocks, folder, flow_environment):
    """Checked, trained to its target by a process and workers that find it, and under two learners with one flag."""
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


def test_the_fault_is_said_as_the_document_says(blocks, folder):
    """The message in the document is the one that a reader gets."""
    (shown,) = (text for language, text in blocks if language == "text")
    wrong = folder / "wrong_critic.py"
    source = (folder / "actor_critic.py").read_text()
    assert "square.sum() / count" in source
    wrong.write_text(source.replace("square.sum() / count", "square.mean()"))
    (found,) = (
        check.detail for check in check_one_algorithm(str(wrong), "CartPole-v1", []).checks if check.outcome == "fail"
    )
    assert re.sub(r"\d+%", "%", found) == re.sub(r"\d+%", "%", shown.strip())


def test_workers_that_can_not_find_it_say_so(bench, folder):
    """On a cluster where it is not installed: one line, with the module and what to do."""
    where = ["--store", bench.store, "--scheduler", bench.scheduler, "--name", "lost", "--max-stages", "1"]
    preset = str(folder / "actor_critic.toml")
    lost = bench.penstock("train", preset, *where, PYTHONPATH=str(folder))
    lost.refuse("there is no module 'actor_critic'", "PYTHONPATH")

"""`penstock verify` lists every fault, and says with --repair which of them it can't repair."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner, Result

from penstock.flows.cli.main import app
from penstock.storage.runs.run import RUN
from penstock.storage.stores.open import open_store

from ...storage.runs.test_gc import History
from ...support.stored.stored_run import damage

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def history(tmp_path: Path) -> History:
    """Return a run of a committed stage, and of a second one whose first shard is empty and named by no commit."""
    history = History(open_store(tmp_path / "runs"), real_shards=True)
    history.commit(0)
    history.parts(1)
    damage(tmp_path / "runs" / "history", leftover(history), "empty")
    return history


def leftover(history: History) -> str:
    return str(history.run.store.list("shards/00000001/")[0])


def verified(history: History, *options: str) -> Result:
    return CliRunner().invoke(app, ["verify", "history", "--store", history.run.root.url, *options])


def test_a_damaged_description_is_reported_with_what_else_is_damaged(history: History, tmp_path: Path):
    """The command goes on without `run.json`, and ends with 1; --repair removes nothing, and says why."""
    empty = leftover(history)
    damage(tmp_path / "runs" / "history", RUN, "cut")
    for options in ((), ("--repair",)):
        found = verified(history, *options)
        assert found.exit_code == 1
        assert found.stdout.splitlines()[0].startswith(f"{RUN}: '{RUN}' in ")
        assert f"\n{empty}: " in found.stdout
        assert "verified 1 commit " in found.stdout
        assert ("--repair can't make it again" in found.stdout) is bool(options)
        assert (f"--repair removed nothing: {RUN} of run" in found.stdout) is bool(options)
    assert history.run.store.exists(empty)


def test_a_missing_description_is_reported_with_what_else_is_damaged(history: History, tmp_path: Path):
    """With commits it is one of the faults, and the command ends with 1; without, there is no such run."""
    needed = history.committed[0]["shards"][0]["name"]
    damage(tmp_path / "runs" / "history", needed, "cut")
    history.run.store.delete([RUN])
    found = verified(history)
    assert found.exit_code == 1
    assert found.stdout.splitlines()[0].startswith(f"{RUN}: it is missing, and there are commits. ")
    assert f"\n{needed}: " in found.stdout
    assert "2 damaged or missing" in found.stdout


def test_json_says_what_was_not_repaired(history: History, tmp_path: Path):
    """The names, and the reason if nothing could be removed; also with --json a fault ends the command with 1."""
    empty, needed = leftover(history), history.committed[0]["shards"][0]["name"]
    damage(tmp_path / "runs" / "history", needed, "cut")
    intact = history.run.store.read(RUN)
    damage(tmp_path / "runs" / "history", RUN, "empty")
    found = verified(history, "--repair", "--json")
    report = json.loads(found.stdout)
    assert (found.exit_code, report["removed"], report["not_repaired"]) == (1, [], [RUN, needed, empty])
    assert report["refusal"].startswith(f"{RUN} of run 'history' must be restored")
    history.run.store.write(RUN, [intact])
    found = verified(history, "--repair", "--json")
    report = json.loads(found.stdout)
    assert (found.exit_code, report["removed"], report["not_repaired"]) == (1, [empty], [needed])
    assert report["refusal"] == ""

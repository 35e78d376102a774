"""Ctrl-C ends a command with one line that says what is stored, and the command that goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from penstock.flows import cli
from penstock.flows.cli import main as commands
from penstock.storage.stores.open import open_store

from ...storage.runs.test_gc import History

if TYPE_CHECKING:
    from penstock.storage.runs.run import RunFolder


def stopped(
    monkeypatch: pytest.MonkeyPatch, command: str, run: tuple[RunFolder, str] | None = None, *options: str
) -> None:
    """Stop a command as typer does it: by the status of an interrupt, whose cause the interrupt is."""

    def interrupted() -> None:
        stop: Any = KeyboardInterrupt()
        if run is not None:
            stop.stopped_run = run
        try:
            raise stop
        except KeyboardInterrupt as error:
            raise SystemExit(130) from error

    monkeypatch.setattr(commands, "app", interrupted)
    monkeypatch.setattr(sys, "argv", ["penstock", command, *options])
    with pytest.raises(SystemExit) as end:
        commands.main()
    assert end.value.code == 130


def test_a_run_that_has_begun_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    """With its store as a shell takes it, and what is committed of it."""
    store = str(tmp_path / "my runs")
    history = History(open_store(store))
    stopped(monkeypatch, "train", (history.run, store))
    resume = f"`penstock resume history --store '{store}'`"
    assert capsys.readouterr().err == f"stopped; nothing is committed yet, {resume} starts it again\n"
    history.commit(0)
    stopped(monkeypatch, "train", (history.run, store))
    assert capsys.readouterr().err == f"stopped; the last commit is intact, {resume} resumes from it\n"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("train", "nothing is committed yet: give the same command again"),
        ("extend", "what is committed is intact, `penstock resume RUN` goes on"),
    ],
)
def test_nothing_is_promised_of_a_run_that_has_not_begun(
    command: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    """There may be none to resume."""
    stopped(monkeypatch, command)
    assert capsys.readouterr().err.startswith(f"stopped; {said}")


def test_imports_and_options_are_stopped_by_a_line_too(monkeypatch: pytest.MonkeyPatch, capsys: Any):
    """No traceback of what happened to be imported."""

    class Importing(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise KeyboardInterrupt

    def reading_options() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "penstock.flows.cli.main", Importing("main"))
        with pytest.raises(SystemExit) as end:
            cli.command()
    assert (end.value.code, capsys.readouterr().err) == (130, "stopped; nothing was changed\n")
    monkeypatch.setattr(commands, "app", reading_options)
    with pytest.raises(SystemExit) as end:
        cli.command()
    assert (end.value.code, capsys.readouterr().err) == (130, "stopped; nothing was changed\n")


def test_a_table_that_can_not_be_written_is_one_line(tmp_path: Path):
    """No traceback on a full disk."""
    command = [str(Path(sys.executable).with_name("penstock")), "settings"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == "error: what was to be printed can't be written (No space left on device)\n"


@pytest.mark.parametrize(
    ("options", "said"), [([], "nothing was changed"), (["--repair"], "the same command continues")]
)
def test_what_may_have_been_stored_is_not_denied(options: list[str], said: str, monkeypatch, capsys: Any):
    stopped(monkeypatch, "verify", None, *options)
    assert capsys.readouterr().err.startswith(f"stopped; {said}")

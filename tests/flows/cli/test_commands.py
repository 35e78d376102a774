"""Every command of `penstock` has its mistakes, which the packaging tests try."""

import os
import socket
import subprocess
import sys

import pytest
import typer.main
from typer.testing import CliRunner

from penstock.flows.cli.main import app
from penstock.storage.errors import ConfigError, LeaseHeldError, RunExistsError, RunNotFoundError
from penstock.storage.stores.open import open_store

from ...packaging.test_first_use import WRONG
from ...storage.runs.test_gc import History
from ...support.stored.leases import owner_processes


def test_every_command_is_tried_with_mistakes():
    """A new command needs an entry in tests/packaging/test_first_use.py."""
    commands = typer.main.get_group(app).commands
    assert {name for name, command in commands.items() if not command.hidden} == WRONG.keys()


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (["scale", "cartpole", "--actors", "none"], "--actors"),
        (["scale", "cartpole", "--learners", "0"], "--learners"),
        (["plan", "cartpole", "--policy", "gpu_only", "--act-tasks", "2"], "act_tasks"),
        (["plan", "cartpole", "--store", "s3+nope://bucket/runs"], "names the client 'nope'"),
        (["scale", "cartpole", "--store", "s3+nope://bucket/runs"], "names the client 'nope'"),
    ],
)
def test_a_mistake_is_refused_before_a_trial_is_announced(command, named):
    """The error is all that a user sees: no trial of some seconds was begun."""
    found = CliRunner().invoke(app, command)
    assert isinstance(found.exception, ConfigError)
    assert named in str(found.exception)
    assert "trial" not in found.output


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("verify absent", RunNotFoundError),
        ("verify history --since 9", ConfigError),
        ("fork absent new --from-stage 0", RunNotFoundError),
        ("fork history new --from-stage 9", ConfigError),
        ("fork history history --from-stage 0", RunExistsError),
        ("copy absent BACKUP", RunNotFoundError),
        ("copy history STORE", ConfigError),
        ("copy history STORE/history/backup", ConfigError),
        ("copy history BACKUP", RunExistsError),
        ("gc absent --dry-run", RunNotFoundError),
        ("gc history --drop-shards-before 9", ConfigError),
        ("evaluate absent", RunNotFoundError),
        ("evaluate absent --follow", RunNotFoundError),
        ("evaluate history --stage 9", ConfigError),
        ("export absent OUT", RunNotFoundError),
        ("export absent OUT.onnx", RunNotFoundError),
        ("export absent OUT --to tensorboard", RunNotFoundError),
        ("export history OUT --from-stage 9", ConfigError),
        ("export history OUT.pt2 --version 99", ConfigError),
        ("report absent", RunNotFoundError),
        ("report history absent", RunNotFoundError),
        ("serve-policy absent", RunNotFoundError),
        ("serve-policy history --version 99", ConfigError),
    ],
)
def test_a_mistake_is_refused_before_work_is_announced(tmp_path, command, error):
    """No line says that a run which is not there is verified, copied or collected; nor where the store is not there."""
    store, backup = tmp_path / "runs", tmp_path / "backup"
    History(open_store(store), description={"config": {}}).commit(0)
    History(open_store(backup), description={"seed": 2}).commit(0)
    for word, place in (("STORE", store), ("BACKUP", backup), ("OUT", tmp_path / "out")):
        command = command.replace(word, str(place))
    found = CliRunner().invoke(app, [*command.split(), "--store", str(store)])
    assert (type(found.exception), found.output) == (error, "")
    found = CliRunner().invoke(app, [*command.split(), "--store", str(tmp_path / "nowhere")])
    assert (type(found.exception), found.output) == (RunNotFoundError, "")
    assert not (tmp_path / "nowhere").exists()
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("export history TAKEN", ConfigError),
        ("export history FILE/data", ConfigError),
        ("export history OUT --to csv", ConfigError),
        ("export history OUT.onnx --version last", ConfigError),
        ("export history TAKEN --to onnx", ConfigError),
        ("export history OUT/p.onnx", ConfigError),
        ("export history FILE --to tensorboard", ConfigError),
        ("export empty OUT --to tensorboard", ConfigError),
        ("report history history", ConfigError),
        ("report history --out OUT.pdf", ConfigError),
        ("report history --out OUT/page.html", ConfigError),
        ("report history --out LONG.html", ConfigError),
        ("export history LONG.onnx", ConfigError),
        ("export history LONG", ConfigError),
        ("import TAKEN --name history", RunExistsError),
        ("import TAKEN --name new", ConfigError),
        ("import OUT --name new", ConfigError),
        ("import TAKEN --name No/name", ConfigError),
        ("import TAKEN --name new --from csv", ConfigError),
        ("serve-policy history --version last", ConfigError),
        ("serve-policy empty", ConfigError),
        ("serve-policy history --port PORT", ConfigError),
        ("gc history --drop-shards-before 1", LeaseHeldError),
        ("gc history --drop-shards-before 1 --dry-run", LeaseHeldError),
    ],
)
def test_what_can_not_be_written_is_refused_before_work_is_announced(tmp_path, command, error):
    """A path or a name that is taken, a port in use, shards that another run still reads; and nothing is changed."""
    root = open_store(tmp_path / "runs")
    History(root, description={"config": {}}).commit(0)
    sources = [{"run": "history", "stages": [0, 0], "commit": "x"}]
    History(root, "empty", description={"config": {}, "reads": {"sources": sources}})
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    before = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        places = {
            "TAKEN": tmp_path / "taken",
            "FILE": tmp_path / "taken" / "notes.txt",
            "OUT": tmp_path / "out",
            "LONG": "x" * 300,
        }
        for word, place in {**places, "PORT": taken.getsockname()[1]}.items():
            command = command.replace(word, str(place))
        found = CliRunner().invoke(app, [*command.split(), "--store", str(tmp_path / "runs")])
    assert (type(found.exception), found.output) == (error, "")
    assert before == {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}


@pytest.mark.parametrize(
    ("command", "follows"),
    [("check-env CartPole-v1", "the environment's id"), ("check-algorithm ppo", "the algorithm")],
)
def test_a_stray_word_is_refused_by_what_it_follows(command, follows):
    """Neither command has a preset, after which settings would be given."""
    found = CliRunner().invoke(app, [*command.split(), "twice"])
    assert isinstance(found.exception, ConfigError)
    assert f"'twice' is not an option; settings are given as --name value, after {follows}" in str(found.exception)


def test_a_driven_run_is_refused_before_work_is_announced(tmp_path):
    """The error names the process that drives it; nothing is made in the other store."""
    history = History(open_store(tmp_path / "runs"))
    history.commit(0)
    with owner_processes(history.run.store) as start:
        driver = start(600.0)
        for command, *more in (["verify", "--repair"], ["copy", str(tmp_path / "backup")], ["gc"]):
            found = CliRunner().invoke(app, [command, "history", *more, "--store", str(tmp_path / "runs")])
            assert (type(found.exception), found.output) == (LeaseHeldError, "")
            assert f"pid {driver.pid}" in str(found.exception)
    assert not (tmp_path / "backup").exists()


def test_a_copy_that_is_there_is_reported_without_work(tmp_path):
    """A second command has nothing to copy, and says only that."""
    History(open_store(tmp_path / "runs"), real_shards=True).commit(0)
    command = ["copy", "history", str(tmp_path / "backup"), "--store", str(tmp_path / "runs")]
    first, second = (CliRunner().invoke(app, command) for _ in range(2))
    assert first.output.startswith("copying run history to ")
    assert (second.exit_code, second.output.startswith("nothing was copied: ")) == (0, True)


def test_a_working_directory_that_was_removed_is_one_message(tmp_path):
    """Python could not begin a process there, and torch's libraries would end it."""
    (folder := tmp_path / "gone").mkdir()
    program = (
        "import os, sys; from penstock.flows.cli.main import main; "
        "os.rmdir(os.getcwd()); sys.argv[1:] = ['runs']; main()"
    )
    ended = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=folder, env=os.environ, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert "error: the working directory can't be found" in line


@pytest.mark.parametrize(
    ("path", "announced"),
    [
        ("p.onnx", "exporting the policy of run"),
        ("P.ONNX", "exporting the policy of run"),
        ("p.pt2", "exporting the policy of run"),
        ("data", "exporting run"),
    ],
)
def test_a_policys_format_follows_its_name(tmp_path, path, announced):
    """A policy's file is never taken for a folder of episodes. What an export that was killed has left is no file."""
    store = tmp_path / "runs"
    History(open_store(store), description={"config": {}}).commit(0)
    (tmp_path / "data" / ".data.partial").mkdir(parents=True)
    found = CliRunner().invoke(app, ["export", "history", str(tmp_path / path), "--store", str(store)])
    assert announced in found.output
    assert found.exception
    assert {one.name for one in tmp_path.iterdir()} == {"data", "runs"}


def test_text_that_the_outputs_encoding_lacks_is_escaped(tmp_path):
    """A store's path, after a run that is done; a terminal of a container is often ASCII alone."""
    store = tmp_path / "stör"
    store.mkdir()
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "200"}
    command = [sys.executable, "-c", "from penstock.flows.cli import command; command()", "runs", "--store", str(store)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=150)
    assert found.returncode == 0, found.stderr
    assert "st\\xf6r; start one with" in found.stdout.replace("\n", " ")

"""Every command of `penstock` has its mistakes, which the packaging tests try."""

import os
import socket
import subprocess
import sys

import pytest
import typer.main
from typer.testing import CliRunner

from penstock.flows.cli.main import app
from penstock.native.floorplan import BlockSpec, generate_block
from penstock.storage.errors import (
    ConfigError,
    LeaseHeldError,
    PenstockError,
    RunExistsError,
    RunNotFoundError,
    StoreError,
)
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
        ("export history /proc/p.onnx", ConfigError),
        ("export history /proc/p", ConfigError),
        ("export history /proc/p --to tensorboard", ConfigError),
        ("report history --out /proc/page.html", ConfigError),
        ("copy history FILE", StoreError),
        ("copy history /proc/backup", StoreError),
        ("serve-policy history --version best", ConfigError),
        ("serve-policy history --device gpu", ConfigError),
        ("runs --store RUN", ConfigError),
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
            "RUN": tmp_path / "runs" / "history",
        }
        for word, place in {**places, "PORT": taken.getsockname()[1]}.items():
            command = command.replace(word, str(place))
        store = [] if "--store" in command else ["--store", str(tmp_path / "runs")]
        found = CliRunner().invoke(app, [*command.split(), *store])
    assert (type(found.exception), found.output) == (error, "")
    assert before == {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("check-env Chess-v1", "no environment is called 'Chess-v1'"),
        ("check-env json:Chess-v1", "after the colon goes an id that json registers"),
        ("check-env nowhere.hpp", "there is no header 'nowhere.hpp'"),
        ("check-env CartPole-v1 --address a:1", "is behind no socket"),
        ("check-env CartPole-v1 --environment.structured true", "structured = True"),
        ("check-algorithm chess", "there is no algorithm 'chess'"),
        ("check-algorithm nowhere.py", "there is no file 'nowhere.py'"),
        ("check-algorithm ppo --env Chess-v1", "no environment is called 'Chess-v1'"),
        ("check-algorithm ppo --algorithm.expectile 3", "--algorithm.expectile: no such setting"),
        ("check-algorithm sac --env CartPole-v1", "it needs vectors as actions"),
        ("check-algorithm td3_bc --env CartPole-v1", "it needs vectors as actions"),
        ("train cartpole --environment.id Acrobot-v1 --scheduler nowhere", "'nowhere' is no address"),
        ("serve-env Chess-v1 --port 0", "Gymnasium has no environment 'Chess-v1'"),
        ("serve-env CartPole --port PORT", "choose another --port or --unix"),
        ("serve-env CartPole-v1 --port PORT", "choose another --port or --unix"),
        ("serve-env CartPole-v1 --host 0.0.0.0 --port 0", "can be reached by other machines"),
        ("floorplan place nowhere.pb.txt", "nowhere.pb.txt: cannot be read"),
        ("floorplan place BLOCK/netlist.pb.txt --moves 3 --minutes 1", "expected one of them"),
        ("floorplan place BLOCK/netlist.pb.txt BLOCK/initial.plc BLOCK", "expected an empty folder"),
        ("floorplan anneal BLOCK/netlist.pb.txt nowhere.plc out.plc", "nowhere.plc: cannot be read"),
        ("floorplan anneal BLOCK/netlist.pb.txt BLOCK/initial.plc OUT --first-temperature -1", "temperatures go from"),
        ("floorplan group BLOCK/netlist.pb.txt nowhere.plc OUT", "nowhere.plc: cannot be read"),
        ("floorplan record r BLOCK --placement nowhere.plc", "nowhere.plc: cannot be read"),
    ],
)
def test_a_mistake_is_all_that_a_command_says(tmp_path, command, said):
    """No line says that something is checked, made or placed; the name of a class is answered with what is expected."""
    generate_block(tmp_path / "block", BlockSpec(4, 4, 4, 8, 8))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        places = {"BLOCK": tmp_path / "block", "OUT": tmp_path / "out", "PORT": taken.getsockname()[1]}
        for word, place in places.items():
            command = command.replace(word, str(place))
        found = CliRunner().invoke(app, command.split())
    assert isinstance(found.exception, ConfigError)
    assert said in str(found.exception)
    assert found.output == ""
    assert [path.name for path in tmp_path.iterdir()] == ["block"]


def test_what_is_checked_is_said_before_the_checks():
    """When no mistake was found; the report follows."""
    found = CliRunner().invoke(app, ["check-env", "CartPole-v1"])
    assert found.exit_code == 0
    assert found.output.splitlines()[:2] == ["checking CartPole-v1", "CartPole-v1"]


def test_readers_of_this_host_are_seen_before_work_is_announced(tmp_path):
    """Their shards would be dropped; a dry run says it too."""
    history = History(open_store(tmp_path))
    history.commit(0)
    reader = history.run.store.at("readers/other-1")
    reader.write("claim.json", [b'{"first": 0, "last": 0, "shards": true}'])
    with owner_processes(reader) as start:
        start(600.0)
        for more in ([], ["--dry-run"]):
            found = CliRunner().invoke(
                app, ["gc", "history", "--drop-shards-before", "1", *more, "--store", str(tmp_path)]
            )
            assert (type(found.exception), found.output) == (LeaseHeldError, "")
            assert "reader 'other-1' of stages 0 to 0" in str(found.exception)


def test_prefects_server_is_asked_before_evaluations_are_announced(tmp_path, monkeypatch):
    """A flow run that follows a run needs it."""
    History(open_store(tmp_path), description={"config": {}}).commit(0)
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    found = CliRunner().invoke(app, ["evaluate", "history", "--follow", "--store", str(tmp_path)])
    assert (type(found.exception), found.output) == (PenstockError, "")
    assert "no Prefect server answers" in str(found.exception)


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

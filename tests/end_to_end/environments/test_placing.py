"""`penstock floorplan place`: stopped anywhere, it ends with the same bytes; mistakes are one message."""

import json
import random
import signal
import subprocess

import pytest
from typer.testing import CliRunner

from penstock.flows.cli.floorplans import commands
from penstock.native.floorplan import BlockSpec, generate_block
from penstock.storage.errors import ConfigError

from ...support.processes.commands import Command, wait_until

SEGMENTS = 40
SAME = ("best.plc", "best.def", "before.png", "after.png")
"""Files that depend on no time."""


@pytest.fixture(scope="module")
def block(tmp_path_factory):
    return generate_block(tmp_path_factory.mktemp("block"), BlockSpec(hard_macros=10, soft_macros=20))


def run(*arguments):
    """Run the command in this process; return its standard output and its errors."""
    done = CliRunner().invoke(commands, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout, done.stderr


def segments_done(out):
    try:
        return json.loads((out / "state.json").read_bytes())["done"]
    except FileNotFoundError:
        return -1


@pytest.mark.slow
def test_stopped_at_any_segment_it_ends_with_the_same_bytes(block, tmp_path):
    """Killed at a random segment, interrupted by Ctrl-C at a later one, and continued by the same command."""
    out, undisturbed = tmp_path / "out", tmp_path / "undisturbed"
    options = ("--moves", "20000", "--segments", str(SEGMENTS), "--threads", "2", "--seed", "3", "--json")
    chosen = random.Random(7)
    stops = ((signal.SIGKILL, chosen.randrange(10)), (signal.SIGINT, chosen.randrange(10, 20)))
    for number, at in stops:
        command = Command(["floorplan", "place", *map(str, block), str(out), *options], {}, tmp_path / number.name)
        try:
            wait_until(lambda at=at: segments_done(out) >= at, f"segment {at}")
            command.send(number)
            status = command.wait()
        finally:
            command.kill_group()
        # Where the signal was too late, the command is done, and what follows must hold all the same.
        if status and number == signal.SIGINT:
            assert status == 130
            assert command.errors.strip() == "stopped; the same command continues it"
        elif status:
            assert status == -signal.SIGKILL
        assert segments_done(out) >= at
    found = json.loads(run("place", *block, out, *options)[0])
    said = json.loads(run("place", *block, undisturbed, *options)[0])
    for name in SAME:
        assert (out / name).read_bytes() == (undisturbed / name).read_bytes(), name
    assert {**found, "seconds": 0, "placement": ""} == {**said, "seconds": 0, "placement": ""}
    assert json.loads(run("place", *block, out, *options)[0]) == found


def test_output_is_json_or_lines(block, tmp_path):
    """JSON alone with --json; otherwise costs, the command that repeats it, and the files; progress is on stderr."""
    arguments = ("place", *block, tmp_path / "out", "--moves", 100, "--threads", 1)
    said, errors = run(*arguments, "--json")
    found = json.loads(said)
    assert errors == ""
    assert {"cost", "wirelength_cost", "density_cost", "congestion_cost", "start_cost", "moves"} <= found.keys()
    assert found["placement"] == str(tmp_path / "out" / "best.plc")
    assert found["legal"]
    said, errors = run(*arguments)
    assert f"-> {found['cost']:.6f}, {found['placement']}" in said
    assert "--moves 100 --threads 1 --segments 60 --seed 0 gives the same placement again" in said
    assert errors == (
        f"placing {block[1]}\n"
        f"note: {tmp_path / 'out'} has this search, finished, and its result is told again; --again begins anew\n"
    )
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*SAME, "state.json", "curve.json", "result.json"}
    curve = json.loads((tmp_path / "out" / "curve.json").read_text())
    assert len(curve) == 61
    assert curve[-1]["moves"] == 100


def test_a_netlist_alone_is_enough(block, tmp_path, monkeypatch):
    """The placement is initial.plc beside the netlist, and the result is in `placed`, which is no other search's."""
    monkeypatch.chdir(tmp_path)
    netlist, initial = block
    options = ("--moves", 100, "--threads", 1)
    run("place", netlist, *options)
    run("place", netlist, initial, "named", *options)
    for name in SAME:
        assert (tmp_path / "placed" / name).read_bytes() == (tmp_path / "named" / name).read_bytes(), name
    before = {path: path.read_bytes() for path in (tmp_path / "placed").iterdir()}
    refuse("placed: was begun with seed 0, and is asked for 1", netlist, *options, "--seed", 1)
    assert {path: path.read_bytes() for path in (tmp_path / "placed").iterdir()} == before


def test_settings_of_the_header(block, tmp_path):
    """Costs are then those that `penstock floorplan cost` prints for the result."""
    arguments = ("--moves", 100, "--threads", 1, "--settings", "header", "--json")
    found = json.loads(run("place", *block, tmp_path / "out", *arguments)[0])
    costs = json.loads(run("cost", block[0], found["placement"], "--json")[0])
    assert costs["weighted_cost"] == found["cost"]


def refuse(says, *arguments):
    done = CliRunner().invoke(commands, ["place", *map(str, arguments)])
    assert isinstance(done.exception, ConfigError), done.output
    assert says in str(done.exception)


def test_mistakes_are_one_message_and_leave_nothing(block, tmp_path):
    """A missing netlist, none or another block's placement, no time, an OUT that is a file or not ours."""
    other = generate_block(tmp_path / "other", BlockSpec(hard_macros=4, soft_macros=26))
    notes = tmp_path / "notes.txt"
    notes.write_text("milk")
    netlist, initial = block
    out = tmp_path / "out"
    alone = tmp_path / "alone.pb.txt"
    alone.write_bytes(netlist.read_bytes())
    before = set(tmp_path.rglob("*"))
    refuse("nowhere.pb.txt: cannot be read", "nowhere.pb.txt", initial, out)
    refuse("nowhere.pb.txt: cannot be read", "nowhere.pb.txt")
    refuse(f"{tmp_path / 'initial.plc'}: there is no such file beside the netlist", alone)
    refuse("nowhere.plc: cannot be read", netlist, "nowhere.plc", out)
    refuse("notes.txt:1: found 'milk', expected five values", netlist, notes, out)
    refuse("the header counts 4 HARD_MACROs, and the netlist has 10", netlist, other[1], out)
    refuse("minutes is 0.0, expected a time above 0", *block, out, "--minutes", 0)
    refuse("leave the other out", *block, out, "--minutes", 1, "--moves", 1)
    refuse("threads is 0", *block, out, "--threads", 0)
    refuse("notes.txt: found a file, expected a folder", *block, notes)
    refuse("other: found 'initial.plc' and no state.json", *block, tmp_path / "other")
    assert set(tmp_path.rglob("*")) == before


def test_a_full_disk_leaves_a_state_that_continues(block, tmp_path):
    """The message says what to do; with space again, the same command ends with the same bytes."""
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=96k", "penstock", small]
    if (mounted := subprocess.run(mount, capture_output=True, text=True, check=False)).returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        arguments = ("--moves", 400, "--threads", 1, "--segments", 4)
        refuse("cannot be written (No space left on device); what is in the folder stays", *block, small, *arguments)
        assert segments_done(small) == 4
        subprocess.run(["mount", "-o", "remount,size=4m", small], check=True)
        run("place", *block, small, *arguments)
        run("place", *block, tmp_path / "roomy", *arguments)
        for name in SAME:
            assert (small / name).read_bytes() == (tmp_path / "roomy" / name).read_bytes(), name
    finally:
        subprocess.run(["umount", "--lazy", small], check=True)

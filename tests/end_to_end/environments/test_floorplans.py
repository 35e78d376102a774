"""`penstock floorplan`: from a made-up block to costs, a better placement and pictures."""

import json
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from penstock.flows.cli.floorplans import commands
from penstock.storage.errors import ConfigError


def run(*arguments):
    done = CliRunner().invoke(commands, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_from_a_block_to_a_picture(tmp_path):
    """Each command reads what the one before wrote; annealing lowers the cost that `cost` prints for its result.

    Without a placement, `cost` takes the one that `generate` wrote beside the netlist.
    """
    netlist, initial = run("generate", tmp_path / "block", "--hard-macros", 8, "--soft-macros", 10).split()
    before = json.loads(run("cost", netlist, initial, "--json"))
    assert json.loads(run("cost", netlist, "--json")) == before
    assert before["settings"]["grid"] == [16, 16]
    assert before["counts"]["hard_macros"] == 8
    found = json.loads(run("anneal", netlist, initial, tmp_path / "better.plc", "--moves", 2000, "--json"))
    after = json.loads(run("cost", netlist, tmp_path / "better.plc", "--json"))
    assert after["weighted_cost"] < before["weighted_cost"]
    # Positions are saved with six digits.
    assert abs(after["weighted_cost"] / found["after"]["weighted_cost"] - 1) < 1e-4
    assert "wirelength_cost" in run("cost", netlist, tmp_path / "better.plc")
    for ending, begins in ((".svg", b"<svg "), (".png", b"\x89PNG\r\n\x1a\n")):
        run("draw", netlist, tmp_path / "better.plc", tmp_path / f"picture{ending}", "--width", 200)
        assert (tmp_path / f"picture{ending}").read_bytes().startswith(begins)


def test_nothing_is_written_over_or_lost(tmp_path):
    """Neither what a result is made of, nor another block; and a folder that is not there is found before a search."""
    netlist, initial = run("generate", tmp_path / "block", "--hard-macros", 8, "--soft-macros", 10).split()
    before = {path: Path(path).read_bytes() for path in (netlist, initial)}
    for out, said in ((netlist, "would replace"), (initial, "would replace"), (tmp_path / "no/b.plc", "no folder")):
        for command in (("anneal", netlist, initial, out, "--moves", 10**12), ("draw", netlist, initial, out)):
            done = CliRunner().invoke(commands, [str(argument) for argument in command])
            assert isinstance(done.exception, ConfigError)
            assert said in str(done.exception)
    again = ("generate", tmp_path / "block", "--hard-macros", 8, "--soft-macros", 10)
    done = CliRunner().invoke(commands, [str(argument) for argument in (*again, "--seed", 3)])
    assert isinstance(done.exception, ConfigError)
    assert "is another block's" in str(done.exception)
    assert {path: Path(path).read_bytes() for path in before} == before
    run(*again)
    assert Path(netlist).read_bytes() == before[netlist]


def test_a_placement_that_was_cut_short_is_noted(tmp_path):
    """Its other nodes stand where the netlist has them, which nobody has asked for; a whole one needs no note."""
    netlist, initial = run("generate", tmp_path / "block", "--hard-macros", 8, "--soft-macros", 10).split()
    run("anneal", netlist, initial, tmp_path / "whole.plc", "--moves", 10)
    lines = (tmp_path / "whole.plc").read_text().splitlines(keepends=True)
    rows = [line for line in lines if not line.startswith("#")]
    (tmp_path / "cut.plc").write_text("".join(lines[: lines.index(rows[5])]))
    for name, said in (("whole.plc", ""), ("cut.plc", f"has the positions of 5 of {len(rows)} macros and ports")):
        done = CliRunner().invoke(commands, ["cost", netlist, str(tmp_path / name)], catch_exceptions=False)
        assert (said in done.stderr) if said else (done.stderr == "")


def test_a_header_with_other_costs_is_noted(tmp_path):
    """On stderr, by cost, with what the header says and what there is; nothing is said of a header that is right."""
    netlist, initial = run("generate", tmp_path / "block", "--hard-macros", 8, "--soft-macros", 10).split()
    right, wrong = tmp_path / "right.plc", tmp_path / "wrong.plc"
    run("anneal", netlist, initial, right, "--moves", 10)
    text = right.read_text()
    line = next(line for line in text.splitlines() if "Density cost" in line)
    wrong.write_text(text.replace(line, f"{line.rpartition(' ')[0]} 0.9876"))
    assert CliRunner().invoke(commands, ["cost", netlist, str(right)]).stderr == ""
    noted = CliRunner().invoke(commands, ["cost", netlist, str(wrong)])
    assert noted.exit_code == 0
    assert noted.stderr.startswith("note: the header says density cost 0.9876, where it is 0.")
    assert "wirelength" not in noted.stderr


def test_a_bad_file_is_one_message(tmp_path):
    """An unreadable file is reported by file and line, with exit code 1 and without a traceback."""
    (tmp_path / "bad.pb.txt").write_text("\nnode }")
    command = [sys.executable, "-c", "from penstock.flows.cli.main import main; main()", "floorplan", "cost"]
    done = subprocess.run([*command, tmp_path / "bad.pb.txt", "x.plc"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {tmp_path}/bad.pb.txt:2: found '}}', expected '{{' after node")
    assert "Traceback" not in done.stderr


def test_old_command_name_prints_a_note():
    """`penstock placement` works for one version more, is not listed, and names its replacement on stderr."""
    arguments = [sys.executable, "-c", "from penstock.flows.cli.main import main; main()"]
    old = subprocess.run([*arguments, "placement", "cost", "no", "x"], capture_output=True, text=True, check=False)
    assert old.stderr.splitlines()[0].startswith("note: `penstock placement` was renamed to `penstock floorplan`")
    assert old.stderr.splitlines()[1].startswith("error: ")
    listed = subprocess.run([*arguments, "--help"], capture_output=True, text=True, check=True).stdout
    assert "floorplan" in listed
    assert "placement " not in listed.replace("Macro placement", "")

"""`penstock check-env` finds every kind of fault that it promises to find, and none in correct environments."""

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.native.conformance import separate_process
from penstock.native.conformance.report import Report
from penstock.native.conformance.runner import check_header, check_id

HERE = Path(__file__).parents[1]
# One process runs all commands, since its imports take longer than they do.
PROGRAM = """
import contextlib, io, json, sys
from penstock.flows.cli.main import main

results = []
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["penstock", "check-env", *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            main()
            status = 0
        except SystemExit as ended:
            status = ended.code or 0
    results.append([status, out.getvalue(), errors.getvalue()])
print(json.dumps(results))
"""


class Result(NamedTuple):
    """The exit status of one command, and what it printed."""

    status: int
    stdout: str
    stderr: str


@pytest.fixture(scope="module")
def flawed(tmp_path_factory: pytest.TempPathFactory):
    """The reports on environments with a fault each, by id."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        reports = check_header(HERE / "flawed_environments.hpp", flags=["-O0"], sanitize=False)
        yield {report.id: report for report in reports}


def failures(report: Report) -> dict[str, str]:
    return {check.name: check.detail for check in report.checks if check.outcome == "fail"}


@pytest.mark.slow
def test_a_member_outside_the_state_is_found(flawed: dict[str, Report]):
    """It survives a reset and is lost by a restore: both are said, with the step and what to do."""
    found = failures(flawed["Forgetful-v0"])
    assert "reset() must set every member of the state" in found["the same seed, the same episodes"]
    assert "PENSTOCK_FIELDS must list every member" in found["a restored state resumes, bit for bit"]
    assert "Deterministic step" in found["gymnasium.utils.env_checker"]


@pytest.mark.slow
def test_a_seed_without_effect_is_found(flawed: dict[str, Report]):
    """An environment that draws numbers, and is the same for every seed."""
    assert failures(flawed["Stubborn-v0"]) == {
        "other seeds, other episodes": "8 seeds give the same observations, though reset() draws numbers"
    }


@pytest.mark.slow
def test_values_out_of_bounds_and_not_finite_are_found(flawed: dict[str, Report]):
    """The first value beyond its bounds is named with them, and so is the first that is no number."""
    found = failures(flawed["Wild-v0"])
    assert "beyond its bounds [-1, 1]: widen `observation`" in found["spaces contain what is observed"]
    assert "the reward of environment" in found["every number is finite"]
    assert not flawed["Wild-v0"].passed
    assert flawed["Wild-v0"].speed == {}


@pytest.mark.slow
def test_a_group_that_is_stepped_otherwise_is_found(flawed: dict[str, Report]):
    """Pools of 32 and more use `step_group`, which no smaller pool calls."""
    (found,) = failures(flawed["Grouped-v0"]).items()
    assert found[0] == "64 environments equal four times 16, bit for bit"
    assert "the reward of environment 0 differs at step 0 in a pool of 64 and one of 16" in found[1]


@pytest.mark.slow
def test_a_mask_that_allows_nothing_is_found(flawed: dict[str, Report]):
    """While an episode goes on; a run would end there, far from the header."""
    found = failures(flawed["Forbidding-v0"])
    assert list(found) == ["an episode allows at least one choice"]
    assert "no choice is allowed in environment 0 after 2 steps" in next(iter(found.values()))


@pytest.mark.slow
def test_what_a_constructor_throws_is_the_report(flawed: dict[str, Report]):
    """It fails that environment alone: the next one is checked all the same."""
    assert failures(flawed["Refusing-v0"]) == {"can be made with its defaults": "no licence"}


@pytest.mark.slow
def test_an_environment_that_ends_its_process_is_found(flawed: dict[str, Report]):
    """By the name of the signal and the check in which it was; the environments after it are checked all the same."""
    assert failures(flawed["Straying-v0"]) == {
        "spaces contain what is observed": "the process in which it was stepped was ended by SIGSEGV: it reads or "
        "writes memory that is not its own"
    }
    assert failures(flawed["Leaving-v0"]) == {
        "spaces contain what is observed": "the process in which it was stepped ended itself, with status 0; what it "
        "printed is above"
    }


@pytest.mark.slow
def test_a_loop_without_an_end_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Python code can't end it, and a signal would not be handled: the process that is in it is killed."""
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(separate_process, "_SECONDS", 8.0)
    text = (HERE / "flawed_environments.hpp").read_text().partition("PENSTOCK_LIBRARY(")[0] + "PENSTOCK_LIBRARY(Wild)"
    (header := tmp_path / "endless.hpp").write_text(
        text.replace("    state.x *= 2.0;", "    for (volatile int i = 0; i < 1;) state.x *= 2.0;") + "\n"
    )
    (report,) = check_header(header, flags=["-O0"], sanitize=False)
    (said,) = failures(report).values()
    assert said == "did not end within 8 s: is there a loop without an end in reset() or step()?"


@pytest.mark.slow
def test_a_stray_read_is_found_where_it_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Nothing else sees it; the sanitizer's finding comes with the line of the person's own file."""
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path))
    (report,) = check_header(HERE / "stray_environment.hpp", flags=["-O0"])
    lines = (HERE / "stray_environment.hpp").read_text().splitlines()
    place = 1 + lines.index("    return {.reward = lane[state.place] > 0.0 ? 1.0 : 0.0};")
    found = failures(report)
    assert found["address and undefined-behaviour sanitizers"] == (
        f"heap-buffer-overflow at stray_environment.hpp:{place}"
    )


@pytest.mark.parametrize("environment_id", ["CartPole-v1", "Pendulum-v1", "MountainCar-v0"])
def test_built_in_environments_pass(environment_id: str):
    """No false alarm on environments that are known to be well, and a speed that is a number."""
    report = check_id(environment_id)
    assert failures(report) == {}
    assert report.passed
    assert report.speed["ns_per_step"] > 0


def test_command_prints_its_verdict_and_exits_with_it(tmp_path: Path):
    """JSON on standard output and 0 where all is well; 1 for a header that does not compile, or is not there."""
    header = tmp_path / "broken.hpp"
    header.write_text("struct Broken {;\n")
    commands = [["CartPole-v1", "--json"], [str(header)], ["absent.hpp"], ["Nobody-v0"]]
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    good, bad, absent, unknown = (Result(*result) for result in json.loads(ran.stdout))
    assert good.status == 0, good.stderr
    (report,) = json.loads(good.stdout)
    assert (report["id"], report["passed"]) == ("CartPole-v1", True)
    assert {check["outcome"] for check in report["checks"]} == {"pass", "skip"}
    assert bad.status == 1
    assert "FAIL compiles: broken.hpp" in bad.stdout
    assert bad.stdout.rstrip().endswith("1 failed")
    assert (absent.status, absent.stdout) == (1, "")
    assert "there is no header 'absent.hpp'" in absent.stderr
    assert unknown.status == 1
    assert "no environment is called 'Nobody-v0'" in unknown.stderr

"""What `penstock check-env` finds: every kind of fault that it promises to find, and none where there is none."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from native.check import Report, check_header, check_id

HERE = Path(__file__).parent
PROGRAM = "import sys; from flows.cli import main; sys.argv[0] = 'penstock'; main()"


@pytest.fixture(scope="module")
def flawed(tmp_path_factory: pytest.TempPathFactory):
    """The reports on environments with a fault each, by id."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        reports = check_header(HERE / "flawed_environments.hpp", flags=["-O0"], sanitize=False)
        reports += check_header(HERE / "stray_environment.hpp", flags=["-O0"])
        yield {report.id: report for report in reports}


def failures(report: Report) -> dict[str, str]:
    return {check.name: check.detail for check in report.checks if check.outcome == "fail"}


def test_a_member_outside_the_state_is_found(flawed: dict[str, Report]):
    """It survives a reset and is lost by a restore: both are said, with the step and what to do."""
    found = failures(flawed["Forgetful-v0"])
    assert "reset() must set every member of the state" in found["the same seed, the same episodes"]
    assert "PENSTOCK_FIELDS must list every member" in found["a restored state goes on, bit for bit"]
    assert "Deterministic step" in found["gymnasium.utils.env_checker"]


def test_a_seed_without_effect_is_found(flawed: dict[str, Report]):
    """An environment that draws numbers, and is the same for every seed."""
    assert failures(flawed["Stubborn-v0"]) == {
        "other seeds, other episodes": "8 seeds give the same observations, though reset() draws numbers"
    }


def test_values_out_of_bounds_and_not_finite_are_found(flawed: dict[str, Report]):
    """The first value beyond its bounds is named with them, and so is the first that is no number."""
    found = failures(flawed["Wild-v0"])
    assert "beyond its bounds [-1, 1]: widen `observation`" in found["spaces contain what is observed"]
    assert "the reward of environment" in found["every number is finite"]
    assert not flawed["Wild-v0"].passed
    assert flawed["Wild-v0"].speed == {}


def test_a_stray_read_is_found_where_it_happens(flawed: dict[str, Report]):
    """Nothing else sees it; the sanitizer's finding comes with the line of the person's own file."""
    lines = (HERE / "stray_environment.hpp").read_text().splitlines()
    place = 1 + lines.index("    return {.reward = lane[state.place] > 0.0 ? 1.0 : 0.0};")
    found = failures(flawed["Stray-v0"])
    assert found["address and undefined-behaviour sanitizers"] == (
        f"heap-buffer-overflow at stray_environment.hpp:{place}"
    )


@pytest.mark.parametrize("environment_id", ["CartPole-v1", "Pendulum-v1", "MountainCar-v0"])
def test_what_is_built_in_passes(environment_id: str):
    """No false alarm on environments that are known to be well, and a speed that is a number."""
    report = check_id(environment_id)
    assert failures(report) == {}
    assert report.passed
    assert report.speed["ns_per_step"] > 0


def test_the_command_says_its_verdict_and_exits_with_it(tmp_path: Path):
    """JSON on standard output and 0 where all is well; 1 for a header that does not compile, or is not there."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", PROGRAM, "check-env", *arguments], capture_output=True, text=True, check=False
        )

    good = run("CartPole-v1", "--json")
    assert good.returncode == 0, good.stderr
    (report,) = json.loads(good.stdout)
    assert (report["id"], report["passed"]) == ("CartPole-v1", True)
    assert {check["outcome"] for check in report["checks"]} == {"pass", "skip"}

    header = tmp_path / "broken.hpp"
    header.write_text("struct Broken {;\n")
    bad = run(str(header))
    assert bad.returncode == 1
    assert "FAIL compiles: broken.hpp" in bad.stdout
    assert bad.stdout.rstrip().endswith("1 failed")

    absent = run("absent.hpp")
    assert (absent.returncode, absent.stdout) == (1, "")
    assert "there is no header 'absent.hpp'" in absent.stderr
    unknown = run("Nobody-v0")
    assert unknown.returncode == 1
    assert "no environment is called 'Nobody-v0'" in unknown.stderr

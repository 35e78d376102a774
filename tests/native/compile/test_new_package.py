"""`penstock new-env` writes an environment that compiles, passes its own test and the checks, and becomes a package."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.flows.cli.main import app
from penstock.native.compile.new_package import write_package

ROOT = Path(__file__).parents[3]


def run(folder: Path, *command: str | Path, **variables: str) -> str:
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    surroundings = {**os.environ, "PENSTOCK_CACHE_DIR": str(folder / "cache"), "PATH": beside, **variables}
    done = subprocess.run(command, cwd=folder, env=surroundings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_header_loads_and_its_test_passes(tmp_path: Path):
    """As a user would run both, with warnings as errors."""
    made = write_package("two-carts", tmp_path)
    assert made.id == "TwoCarts-v0"
    assert sorted(str(path.relative_to(made.folder)) for path in made.folder.rglob("*") if path.is_file()) == [
        "CMakeLists.txt",
        "pyproject.toml",
        "test_two_carts.py",
        "two_carts.hpp",
        "two_carts_env/__init__.py",
    ]
    said = run(tmp_path, sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", made.test)
    assert "3 passed" in said
    lines = made.header.read_text().splitlines()
    rules = lines[3 : lines.index("  static constexpr penstock::FrameSize frame{.height = 64, .width = 256};")]
    assert len(rules) <= 32


@pytest.mark.slow
def test_the_header_passes_every_check(tmp_path: Path):
    """Sanitizers included."""
    made = write_package("two-carts", tmp_path)
    command = f"import sys; sys.argv = ['penstock', 'check-env', {str(made.header)!r}]; "
    said = run(tmp_path, sys.executable, "-c", f"{command}from penstock.flows.cli.main import main; main()")
    assert "FAIL" not in said
    assert said.rstrip().endswith("all is well")


@pytest.mark.slow
def test_the_package_is_built_and_found_where_nothing_imports_it(tmp_path: Path):
    """By pip, into a folder of its own; `make` finds the environment by its entry point."""
    made, tools, site = write_package("two-carts", tmp_path), tmp_path / "tools", tmp_path / "site"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    needs = ("scikit-build-core", "cmake", "ninja")
    run(tmp_path, *pip, "install", *needs, "--target", tools, PIP_CONSTRAINT=str(ROOT / "constraints.txt"))
    here = os.pathsep.join([str(tools), str(ROOT), os.environ.get("PYTHONPATH", "")])
    package = ("install", "--no-build-isolation", "--no-deps", "--target", site, made.folder)
    run(tmp_path, *pip, *package, PYTHONPATH=here)
    program = "from penstock import native; print(native.make('TwoCarts-v0', 2).environment['max_episode_steps'])"
    paths = os.pathsep.join([str(site), str(ROOT), os.environ.get("PYTHONPATH", "")])
    assert run(site, sys.executable, "-c", program, PYTHONPATH=paths) == "200\n"


@pytest.mark.parametrize("name", ["Two-Carts", "2carts", "two carts", "two--carts", "../carts", "", "carts-", "x" * 41])
def test_names_that_no_package_can_have_are_refused(tmp_path: Path, name: str):
    """Before anything is written."""
    with pytest.raises(ValueError, match="expected at most 40 lower-case letters and digits"):
        write_package(name, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["class", "double", "state", "config"])
def test_words_of_a_language_and_of_the_header_are_refused(tmp_path: Path, name: str):
    """With a name that would do."""
    with pytest.raises(ValueError, match=f"name is '{name}', .*; try '{name}-task'"):
        write_package(name, tmp_path)


def test_nothing_is_written_over(tmp_path: Path):
    """A folder, a file or a dangling link of that name stays as it is; a folder that is missing is named."""
    (tmp_path / "carts").mkdir()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("carts", "file", "link"):
        with pytest.raises(FileExistsError, match="there is already something at"):
            write_package(name, tmp_path)
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        write_package("carts", tmp_path / "absent")


def test_the_command_says_what_to_do_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its commands name the files; --json gives the same as data; a mistake is one line and exit status 2 or 1."""
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(app, ["new-env", "hover-two"])
    assert said.exit_code == 0
    assert "HoverTwo-v0 is in hover-two" in said.output
    assert "penstock check-env hover-two/hover_two.hpp" in said.output
    data = json.loads(CliRunner().invoke(app, ["new-env", "carts", "--json"]).output)
    assert data["id"] == "Carts-v0"
    assert Path(data["header"]).is_file()
    again = CliRunner().invoke(app, ["new-env", "carts"])
    assert again.exit_code != 0
    assert "there is already something at 'carts'" in str(again.exception)

"""Pages on environments do what they say: files are written, Python is run, the package is built."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from penstock import native

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs" / "environments.md"
OTHERS = ROOT / "docs" / "other_environments.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^(?://|#) ([\w./]+\.\w+)\n")
PRINTED = re.compile(r"^print\(.*\)  # (.*)$", re.MULTILINE)


@pytest.fixture(scope="module")
def blocks() -> list[tuple[str, str]]:
    found = BLOCK.findall(DOCUMENT.read_text(encoding="utf-8"))
    assert {language for language, _ in found} == {"cpp", "python", "sh", "text", "cmake", "toml"}
    return found


@pytest.fixture(scope="module")
def folder(blocks: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The document's files, as a reader would have them, and a cache that is empty."""
    folder = tmp_path_factory.mktemp("tutorial")
    for _, text in blocks:
        if named := FILE.match(text):
            file = folder / named[1]
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
    return folder


def run(folder: Path, *command: str | Path, **variables: str) -> str:
    surroundings = {**os.environ, "PENSTOCK_CACHE_DIR": str(folder / "cache"), **variables}
    done = subprocess.run(command, cwd=folder, env=surroundings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def programs(blocks: list[tuple[str, str]], *, packaged: bool) -> list[str]:
    """Return the document's programs: that of the installed package, or all others."""
    found = [text for language, text in blocks if language == "python" and not FILE.match(text)]
    return [text for text in found if ('native.make("Hover-v0", 2)' in text) == packaged]


@pytest.mark.slow
def test_the_header_loads_steps_and_is_configured(blocks: list[tuple[str, str]], folder: Path):
    """Every print in the document prints what the comment beside it says."""
    program = "\n".join(programs(blocks, packaged=False))
    said = run(folder, sys.executable, "-W", "error", "-c", program).splitlines()
    assert said == PRINTED.findall(program)


@pytest.mark.slow
def test_environments_in_python_are_as_documented(tmp_path: Path):
    """Every block of the page on them is Python, and prints what its comments say."""
    found = BLOCK.findall(OTHERS.read_text(encoding="utf-8"))
    assert {language for language, _ in found} == {"python"}
    program = "\n".join(text for _, text in found)
    expected = PRINTED.findall(program)
    assert expected
    assert run(tmp_path, sys.executable, "-W", "error", "-c", program).splitlines() == expected


@pytest.mark.slow
def test_the_header_passes_the_checks(blocks: list[tuple[str, str]], folder: Path):
    """`penstock check-env` finds nothing, sanitizers included."""
    (command,) = (text.split() for language, text in blocks if language == "sh")
    program = f"import sys; sys.argv = {command!r}; from penstock.flows.cli.main import main; main()"
    said = run(folder, sys.executable, "-c", program)
    assert "FAIL" not in said
    assert "ok   address and undefined-behaviour sanitizers" in said
    assert said.rstrip().endswith("all is well")


@pytest.mark.slow
def test_a_team_is_stepped_as_documented(folder: Path):
    """Each agent has a reward, and sees its own place first."""
    native.load(folder / "apart.hpp", flags=["-O0"])
    pool = native.make("Apart-v0", 1, max_episode_steps=1)
    seen, _ = pool.reset(seed=1)
    assert (pool.action_space.shape, seen.shape) == ((1, 2), (1, 2, 2))
    assert seen[0, 0].tolist() == seen[0, 1, ::-1].tolist()
    _, rewards, _, truncated, _ = pool.step(np.array([[0, 2]]))
    places = np.clip(seen[0, :, 0] + [-1, 1], 0, 8)
    assert rewards.tolist() == [[8 - places[0], places[1]]]
    assert truncated.all()
    pool.close()


def test_the_mistake_is_reported_as_documented(blocks: list[tuple[str, str]], folder: Path):
    """The message in the document is the one that a reader gets."""
    (shown,) = (text for language, text in blocks if language == "text")
    wrong = folder / "wrong" / "hover.hpp"
    wrong.parent.mkdir()
    wrong.write_text((folder / "hover.hpp").read_text().replace("(State, height, speed, target)", "(State, height)"))
    with pytest.raises(native.CompileError) as caught:
        native.load(wrong, flags=["-O0"])
    assert str(caught.value).startswith(shown)


@pytest.mark.slow
def test_the_package_is_installed_and_found_where_nothing_imports_it(blocks: list[tuple[str, str]], folder: Path):
    """The document's two pip commands, into folders of their own; `make` finds the environment by its entry point."""
    text = DOCUMENT.read_text(encoding="utf-8")
    commands = re.findall(r"^    pip (install .*)$", text, re.MULTILINE)
    assert [command.split()[-1] for command in commands] == ["ninja", "."]
    tools, site, package = folder / "tools", folder / "site", folder / "package"
    shutil.copytree(folder / "hover_env", package / "hover_env")
    for name in ("CMakeLists.txt", "pyproject.toml", "hover.hpp"):
        shutil.copy(folder / name, package / name)
    beside = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    pins = {"PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    run(package, *pip, *commands[0].split(), "--target", tools, **pins, **beside)
    here = {"PYTHONPATH": os.pathsep.join([str(tools), str(ROOT), os.environ.get("PYTHONPATH", "")])}
    run(package, *pip, *commands[1].split(), "--no-deps", "--target", site, **here, **beside)
    (own,) = programs(blocks, packaged=True)
    program = f"from penstock import native\n{own}"
    paths = {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT), os.environ.get("PYTHONPATH", "")])}
    assert run(site, sys.executable, "-c", program, **paths).splitlines() == PRINTED.findall(program)

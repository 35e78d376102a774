"""docs/environments.md does what it says: its files are written, its Python is run, its package is built."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from penstock import native

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs" / "environments.md"
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


def programs(blocks: list[tuple[str, str]]) -> list[str]:
    return [text for language, text in blocks if language == "python" and not FILE.match(text)]


def test_the_header_loads_steps_and_is_configured(blocks: list[tuple[str, str]], folder: Path):
    """Every print in the document prints what the comment beside it says."""
    *parts, _ = programs(blocks)
    program = "\n".join(parts)
    said = run(folder, sys.executable, "-W", "error", "-c", program).splitlines()
    assert said == PRINTED.findall(program)


@pytest.mark.slow
def test_the_header_passes_the_checks(blocks: list[tuple[str, str]], folder: Path):
    """`penstock check-env` finds nothing, sanitizers included."""
    (command,) = (text.split() for language, text in blocks if language == "sh")
    program = f"import sys; sys.argv = {command!r}; from penstock.flows.cli.main import main; main()"
    said = run(folder, sys.executable, "-c", program)
    assert "FAIL" not in said
    assert "ok   address and undefined-behaviour sanitizers" in said
    assert said.rstrip().endswith("all is well")


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
def test_the_package_is_found_where_nothing_imports_it(blocks: list[tuple[str, str]], folder: Path):
    """Built by the document's CMakeLists.txt; its entry point, as pip would write it, is enough for `make`."""
    beside = str(Path(sys.executable).parent)
    cmake = shutil.which("cmake") or shutil.which("cmake", path=beside)
    ninja = shutil.which("ninja") or shutil.which("ninja", path=beside)
    assert cmake, "penstock-rl[test] brings cmake"
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    run(folder, cmake, "-S", ".", "-B", "build", f"-DPython_EXECUTABLE={sys.executable}", *generator, **paths)
    run(folder, cmake, "--build", "build")
    run(folder, cmake, "--install", "build", "--prefix", ".")

    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    metadata = folder / "hover_env-1.0.dist-info"
    metadata.mkdir()
    metadata.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: hover-env\nVersion: 1.0\n")
    ((group, points),) = project["entry-points"].items()
    lines = "\n".join(f"{name} = {value}" for name, value in points.items())
    metadata.joinpath("entry_points.txt").write_text(f"[{group}]\n{lines}\n")

    program = f"from penstock import native\n{programs(blocks)[-1]}"
    paths = {"PYTHONPATH": os.pathsep.join([str(folder), paths["PYTHONPATH"]])}
    assert run(folder, sys.executable, "-c", program, **paths).splitlines() == PRINTED.findall(program)

"""Environments that a package ships: built by CMake, found through an entry point, loaded with every check."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from penstock import native

TINY = """
#include <penstock/env.hpp>
struct Tiny {
  static constexpr penstock::Info info{.id = "Tiny-v0", .max_episode_steps = 50};
  static constexpr penstock::Discrete<2> action{};
  static constexpr auto observation = penstock::Box<1>::symmetric({1.0});
  struct Config {
    PENSTOCK_FIELDS(Config)
  } config;
  struct State {
    double luck;
    PENSTOCK_FIELDS(State, luck)
  } state;
  void reset(penstock::Rng& rng) { state.luck = rng.random(); }
  penstock::Step step(std::int64_t) { return {.reward = 1.0}; }
  void observe(std::span<float, 1> out) const { out[0] = float(state.luck); }
};
"""
# The wheel's programs are next to the interpreter, which need not be on PATH.
BESIDE = f"{Path(sys.executable).parent}"


def tool(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=BESIDE)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as site-packages would hold it: a package with its library, and its metadata."""
    folder = tmp_path_factory.mktemp("site")
    source = folder / "theirs"
    source.mkdir()
    (source / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\n"
        "project(theirs LANGUAGES CXX)\n"
        "find_package(penstock REQUIRED)\n"
        "penstock_add_environments(theirs tiny.hpp ENVIRONMENTS Tiny)\n"
        "install(TARGETS theirs DESTINATION .)\n"
    )
    (source / "tiny.hpp").write_text(TINY)
    cmake, ninja = tool("cmake"), tool("ninja")
    assert cmake, "penstock-rl[test] brings cmake"
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []
    for command in (
        [cmake, "-S", source, "-B", folder / "build", f"-Dpenstock_DIR={native.cmake_dir()}", *generator],
        [cmake, "--build", folder / "build", "--", "-v"],
        [cmake, "--install", folder / "build", "--prefix", source],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        if "--build" in command:
            for flag in ("-O3", "-ffp-contract=off", "-fvisibility=hidden", "-std=c++20"):
                assert flag in done.stdout
    (source / "__init__.py").write_text(
        "import time\n"
        "from pathlib import Path\n"
        "from penstock import native\n"
        "def load():\n"
        "    time.sleep(0.2)\n"
        "    native.load_library(Path(__file__).parent / 'theirs.so')\n"
        "def fail():\n"
        "    raise OSError('no library for this machine')\n"
    )
    for name, function in (("theirs", "load"), ("broken", "fail")):
        metadata = folder / f"{name}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[penstock.environments]\n{name} = theirs:{function}\n")
    return folder


@pytest.mark.slow
def test_entry_point_package_is_found_without_an_import(package: Path):
    """`make` of an id that nothing has brought asks the installed packages; one that fails is warned about.

    Threads that ask while another one loads wait for it.
    """
    program = (
        "import sys, warnings, gymnasium, native\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        f"sys.path.insert(0, {str(package)!r})\n"
        "assert 'Tiny-v0' not in native.environment_ids()\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    with ThreadPoolExecutor(3) as threads:\n"
        "        pool, *_ = threads.map(lambda _: native.make('Tiny-v0', 3), range(3))\n"
        "    print(*(str(item.message) for item in caught))\n"
        "one = gymnasium.make('penstock/Tiny-v0')\n"
        "print(pool.reset(seed=0)[0].shape, one.reset(seed=0)[0].shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    warning, shapes = done.stdout.splitlines()
    assert warning == (
        "the environments of broken (penstock.environments: broken = theirs:fail) cannot be loaded: "
        "no library for this machine"
    )
    assert shapes == "(3, 1) (1,)"


@pytest.mark.slow
def test_library_is_checked_before_it_is_loaded(package: Path, tmp_path: Path):
    """A missing file, or one that is no library of environments, is named; a good one gives its ids."""
    with pytest.raises(FileNotFoundError, match=r"there is no library '/absent.so'"):
        native.load_library("/absent.so")
    text = tmp_path / "text.so"
    text.write_text("no library")
    with pytest.raises(RuntimeError, match=r"cannot load '.*text.so'"):
        native.load_library(text)
    other = min(Path(np.__file__).parent.rglob("_multiarray_umath*.so"))
    with pytest.raises(RuntimeError, match=r"is no library of environments: it has no penstock_library\(\)"):
        native.load_library(other)
    library = native.load_library(package / "theirs" / "theirs.so")
    assert library.environment_ids == ("Tiny-v0",)
    assert not library.compiled


@pytest.mark.slow
def test_rebuilt_library_is_reloaded(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The dynamic loader knows files by path; the file that is there now is loaded nevertheless."""
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "mine.so"
    shutil.copy(package / "theirs" / "theirs.so", path)
    assert native.load_library(path).environment_ids == ("Tiny-v0",)
    other = native.load(TINY.replace("Tiny-v0", "Other-v0"), environments=["Tiny"], flags=["-O0"])
    path.unlink()
    shutil.copy(other.path, path)
    assert native.load_library(path).environment_ids == ("Other-v0",)

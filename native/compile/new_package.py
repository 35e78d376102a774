"""Writes the files of a new environment: a header that compiles, its test, and the package that ships it.

They are those of docs/environments.md, with the environment's names in place of the drone's.
"""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
_LONGEST = 40
_CPP_WORDS = frozenset({"auto", "char", "double", "float", "int", "long", "new", "short", "struct", "union", "void"})
"""Names that read as something else in C++; Python's keywords are refused as well."""
_MEMBERS = frozenset({"config", "state"})
"""Names whose struct would have a member type of its own name."""


@dataclass(frozen=True, slots=True)
class NewPackage:
    """The files that were written.

    Attributes:
        folder: where they are.
        header: the environment.
        id: what `native.make` calls it once it is loaded.
        test: its test, for pytest.
    """

    folder: Path
    header: Path
    id: str
    test: Path


def write_package(name: str, parent: Path) -> NewPackage:
    """Write a package into the new folder `parent / name`.

    Args:
        name: lower-case words with - or _ between them, as `hover` or `two-carts`.
        parent: a folder that exists.

    Raises:
        ValueError: The name is invalid; says what was expected.
        FileNotFoundError: There is no folder `parent`.
        FileExistsError: There is something at `parent / name`.
    """
    _check_name(name)
    if not parent.is_dir():
        raise FileNotFoundError(f"there is no folder {str(parent)!r}; make it, or name another one")
    folder = parent / name
    if folder.exists() or folder.is_symlink():
        raise FileExistsError(f"there is already something at {str(folder)!r}; choose another name or another folder")
    words = re.split("[-_]", name)
    names = {
        "@module@": "_".join(words),
        "@project@": "-".join(words),
        "@Struct@": "".join(word.capitalize() for word in words),
    }
    module = folder / f"{names['@module@']}_env"
    header, test = folder / f"{names['@module@']}.hpp", folder / f"test_{names['@module@']}.py"
    texts = {
        header: _HEADER,
        test: _TEST,
        folder / "CMakeLists.txt": _CMAKE,
        folder / "pyproject.toml": _PROJECT,
        module / "__init__.py": _INIT,
    }
    module.mkdir(parents=True)
    for path, text in texts.items():
        for mark, given in names.items():
            text = text.replace(mark, given)  # noqa: PLW2901
        path.write_text(text, encoding="utf-8")
    return NewPackage(folder, header, f"{names['@Struct@']}-v0", test)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise ValueError(
            f"name is {name!r}, expected at most {_LONGEST} lower-case letters and digits that begin with a letter, "
            f"words joined by - or _, such as 'two-carts'"
        )
    if name in _MEMBERS:
        raise ValueError(f"name is {name!r}, which the environment's own struct has a member of; try '{name}-task'")
    if keyword.iskeyword(name) or name in _CPP_WORDS:
        raise ValueError(f"name is {name!r}, a word of Python's or of C++'s, expected another; try '{name}-task'")


_HEADER = """\
// @module@.hpp: a cart on a rail that is pushed to a target. Replace the rules by yours; the members stay.
#include <penstock/library.hpp>

struct @Struct@ {
  static constexpr penstock::Info info{.id = "@Struct@-v0", .max_episode_steps = 200};
  static constexpr penstock::Discrete<3> action{};  // push left, nothing, push right
  static constexpr auto observation = penstock::Box<3>::symmetric({2.0, 2.0, 1.0});

  struct Config {
    double power = 0.1;
    PENSTOCK_FIELDS(Config, power)
  } config;

  struct State {
    double position, speed, target;
    PENSTOCK_FIELDS(State, position, speed, target)
  } state;

  void reset(penstock::Rng& rng) { state = {0.0, 0.0, rng.uniform(-1.0, 1.0)}; }

  penstock::Step step(std::int64_t push) {
    state.speed = std::clamp(0.95 * state.speed + config.power * double(push - 1), -0.5, 0.5);
    state.position += 0.1 * state.speed;
    const bool lost = std::abs(state.position) > 1.5;
    return {.reward = lost ? -10.0 : -std::abs(state.position - state.target), .terminated = lost};
  }

  void observe(std::span<float, 3> out) const {
    out[0] = float(state.position), out[1] = float(state.speed), out[2] = float(state.target);
  }

  static constexpr penstock::FrameSize frame{.height = 64, .width = 256};
  void draw(penstock::Canvas& canvas) const {
    canvas.line(0, 48, 256, 48, 2, {120, 120, 120});
    canvas.disc(128 + 80 * state.target, 48, 6, {60, 160, 60});
    canvas.rectangle(118 + 80 * state.position, 30, 20, 16, {40, 90, 215});
  }
};

PENSTOCK_LIBRARY(@Struct@)
"""

_TEST = '''\
"""@Struct@-v0: `penstock check-env @module@.hpp` checks more, and `pytest` runs this."""

from pathlib import Path

import numpy as np
import pytest

from penstock import native

LIBRARY = native.load(Path(__file__).parent / "@module@.hpp")


def play(pool, actions):
    return [pool.step(row)[:4] for row in actions]


def test_equal_seeds_and_actions_give_equal_episodes():
    """Also where a pool goes on from another one's state."""
    actions = np.random.default_rng(0).integers(0, 3, (300, 8))
    first, second = (LIBRARY.make(8, num_threads=threads) for threads in (1, 2))
    for pool in (first, second):
        pool.reset(seed=1)
    for mine, theirs in zip(play(first, actions), play(second, actions), strict=True):
        assert all(np.array_equal(*pair) for pair in zip(mine, theirs, strict=True))
    second.restore(first.save())
    for mine, theirs in zip(play(first, actions[:50]), play(second, actions[:50]), strict=True):
        assert all(np.array_equal(*pair) for pair in zip(mine, theirs, strict=True))


def test_a_push_moves_the_cart():
    """To the right with 2, to the left with 0."""
    pool = LIBRARY.make(2)
    pool.reset(seed=0)
    observation = pool.step(np.array([2, 0]))[0]
    assert observation[0, 1] == pytest.approx(0.1)
    assert observation[1, 1] == pytest.approx(-0.1)


def test_it_draws_itself():
    """One picture for each environment, in which something is to be seen."""
    pool = LIBRARY.make(2, render_mode="rgb_array")
    pool.reset(seed=0)
    for picture in pool.render():
        assert picture.shape == (64, 256, 3)
        assert len(np.unique(picture)) > 2
'''

_CMAKE = """\
cmake_minimum_required(VERSION 3.20)
project(@module@_env LANGUAGES CXX)
find_package(Python REQUIRED COMPONENTS Interpreter)
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c "from penstock import native; print(native.cmake_dir())"
  OUTPUT_VARIABLE penstock_DIR OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
find_package(penstock REQUIRED)
penstock_add_environments(@module@_library @module@.hpp)
install(TARGETS @module@_library DESTINATION @module@_env)
"""

_PROJECT = """\
[build-system]
requires = ["scikit-build-core>=1.1", "penstock-rl"]
build-backend = "scikit_build_core.build"

[project]
name = "@project@-env"
version = "0.1"
dependencies = ["penstock-rl"]

[project.entry-points."penstock.environments"]
@module@ = "@module@_env:load"

[tool.scikit-build]
wheel.packages = ["@module@_env"]
"""

_INIT = '''\
"""@Struct@-v0 for `penstock.native.make`, compiled."""

from pathlib import Path

from penstock import native


def load() -> None:
    """Load the library that was built with this package."""
    native.load_library(Path(__file__).parent / "@module@_library.so")
'''

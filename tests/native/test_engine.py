"""The C++ engine under an environment of its own: engine_test.cpp compiled against the headers, without Python."""

import os
import shutil
import subprocess
from pathlib import Path


def test_engine(tmp_path: Path):
    """Errors, allocation, threads and forks are as promised, for an environment that is written in the test.

    A failing environment is named and fails alone, steps do not allocate, threads do not change results, a forked child
    is told.
    """
    here = Path(__file__).parent
    compiler = os.environ.get("CXX") or shutil.which("c++")
    assert compiler, "the package is built from C++; so is this test: install a compiler or set CXX"
    program = tmp_path / "engine_test"
    include = here.parent.parent / "native" / "include"
    flags = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-I", str(include)]
    built = subprocess.run(
        [compiler, *flags, str(here / "engine_test.cpp"), "-o", str(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr

    ran = subprocess.run([str(program)], capture_output=True, text=True, check=False, timeout=60)

    assert (ran.returncode, ran.stdout) == (0, "")

"""Compile the environment for tests of the framework, once."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from penstock import native
from penstock.native import _core


@pytest.fixture(scope="session")
def counting(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the id of the environment in counting.cpp, compiled and loaded."""
    compiler = os.environ.get("CXX") or shutil.which("c++")
    assert compiler, "the package is built from C++; so is this environment: install a compiler or set CXX"
    source, library = Path(__file__).parent / "counting.cpp", tmp_path_factory.mktemp("counting") / "counting.so"
    flags = ["-std=c++20", "-O0", "-shared", "-fPIC", "-pthread", "-I", str(Path(native.__file__).parent / "include")]
    subprocess.run([compiler, *flags, str(source), "-o", str(library)], check=True)
    (name,) = _core.load_library(str(library))
    return name

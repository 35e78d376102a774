"""Compile the environment for tests of the framework, once."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from filelock import FileLock

from penstock import native
from penstock.native import _core


@pytest.fixture(scope="session")
def counting(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the id of the environment in counting.cpp, compiled by the first process of tests and loaded."""
    compiler = os.environ.get("CXX") or shutil.which("c++")
    assert compiler, "the package is built from C++; so is this environment: install a compiler or set CXX"
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    source, library = Path(__file__).parent / "counting.cpp", folder / "counting.so"
    flags = ["-std=c++20", "-O0", "-shared", "-fPIC", "-pthread", "-I", str(Path(native.__file__).parent / "include")]
    with FileLock(f"{library}.lock"):
        if not library.exists():
            subprocess.run([compiler, *flags, str(source), "-o", str(library)], check=True)
    (name,) = _core.load_library(str(library))
    return name

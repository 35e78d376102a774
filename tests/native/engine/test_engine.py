"""The C++ engine under a custom environment: engine_test.cpp compiled against the headers, without Python."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", [None, "thread", "address,undefined"])
def test_engine(tmp_path: Path, sanitizer: str | None):
    """Errors, allocation, threads and forks are as promised, for an environment that is written in the test.

    A failing environment is named and fails alone, steps do not allocate, threads do not change results, batches that
    are stepped asynchronously hold what each environment would go through alone, a forked child gets an error. And no
    thread reads what another writes, nothing is used after it is gone: the same under the compiler's sanitizers.
    """
    compiler = os.environ.get("CXX") or shutil.which("c++")
    assert compiler, "the package is built from C++; so is this test: install a compiler or set CXX"
    program = tmp_path / "engine_test"
    include = HERE.parent.parent / "native" / "include"
    flags = ["-std=c++20", "-O0", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-pthread", "-I", str(include)]
    if sanitizer is not None:
        flags += [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-g1"]
        if not can_sanitize(compiler, sanitizer, tmp_path):
            pytest.skip(f"{compiler} has no -fsanitize={sanitizer}: install the sanitizers of its version")
    built = subprocess.run(
        [compiler, *flags, str(HERE / "engine_test.cpp"), "-o", str(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr

    ran = subprocess.run([str(program)], capture_output=True, text=True, check=False, timeout=150)

    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def can_sanitize(compiler: str, sanitizer: str, folder: Path) -> bool:
    source = folder / "nothing.cpp"
    source.write_text("int main() { return 0; }\n")
    build = [compiler, f"-fsanitize={sanitizer}", str(source), "-o", str(folder / "nothing")]
    if subprocess.run(build, capture_output=True, check=False).returncode != 0:
        return False
    return subprocess.run([str(folder / "nothing")], capture_output=True, check=False).returncode == 0

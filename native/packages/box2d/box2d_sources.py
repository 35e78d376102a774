"""Gets the C++ sources of Box2D 2.3 from the source distribution of `box2d-py` and prepares them for a pool.

    python box2d_sources.py FOLDER [SDIST]

writes the library below FOLDER, with FOLDER/box2d.cpp, which compiles all of it as one unit. Without SDIST pip fetches
the archive from the package index that it is configured for. The results of a step are the same bits as those of the
sources as they were; each change below says what it is for.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

REQUIREMENT = "box2d-py==2.3.8 --hash=sha256:bdacfbbc56079bb317548efe49d3d5a86646885cc27f4a2ee97e4b2960921ab7"
LEFT_OUT = "b2Timer.cpp"
"""Not needed: a timer that asks the system for the time several times a step."""

_ALTERED = "// Altered for Penstock: box2d_sources.py says how.\n"

_TIMER = """\
#pragma once
#include <Box2D/Common/b2Settings.h>
class b2Timer
{
public:
	void Reset() {}
	float32 GetMilliseconds() const { return 0.0f; }
};
"""

# Failed checks would be Python exceptions; without this they are assertions, which a release build leaves out.
_EXCEPTIONS = "#define USE_EXCEPTIONS\n"

# The loop that takes most of a step: velocity_solver.hpp is faster where it knows all joints.
_ITERATIONS = "\tfor (int32 i = 0; i < step.velocityIterations; ++i)\n\t{\n\t\tfor (int32 j = 0; j < m_jointCount"
_SOLVER = "\tif (!penstock_box2d::VelocitySolver::solve(*this, contactSolver, solverData))\n"

# Counters for profiling, which all threads would write to.
_COUNTERS = (
    "++b2_gjkCalls;",
    "++b2_gjkIters;",
    "b2_gjkMaxIters = b2Max(b2_gjkMaxIters, iter);",
    "++b2_toiCalls;",
    "++b2_toiRootIters;",
    "b2_toiMaxRootIters = b2Max(b2_toiMaxRootIters, rootIterCount);",
    "++b2_toiIters;",
    "b2_toiMaxIters = b2Max(b2_toiMaxIters, iter);",
    "b2_toiMaxTime = b2Max(b2_toiMaxTime, time);",
    "b2_toiTime += time;",
)


def prepare(folder: Path, sdist: Path | None = None) -> None:
    """Write the prepared sources below a folder.

    Raises:
        subprocess.CalledProcessError: pip found no such archive, or one with another digest.
        ValueError: The sources are not those of 2.3.8; names the text that was expected.
    """
    with tempfile.TemporaryDirectory() as scratch:
        archive = sdist or _fetch(Path(scratch))
        with tarfile.open(archive) as packed:
            packed.extractall(scratch, filter="data")
        (source,) = Path(scratch).glob("box2d-py-*/Box2D")
        for path in sorted(source.rglob("*")):
            if path.suffix in (".h", ".cpp") and path.name != LEFT_OUT:
                target = folder / "Box2D" / path.relative_to(source)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(_ALTERED + _changed(path), encoding="utf-8")
        licence = (source / "Box2D-License.txt").read_text(encoding="utf-8", errors="replace")
        (folder / "Box2D" / "Box2D-License.txt").write_text(licence, encoding="utf-8")
    units = sorted(path.relative_to(folder) for path in folder.rglob("Box2D/**/*.cpp"))
    (folder / "box2d.cpp").write_text("".join(f'#include "{unit.as_posix()}"\n' for unit in units), encoding="utf-8")


def _fetch(folder: Path) -> Path:
    requirements = folder / "requirements.txt"
    requirements.write_text(REQUIREMENT + "\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-binary", "box2d-py", "--require-hashes", "--requirement", str(requirements)]
    subprocess.run([*pip, *options, "--dest", str(folder)], check=True)
    (archive,) = folder.glob("box2d*.tar.gz")
    return archive


def _changed(path: Path) -> str:
    text = path.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n")
    if path.name == "b2Timer.h":
        return _TIMER
    if path.name == "b2Settings.h":
        text = _replaced(path, text, _EXCEPTIONS, "")
    if path.name == "b2Island.cpp":
        text = '#include "velocity_solver.hpp"\n' + _replaced(path, text, _ITERATIONS, _SOLVER + _ITERATIONS)
    if path.name in ("b2Distance.cpp", "b2TimeOfImpact.cpp"):
        for counter in _COUNTERS:
            text = text.replace(counter, "")
    if path.suffix == ".h":  # what is saved of a world is not public
        text = text.replace("private:", "public:").replace("protected:", "public:")
    return text


def _replaced(path: Path, text: str, old: str, new: str) -> str:
    if text.count(old) != 1:
        raise ValueError(
            f"{path.name} has {text.count(old)} times {old!r}, expected it once; are these the sources of 2.3.8?"
        )
    return text.replace(old, new)


if __name__ == "__main__":
    prepare(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)

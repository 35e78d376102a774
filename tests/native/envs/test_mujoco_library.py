"""MuJoCo's library is loaded when it is needed, in the version compiled for, and its errors are exceptions."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import native

from ...support.processes.alone import run_alone

pytest.importorskip("mujoco", reason="comes with penstock-rl[mujoco]")
pytest.importorskip("imageio", reason="Gymnasium's MuJoCo environments import it; it comes with penstock-rl[test]")


def test_nothing_is_loaded_before_it_is_needed():
    """Importing native and listing its environments loads no MuJoCo; making one loads it without its Python module."""
    out = run_alone("""
from penstock import native
def loaded():
    return "libmujoco" in open("/proc/self/maps").read()
print(loaded(), "Ant-v5" in native.environment_ids(), "CartPole-v1" in native.environment_ids(), loaded())
native.make("CartPole-v1", 1)
print(loaded())
native.make("Ant-v5", 1)
print(loaded(), "mujoco" in sys.modules)
""")

    assert out.split() == ["False", "True", "True", "False", "False", "True", "False"]


def test_without_mujoco_the_error_names_the_extra():
    """No mujoco can be imported: its tasks are not listed and cannot be made, everything else works."""
    out = run_alone("""
sys.modules["mujoco"] = None
from penstock import native
print("Ant-v5" in native.environment_ids())
native.make("CartPole-v1", 1)
try:
    native.make("Ant-v5", 1)
except ModuleNotFoundError as error:
    print(error)
""")

    assert out.startswith("False\nthe MuJoCo tasks need mujoco 4.0.0, and none is installed")
    assert "pip install 'penstock-rl[mujoco]'" in out


def test_another_mujoco_than_compiled_for_is_refused(tmp_path: Path):
    """A mujoco of another version is named in the error, and not loaded."""
    (tmp_path / "mujoco").mkdir()
    (tmp_path / "mujoco" / "__init__.py").touch()
    (tmp_path / "mujoco" / "libmujoco.so.3.9.1").touch()
    out = run_alone(f"""
sys.path.insert(0, {str(tmp_path)!r})
from penstock import native
try:
    native.make("Ant-v5", 1)
except ImportError as error:
    print(error)
""")

    assert out.startswith("the MuJoCo tasks were compiled for mujoco 4.0.0, but 3.9.1 is installed in ")
    assert "pip install 'penstock-rl[mujoco]'" in out


def test_penstock_compiled_without_mujoco_is_reported(tmp_path: Path):
    """A build that found no mujoco has no library next to it."""
    package = tmp_path / "penstock"
    package.mkdir()
    (package / "__init__.py").touch()
    shutil.copytree(
        Path(native.__file__).parent,
        package / "native",
        ignore=shutil.ignore_patterns("libpenstock*", "src", "include"),
    )
    core = Path(native._core.__file__)
    shutil.copy(core, package / "native" / core.name)
    # Without the finder of an editable install, which would lead to the sources and to what was compiled from them.
    program = f"""
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
sys.path.insert(0, {str(tmp_path)!r})
from penstock import native
try: native.make("Ant-v5", 1)
except ImportError as error: print(error)
"""
    command = [sys.executable, "-B", "-c", program]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=150).stdout

    assert out.startswith("this Penstock was compiled without the MuJoCo tasks")


def test_error_of_mujoco_is_an_exception(tmp_path: Path):
    """A model without the memory for a contact: the error names MuJoCo's reason, and everything else lives on."""
    out = run_alone(f"""
from pathlib import Path
import numpy as np
from penstock import native
from penstock.native.pool import mujoco_library
mujoco_library.load()
assets = mujoco_library.package_folder("gymnasium") / "envs" / "mujoco" / "assets"
small = (assets / "ant.xml").read_text().replace("<worldbody>", '<size memory="14000"/><worldbody>', 1)
(Path({str(tmp_path)!r}) / "ant.xml").write_text(small)
good = native.make("Ant-v5", 2, 2)
good.reset(seed=0)
library, _ = mujoco_library._found()
native._core.load_library(str(library), {str(tmp_path)!r})
for threads in (1, 3):
    pool = native.make("Ant-v5", 3, threads)
    for attempt in range(2):
        pool.reset(seed=0)
        try:
            for step in range(20):
                pool.step(np.zeros((3, 8), np.float32))
        except RuntimeError as error:
            print(step, str(error).splitlines()[0])
try:
    native.make("Pusher-v5", 1)
except ValueError as error:
    print(str(error).splitlines()[0])
for _ in range(20):
    observation = good.step(np.zeros((2, 8), np.float32))[0]
print(observation.shape)
""")

    *failed, missing, last = out.splitlines()
    assert len(failed) == 4
    assert len(set(failed)) == 1
    assert " of Ant-v5 failed: MuJoCo: mj_stackAlloc: out of memory, stack overflow" in failed[0]
    assert missing.startswith(f"cannot load {tmp_path}/pusher_v5.xml: ")
    assert last == "(2, 105)"

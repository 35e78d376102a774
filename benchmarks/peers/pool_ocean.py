"""Measures PufferLib Ocean's CartPole (float32, no truncation, not Gymnasium's physics) alone, with its own binding.

PufferLib's setup script downloads simulators even when pip only requests its name. The script therefore keeps the
sources that pip unpacks, and compiles CartPole with the flags of PufferLib's release build. Sources and binary are next
to the virtual environment that runs this script.

    python pool_ocean.py --num-envs 1024
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import numpy as np
from measure import print_result
from stepping import measure, random_actions

RELEASE = "pufferlib==3.0.0"
HOME = Path(sys.prefix) / "pufferlib"
HOOK = """
import os, shutil
if os.path.exists("setup.py") and os.path.isdir("pufferlib"):
    shutil.copytree(".", os.environ["PUFFERLIB_SOURCES"], dirs_exist_ok=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=1.0)
    args = parser.parse_args()
    binding = load_binding()
    count = args.num_envs
    observation, actions = np.zeros((count, 4), np.float32), np.zeros(count, np.float32)
    reward, terminated, truncated = np.zeros(count, np.float32), np.zeros(count, bool), np.zeros(count, bool)
    envs = binding.vec_init(observation, actions, reward, terminated, truncated, count, 0, continuous=0)
    binding.vec_reset(envs, 0)

    def step(chosen: Any) -> tuple[Any, Any]:
        actions[:] = chosen
        binding.vec_step(envs)
        return terminated, truncated

    chosen = random_actions("discrete:2", count, "int8")
    print_result({"env_steps_per_second": measure(step, chosen, count, args.seconds, resets_take_a_step=False)})


def load_binding() -> Any:
    """Return the extension module of Ocean's CartPole, built on first use."""
    module = HOME / f"binding{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not module.exists():
        build(module)
    spec = importlib.util.spec_from_file_location("binding", module)
    assert spec is not None
    assert spec.loader is not None
    binding = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(binding)
    return binding


def build(module: Path) -> None:
    sources, hook = HOME / "sources", HOME / "hook"
    hook.mkdir(parents=True, exist_ok=True)
    (hook / "sitecustomize.py").write_text(HOOK)
    environment = os.environ | {"PYTHONPATH": str(hook), "PUFFERLIB_SOURCES": str(sources)}
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-build-isolation", RELEASE],
        cwd=HOME,
        env=environment,
        check=False,  # it fails after it has unpacked the sources
        capture_output=True,
    )
    cartpole = sources / "pufferlib" / "ocean" / "cartpole"
    if not (cartpole / "binding.c").exists():
        sys.exit(f"{RELEASE} could not be fetched: there is no {cartpole / 'binding.c'}")
    raylib = next(sources.glob("raylib-*_linux_*"))
    include = ["-I", sysconfig.get_paths()["include"], "-I", np.get_include(), "-I", str(raylib / "include")]
    flags = ["-O2", "-flto", "-march=native", "-fwrapv", "-fPIC", "-shared", "-w"]
    libraries = [str(raylib / "lib" / "libraylib.a"), "-lm", "-lpthread", "-ldl"]
    command = ["gcc", *flags, *include, str(cartpole / "binding.c"), "-o", str(module), *libraries]
    subprocess.run(command, cwd=cartpole, check=True)


if __name__ == "__main__":
    main()

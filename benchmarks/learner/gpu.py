"""Checks and measures everything that needs a GPU: `make gpu`.

In this order: the tests of `tests/gpu` (captured rounds against eager ones, copies and waits within a round, NCCL where
there are two GPUs), the input pipeline (`pipeline_gpu.py`), and the rate of training under each policy that one GPU can
serve, next to the same learner on the CPU. Rates go to `benchmarks/results/<date>-gpu.md`. It has never run to the end:
docs/gpu.md lists what that leaves unknown.

Without a CUDA device it says so and ends with status 2, unless only the rates on the CPU are asked for.

    python -m benchmarks.learner.gpu
    python -m benchmarks.learner.gpu --skip-tests --envs 4096
    python -m benchmarks.learner.gpu --cpu-only --envs 64 1024  # gpu_only's round against native pools, without a GPU
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.peers.measure import machine
from benchmarks.support.programs import ROOT
from benchmarks.support.tables import this_command, write_table
from penstock.flows.api.prefect_server import PrefectServer
from penstock.tasks.setup.config.loading import build_config, load_preset

PENSTOCK = str(Path(sys.executable).parent / "penstock")
ENOUGH = ["--target-return", "none", "--evaluation-episodes", "1", "--max-stages", "2"]
HEAD = ("preset", "environments", "policy, device", "env steps/s, median (range)", "seconds a round")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+", default=["cartpole", "pendulum"])
    parser.add_argument("--envs", type=int, nargs="+", default=[64, 1024, 8192], help="environments in one tile")
    parser.add_argument("--rounds", type=int, default=5, help="times that each is trained")
    parser.add_argument("--rounds-per-stage", type=int, default=20)
    parser.add_argument("--skip-tests", action="store_true")
    parser.add_argument("--cpu-only", action="store_true", help="measure the policies on the CPU, and nothing else")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    args = parser.parse_args()
    if not torch.cuda.is_available() and not args.cpu_only:
        print(f"make gpu: expected a CUDA device, torch {torch.__version__} finds none here", file=sys.stderr)
        sys.exit(2)
    if not args.skip_tests and not args.cpu_only:
        check([sys.executable, "-m", "pytest", "-m", "gpu", "tests/gpu", "-n", "0"])
        check([sys.executable, "-m", "benchmarks.learner.pipeline_gpu"])
    with tempfile.TemporaryDirectory(prefix="penstock-gpu-") as folder:
        os.environ.setdefault("PREFECT_HOME", f"{folder}/prefect")
        report(args, measure(args, folder))


def check(command: list[str]) -> None:
    """Run a part that checks; ends this program with its status if it fails."""
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    if status:
        print(f"make gpu: {shlex.join(command)} ended with {status}", file=sys.stderr)
        sys.exit(status)


def policies(cpu_only: bool) -> dict[str, list[str]]:
    """Return the settings of each policy and device to compare."""
    found = {
        "gpu_only, cpu": ["--policy", "gpu_only", "--device", "cpu"],
        "multiple_learners, cpu": ["--policy", "multiple_learners", "--device", "cpu"],
    }
    if cpu_only:
        return found
    found["gpu_only, cuda"] = ["--policy", "gpu_only", "--device", "cuda"]
    found["single_learner_coarse, cuda"] = ["--policy", "single_learner_coarse", "--device", "cuda"]
    gpus = torch.cuda.device_count()
    if gpus > 1:
        several = ["--policy", "gpu_only", "--device", "cuda", "--learn-tasks", str(gpus)]
        found[f"gpu_only, {gpus} x cuda"] = several
    return found


def measure(args: argparse.Namespace, folder: str) -> list[dict[str, Any]]:
    """Train everything in turn, and return the seconds of a round in the second stage of each."""
    found: dict[tuple[str, int, str], list[float]] = {}
    with PrefectServer() as server:
        server.wait_ready()
        server.direct_here()
        each = itertools.product(range(args.rounds), args.presets, args.envs, policies(args.cpu_only).items())
        for run, (_, preset, envs, (name, policy)) in enumerate(each):
            learners = int(policy[-1]) if policy[-2] == "--learn-tasks" else 1
            tiles = ["--num-envs", str(envs), "--envs-per-tile", str(envs // learners)]
            settings = [*tiles, "--rounds-per-stage", str(args.rounds_per_stage), *ENOUGH, *policy]
            seconds = timed([PENSTOCK, "train", preset, *settings], Path(folder), f"run-{run}")
            found.setdefault((preset, envs, name), []).append(seconds / args.rounds_per_stage)
    return [
        {"preset": preset, "envs": envs, "policy": name, "seconds": seconds}
        for (preset, envs, name), seconds in found.items()
    ]


def timed(command: list[str], folder: Path, run: str) -> float:
    """Train, and return the seconds in which the roles of the second stage worked."""
    command = [*command, "--store", str(folder), "--name", run, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{shlex.join(command)} ended with {done.returncode}:\n{done.stderr}")
    stage: dict[str, Any] = json.loads(max((folder / run / "timings").glob("*.json")).read_text())
    return float(stage["roles_seconds"])


def report(args: argparse.Namespace, found: list[dict[str, Any]]) -> None:
    rows = []
    for each in found:
        steps = build_config(load_preset(each["preset"])).schedule.round_steps
        rates = [each["envs"] * steps / seconds for seconds in each["seconds"]]
        rows.append(
            (
                each["preset"],
                f"{each['envs']:,}",
                each["policy"],
                f"{median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})",
                f"{median(each['seconds']):.4f}",
            )
        )
    devices = [] if args.cpu_only else [torch.cuda.get_device_name(each) for each in range(torch.cuda.device_count())]
    raw = {"found": found, "devices": devices, "machine": machine(["penstock-rl", "torch", "distributed"])}
    command = this_command()
    title, notes = ("gpu-only-on-cpu", []) if args.cpu_only else ("gpu", [f"On {', '.join(devices)}."])
    print(write_table(args.results, title, command, rows, raw, head=HEAD, notes=notes))


if __name__ == "__main__":
    main()

"""Measures the savings and costs of snapshots with fewer bits: bytes, reading, acting, and the runs' returns.

Runs are trained with the user's command for a fixed number of stages, alternating dtypes and seeds. The return is that
of the last evaluation (100 episodes on fresh seeds, acting with the snapshot as stored). Reading converts a stored file
to parameters and verifies its digest. Acting is the policy's perceptron on 64 rows, with one thread.

    python -m benchmarks.storage.snapshots                                       # about 5 minutes
    python -m benchmarks.storage.snapshots --seeds 1 --stages 1                  # a smoke run
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median, stdev
from typing import TYPE_CHECKING, Any, get_args

import torch

from benchmarks.peers.measure import machine
from benchmarks.support.programs import RESULTS
from benchmarks.support.tables import this_command, write_table
from penstock.storage.digest import digest
from penstock.storage.refs import SnapshotRef
from penstock.tasks.data.snapshots.exchange import load_snapshot
from penstock.tasks.data.snapshots.quantize import SnapshotDtype, encode_params
from penstock.tasks.model.nn.layers import init_mlp, mlp

if TYPE_CHECKING:
    from collections.abc import Callable

DTYPES: tuple[SnapshotDtype, ...] = get_args(SnapshotDtype)
STAGES = {"cartpole": 3, "pendulum": 12}
SIZES = {"CartPole's, 64 wide": (4, 64, 64, 2), "1024 wide": (4, 1024, 1024, 2), "16 MB": (64, 2000, 2000, 2)}
ROWS = 64

Row = tuple[str, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--stages", type=int, default=None, help="instead of 3 for CartPole and 12 for Pendulum")
    parser.add_argument("--windows", type=int, default=15)
    parser.add_argument("--only", nargs="+", choices=["files", "returns"], default=["files", "returns"])
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    raw: dict[str, Any] = {"machine": machine(["penstock-rl", "torch", "safetensors"])}
    rows: list[Row] = []
    if "files" in args.only:
        rows += files(args.windows, raw)
    if "returns" in args.only:
        rows += returns(args.seeds, args.stages, raw)
    report(args, rows, raw)


def files(windows: int, raw: dict[str, Any]) -> list[Row]:
    torch.set_num_threads(1)
    rows: list[Row] = []
    raw["files"] = {}
    for title, sizes in SIZES.items():
        policy = init_mlp(sizes, 0.01, torch.Generator().manual_seed(1))
        tensors = {f"policy/{name}": value for name, value in policy.items()}
        observation = torch.randn(ROWS, sizes[0])
        found: dict[str, dict[str, float]] = {dtype: {} for dtype in DTYPES}
        calls: dict[str, dict[str, Callable[[], Any]]] = {"read_seconds": {}, "act_seconds": {}}
        for dtype in DTYPES:
            data = bytearray(encode_params(tensors, dtype, {"version": 1}))
            ref = SnapshotRef("snapshot", digest(data), len(data), 1)
            params = load_snapshot(memoryview(data), ref)["policy"]
            found[dtype]["bytes"] = len(data)
            calls["read_seconds"][dtype] = lambda data=data, ref=ref: load_snapshot(memoryview(data), ref)
            calls["act_seconds"][dtype] = lambda params=params, seen=observation: mlp(params, seen)
        for measured, by_dtype in calls.items():
            for dtype, seconds in seconds_of(by_dtype, windows).items():
                found[dtype][measured] = seconds
        raw["files"][title] = found
        for what, unit, scale in (("bytes", "KB", 1e-3), ("read_seconds", "ms", 1e3), ("act_seconds", "ms", 1e3)):
            values = [found[dtype][what] for dtype in DTYPES]
            cells = (f"{value * scale:.3g} {unit} ({value / values[0]:.2f})" for value in values)
            rows.append((f"{what.removesuffix('_seconds')}, {title}", *cells))
    return rows


@torch.inference_mode()
def seconds_of(calls: dict[str, Callable[[], Any]], windows: int) -> dict[str, float]:
    """Return the seconds per call: medians over windows in which the dtypes alternate."""
    counts = {}
    for dtype, call in calls.items():
        call()
        started = time.perf_counter()
        call()
        counts[dtype] = max(1, int(0.02 / (time.perf_counter() - started)))
    taken: dict[str, list[float]] = {dtype: [] for dtype in calls}
    for _ in range(windows):
        for dtype, call in calls.items():
            started = time.perf_counter()
            for _ in range(counts[dtype]):
                call()
            taken[dtype].append((time.perf_counter() - started) / counts[dtype])
    return {dtype: median(values) for dtype, values in taken.items()}


def returns(seeds: int, stages: int | None, raw: dict[str, Any]) -> list[Row]:
    rows: list[Row] = []
    raw["returns"] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        os.environ["PREFECT_HOME"] = f"{folder}/prefect"
        from penstock.flows.api.prefect_server import PrefectServer  # noqa: PLC0415  (Prefect reads PREFECT_HOME when it is imported)

        with PrefectServer() as server:
            server.wait_ready()
            server.direct_here()
            for preset, usual in STAGES.items():
                found: dict[str, list[float]] = {dtype: [] for dtype in DTYPES}
                for seed in range(1, seeds + 1):
                    for dtype in DTYPES:
                        found[dtype].append(train(folder, preset, stages or usual, seed, dtype))
                raw["returns"][preset] = found
                rows.append((f"last evaluation, {preset}, {seeds} seeds", *(spread(found[dtype]) for dtype in DTYPES)))
    return rows


def train(folder: str, preset: str, stages: int, seed: int, dtype: str) -> float:
    """Train, and return the mean return of the evaluation after the last stage."""
    name = f"{preset}-{dtype}-{seed}"
    command = [str(Path(sys.executable).parent / "penstock"), "train", preset, "--name", name, "--json"]
    command += ["--store", f"{folder}/runs", "--seed", str(seed), "--max-stages", str(stages)]
    command += ["--target-return", "none", "--evaluate-every-stages", str(stages), "--snapshot-dtype", dtype]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode:
        sys.exit(f"{shlex.join(command)} ended with {finished.returncode}:\n{finished.stderr}")
    found = float(json.loads(finished.stdout)["evaluation"]["mean_return"])
    print(f"{name}: {found:.1f}", flush=True)
    return found


def spread(values: list[float]) -> str:
    """Return the mean over the seeds and its standard error."""
    error = f" ± {stdev(values) / len(values) ** 0.5:.1f}" if len(values) > 1 else ""
    return f"{mean(values):.1f}{error}"


def report(args: argparse.Namespace, rows: list[Row], raw: dict[str, Any]) -> None:
    command = this_command()
    note = "In brackets: the ratio to float32. Returns: mean and standard error over seeds."
    print(write_table(args.results, "snapshots", command, rows, raw, head=("", *DTYPES), notes=[note]))


if __name__ == "__main__":
    main()

"""Measures whether snapshots sent as differences would be smaller: equal weights, and bytes that remain, by version.

Trains the runs itself, with float32 snapshots, none of which is removed; each is then encoded in bfloat16 as
`distribution.snapshot_dtype` does it, so both types are of the same parameters. A difference is made of two versions in
two ways: *elided* has a bit for each weight and the values of those that changed; *planes* has the XOR of both, all
first bytes before all second ones, and so on. Both are compressed with zstd, and so are two encodings that need no
other version: the whole snapshot, and the whole one as byte planes. Sizes are those of the tensors, without the file's
head.

    python -m benchmarks.storage.snapshot_deltas                                  # about 15 minutes
    python -m benchmarks.storage.snapshot_deltas --only cartpole --pairs 3        # a smoke run
    python -m benchmarks.storage.snapshot_deltas --runs /data/deltas  # keeps the runs, and trains only missing ones
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch

from benchmarks.peers.measure import machine
from benchmarks.support.programs import RESULTS
from benchmarks.support.tables import write_table
from penstock.storage.digest import digest
from penstock.storage.refs import parse_snapshot_name
from penstock.storage.tensors import BFLOAT16, load_tensors
from penstock.tasks.data.snapshots.quantize import SnapshotDtype, encode_params

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

ZSTD = pa.Codec("zstd", compression_level=3)
DTYPES: tuple[SnapshotDtype, ...] = ("bfloat16", "float32")
ALONE = {"zstd": "whole", "whole_planes": "whole, planes"}
DIFFERENCES = {"elided": "elided", "planes": "XOR of planes"}
"""Encodings, with the titles of their columns."""
DISTANCES = (1, 10)
LIMIT = 0.5
"""Share of the bytes below which differences would be worth their chain of files."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A preset with settings, and the versions that pairs are taken from."""

    preset: str
    settings: tuple[str, ...]
    versions: Mapping[str, tuple[int, int]]
    """First and last version, by title. Earlier versions of an off-policy run are equal: it has not learned yet."""


RUNS = {
    "cartpole": Trained("cartpole", ("--max-stages", "4"), {"PPO, rate 1e-2": (0, 40)}),
    "dqn": Trained("cartpole-dqn", ("--max-stages", "2"), {"DQN, rate 5e-4": (50, 200)}),
    "sac": Trained("pendulum-sac", ("--max-stages", "3"), {"SAC, rate 2e-3": (20, 120)}),
    "halfcheetah": Trained(
        "halfcheetah",
        (),
        {"PPO, rate 3e-4, first rounds": (0, 100), "PPO, the last rounds, rate 3e-5 to 0": (439, 488)},
    ),
    "wide": Trained(
        "halfcheetah",
        ("--hidden", "[1400, 1400]", "--max-stages", "2"),
        {"PPO, rate 3e-4, [1400, 1400]": (0, 16)},
    ),
    "pong": Trained("pong", ("--rounds-per-stage", "24", "--max-stages", "1"), {"PPO, rate 2.5e-4": (0, 24)}),
}

Sections = list["NDArray[Any]"]
"""A snapshot's numbers as unsigned integers of their size, those of one size after each other."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(RUNS), default=list(RUNS))
    parser.add_argument("--pairs", type=int, default=20, help="of each distance, evenly over the versions")
    parser.add_argument("--runs", type=Path, help="folder that keeps the runs; default: a temporary one")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    rows: list[tuple[str, ...]] = []
    raw: dict[str, Any] = {"machine": machine(["penstock-rl", "torch", "numpy", "pyarrow"]), "runs": {}}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        for name in args.only:
            trained = RUNS[name]
            files, command = train(trained, (args.runs or Path(folder)) / name)
            raw["runs"][name] = {"command": command, "parts": {}}
            for title, (first, last) in trained.versions.items():
                found = {gap: compare(files, first, last, gap, args.pairs) for gap in DISTANCES}
                raw["runs"][name]["parts"][title] = found
                rows += [row(f"`{trained.preset}`, {title}", gap, found[gap]) for gap in DISTANCES]
                print(*(" | ".join(line) for line in rows[-len(DISTANCES) :]), sep="\n", flush=True)
    report(args, rows, raw)


def train(trained: Trained, store: Path) -> tuple[dict[int, Path], str]:
    """Train, unless the store has the snapshots, and return their files by version, and the command."""
    command = [str(Path(sys.executable).parent / "penstock"), "train", trained.preset, *trained.settings]
    command += ["--target-return", "none", "--evaluate-every-stages", "1000", "--seed", "1"]
    told = shlex.join(["penstock", *command[1:]])
    last = max(last for _, last in trained.versions.values())
    if last not in snapshots(store):
        command += ["--store", str(store), "--name", "run", "--json"]
        environment = {**os.environ, "PREFECT_HOME": f"{store}-prefect"}
        finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if finished.returncode:
            sys.exit(f"{told} ended with {finished.returncode}:\n{finished.stderr}")
    return snapshots(store), told


def snapshots(store: Path) -> dict[int, Path]:
    """Return the files of a run's snapshots by version."""
    named = [
        (parse_snapshot_name(f"snapshots/{path.name}"), path) for path in store.glob("run/snapshots/*.safetensors")
    ]
    return {parsed.version: path for parsed, path in named if parsed}


def compare(files: Mapping[int, Path], first: int, last: int, gap: int, pairs: int) -> list[dict[str, Any]]:
    """Return sizes of differences between versions that are `gap` apart."""
    starts = np.unique(np.linspace(first, last - gap, pairs).round().astype(int)).tolist()
    return [measure(files[start], files[start + gap]) | {"versions": [start, start + gap]} for start in starts]


def measure(old: Path, new: Path) -> dict[str, Any]:
    """Return the share of equal bfloat16 weights, and bytes by type and encoding."""
    found: dict[str, Any] = {}
    for dtype in DTYPES:
        before, after = sections(old, dtype), sections(new, dtype)
        whole = b"".join(section.tobytes() for section in after)
        found[dtype] = {
            "whole": len(whole),
            "zstd": compressed_bytes(whole),
            "whole_planes": compressed_bytes(b"".join(map(planes, after))),
            "elided": compressed_bytes(elided(before, after)),
            "planes": compressed_bytes(b"".join(planes(old ^ new) for old, new in zip(before, after, strict=True))),
        }
        if dtype == "bfloat16":
            weights = [pair for pair in zip(before, after, strict=True) if pair[0].itemsize == BFLOAT16.itemsize]
            found["weights"] = sum(a.size for a, _ in weights)
            found["equal"] = float(np.mean(np.concatenate([a == b for a, b in weights])))
    return found


def sections(path: Path, dtype: SnapshotDtype) -> Sections:
    """Return a snapshot's numbers as they are stored with a type of weights."""
    data = path.read_bytes()
    arrays, _ = load_tensors(memoryview(data), path.name, digest(data))
    if dtype != "float32":
        data = encode_params({name: torch.from_numpy(array.copy()) for name, array in arrays.items()}, dtype, {})
        arrays, _ = load_tensors(memoryview(data), path.name, digest(data))
    by_size: dict[int, list[NDArray[Any]]] = {}
    for _, array in sorted(arrays.items()):
        bits = np.ascontiguousarray(array).reshape(-1).view(f"<u{array.itemsize}")
        by_size.setdefault(array.itemsize, []).append(bits)
    return [np.concatenate(parts) for _, parts in sorted(by_size.items())]


def elided(before: Sections, after: Sections) -> bytes:
    """Return a bit for each number, set where it changed, and the new values of those that did."""
    parts = []
    for old, new in zip(before, after, strict=True):
        changed = old != new
        parts += [np.packbits(changed).tobytes(), new[changed].tobytes()]
    return b"".join(parts)


def planes(bits: NDArray[Any]) -> bytes:
    """Return numbers byte by byte: all first bytes, then all second ones, and so on."""
    return bits.view(np.uint8).reshape(-1, bits.itemsize).T.tobytes()


def compressed_bytes(data: bytes) -> int:
    return len(ZSTD.compress(data, asbytes=True))


def row(title: str, gap: int, found: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return a table's row: medians over pairs of versions."""
    equal = [100 * pair["equal"] for pair in found]
    cells = [
        title,
        f"{found[0]['weights']:,}",
        f"v + {gap}",
        f"{median(equal):.1f} % ({min(equal):.1f} to {max(equal):.1f})",
    ]
    for dtype in DTYPES:
        cells += [f"{share(found, dtype, method, 'whole'):.2f}" for method in ALONE]
        cells += [
            f"{share(found, dtype, method, 'whole'):.2f} ({share(found, dtype, method, 'zstd'):.2f})"
            for method in DIFFERENCES
        ]
    return tuple(cells)


def share(found: Sequence[Mapping[str, Any]], dtype: str, method: str, of: str) -> float:
    return float(median(pair[dtype][method] / pair[dtype][of] for pair in found))


def decision(raw: Mapping[str, Any]) -> str:
    """Return in how many rows less than half of the bytes remain between neighbouring versions, by encoding."""
    parts = [found[1] for run in raw["runs"].values() for found in run["parts"].values()]
    sentences = []
    for method, title in DIFFERENCES.items():
        told = []
        for of, whole in (("whole", "the whole snapshot's bytes"), ("zstd", "those of the whole one compressed")):
            left = [share(found, "bfloat16", method, of) for found in parts]
            below = sum(value < LIMIT for value in left)
            told.append(
                f"{min(left):.2f} to {max(left):.2f} of {whole} (less than {LIMIT:g} in {below} of {len(left)})"
            )
        sentences.append(f"{title}: {' and '.join(told)}.")
    return f"Left of bfloat16 snapshots by differences from the version before, over the runs. {' '.join(sentences)}"


def report(args: argparse.Namespace, rows: list[tuple[str, ...]], raw: dict[str, Any]) -> None:
    # Kept runs are those that it would train: the folder is not part of what makes the figures.
    parts = [] if args.only == list(RUNS) else ["--only", *args.only]
    command = shlex.join(["python", "-m", "benchmarks.storage.snapshot_deltas", *parts, "--pairs", str(args.pairs)])
    head = ["run", "bf16 weights", "from v to", "equal bf16 weights"]
    head += [f"{short}: {title}" for short in ("bf16", "f32") for title in (ALONE | DIFFERENCES).values()]
    about = (
        "All are compressed with zstd, level 3. Bytes as a share of the whole snapshot's, in brackets as a share of "
        "the whole one compressed; medians over pairs of versions. Vectors, such as biases, are float32 in bfloat16 "
        "snapshots too."
    )
    notes = [about, decision(raw)]
    print(write_table(args.results, "snapshot-deltas", command, rows, raw, head=head, notes=notes))


if __name__ == "__main__":
    main()

"""Compares trajectory shards with the limits of the hardware, and with other storage formats for training data.

Write: encode a shard and store it in a folder on a RAM disk, compared with one `write` of the same bytes. Read: map a
stored shard, verify it and return tensors, compared with a copy of the same bytes between two warm buffers. On the CPU
the mapped columns are the batch; two rows also copy them into a batch's memory. "two passes" is the bound of
these: a warm buffer without a file is hashed, then copied. Rows per second: all rows of a run, in shards of at most 16
MiB, as torch batches (`tasks.data.datasets.torch_dataset`), compared with each library. Every library has its own
environment under `.venv-peers/` and writes the same trajectories with its own writer. "hashed and copied alone" is the
bound of these: one thread hashes the same arrays in memory while another copies them to new batches.

    python -m benchmarks.storage.shards                                        # about 15 minutes
    python -m benchmarks.storage.shards --rows 20000 --frames 500 --repeats 2 --shard-mib 16 --peers parquet  # smoke
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xxhash

from benchmarks.peers.measure import machine
from benchmarks.support.programs import PEERS, RESULTS, ROOT, peer, run
from benchmarks.support.tables import this_command, write_table
from penstock.storage.refs import Ref, ShardRef, checkpoint_name, shard_name
from penstock.storage.runs.commit_schema import Commit
from penstock.storage.runs.run import RunFolder
from penstock.storage.shards.codec import ShardColumns, ShardInfo, allocate, decode_shard, encode_shard
from penstock.storage.shards.episode_index import Episodes
from penstock.storage.shards.specs import Spec
from penstock.storage.stores.open import open_store
from penstock.tasks.data.datasets.torch_dataset import TrajectoryDataset
from penstock.tasks.data.input.pipeline import ShardPipeline

if TYPE_CHECKING:
    from collections.abc import Callable

ENVS = 64
LIBRARIES = ("webdataset", "streaming", "litdata", "minari", "parquet")
FORMS = {"CartPole-like rows": Spec("float32", (4,)), "84x84 frames": Spec("uint8", (84, 84))}
ROWS_AT_MOST = {
    "CartPole-like rows": {"webdataset": 20_000, "streaming": 20_000, "litdata": 20_000, "minari": 200_000},
    "84x84 frames": {"webdataset": 2_000, "streaming": 2_000, "litdata": 2_000},
}
"""Libraries that read or write row by row, or file by file, take minutes, so they get only the first rows."""
EPISODE_STEPS = 200
SHARD_BYTES = 16 << 20
AHEAD_SHARDS = 16


def columns_of(observation: Spec) -> dict[str, Spec]:
    """Return the columns that every library stores."""
    return {
        "observation": observation,
        "reward": Spec("float32"),
        "terminated": Spec("uint8"),
        "truncated": Spec("uint8"),
        "action": Spec("int64"),
    }


def no_episodes() -> Episodes:
    nothing, flags = np.zeros(0, np.int64), np.zeros(0, np.uint8)
    return Episodes.from_flags(nothing, nothing, nothing, nothing, np.zeros(0), flags, flags, nothing, nothing)


def filled(observation: Spec, steps: int, envs: int) -> dict[str, Any]:
    """Return random trajectories, `[T, B, ...]`."""
    rng = np.random.default_rng(0)
    arrays = allocate(columns_of(observation), steps, envs)
    for name in ("observation", "reward", "action"):
        arrays[name][...] = rng.integers(0, 200, arrays[name].shape)
    arrays["terminated"][EPISODE_STEPS - 1 :: EPISODE_STEPS] = 1
    arrays["terminated"][-1] = 1
    return arrays


def encoder(observation: Spec, arrays: dict[str, Any]) -> Callable[[], Any]:
    """Return a function that encodes the arrays as a shard."""
    steps, envs = arrays["reward"].shape
    columns = ShardColumns(columns_of(observation), arrays)
    info = ShardInfo(0, 0, 0, 0, steps, envs, 0, 0, "made", {}, no_episodes())
    flags = arrays["terminated"].copy()
    flags[-1] = 1  # the last step's rows have no successor in this shard
    ends = np.flatnonzero(flags)
    last = np.zeros((len(ends), *observation.shape), observation.dtype)
    return lambda: encode_shard(columns, ends, last, info)


CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def seconds(function: Callable[[], Any], clock: str) -> float:
    started = CLOCKS[clock]()
    function()
    return CLOCKS[clock]() - started


def against_hardware(mib: int, repeats: int, ram_disk: Path, clock: str) -> list[tuple[str, list[float]]]:
    """Return the ratios of the peer's time to ours, round by round."""
    observation = Spec("uint8", (84, 84))
    steps = max(1, (mib << 20) // (84 * 84 + 14) // ENVS)
    encode = encoder(observation, filled(observation, steps, ENVS))
    names = ("write", "read", "read, copied", "two passes", "read ahead, copied")
    ratios: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(dir=ram_disk) as folder, tempfile.TemporaryDirectory(dir=ROOT) as disk:
        store, local = open_store(folder), open_store(disk)
        first = encode()
        whole = b"".join(first.parts)
        local.write("shards/x", [whole])
        source, target = np.frombuffer(whole, np.uint8).copy(), np.zeros(len(whole), np.uint8)
        batch = {
            name: np.zeros((steps, ENVS, *spec.shape), spec.dtype) for name, spec in columns_of(observation).items()
        }

        def write_once() -> None:
            descriptor = os.open(Path(folder) / "plain", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            os.write(descriptor, whole)
            os.close(descriptor)

        def write_shard() -> None:
            store.write("shards/x", encode().parts)

        def read() -> dict[str, torch.Tensor]:
            shard = decode_shard(local.view("shards/x"), None, "x", first.digest)
            return {name: torch.from_numpy(array) for name, array in shard.columns.items()}

        def read_copied() -> None:
            for name, tensor in read().items():
                np.copyto(batch[name], tensor.numpy())

        def two_passes() -> None:
            xxhash.xxh3_128_digest(source)
            np.copyto(target, source)

        refs = []
        for index in range(AHEAD_SHARDS):
            ref = ShardRef(f"shards/{index}", first.digest, len(whole), 0, 0, steps * ENVS)
            local.write(ref.name, [whole])
            refs.append(ref)

        def read_ahead() -> None:
            with ShardPipeline(iter(refs), local) as pipeline:
                for _ in refs:
                    loaded = pipeline.take()
                    for name, tensor in loaded.trajectory.columns.items():
                        np.copyto(batch[name], tensor.numpy())
                    loaded.release()

        for repeat in range(repeats + 1):
            # The second writer reuses memory that the first has just released, so the order alternates.
            taken = {}
            for write in (write_once, write_shard) if repeat % 2 else (write_shard, write_once):
                taken[write] = seconds(write, clock)
                for name in ("plain", "shards/x"):
                    (Path(folder) / name).unlink(missing_ok=True)
            ratios["write"].append(taken[write_once] / taken[write_shard])
            copied = seconds(lambda: np.copyto(target, source), clock)
            ratios["read"].append(copied / seconds(read, clock))
            ratios["read, copied"].append(copied / seconds(read_copied, clock))
            ratios["two passes"].append(copied / seconds(two_passes, clock))
            copied = seconds(lambda: [np.copyto(target, source) for _ in refs], clock)
            ratios["read ahead, copied"].append(copied / seconds(read_ahead, clock))
    return [(name, values[1:]) for name, values in ratios.items()]


def own_rows(observation: Spec, arrays: dict[str, Any], folder: Path, batch_rows: int, epochs: int) -> list[float]:
    """Return the rows per second through `TrajectoryDataset`."""
    rows = arrays["reward"].size
    store_run(observation, arrays, folder)
    names = tuple(columns_of(observation))
    found = []
    for _ in range(epochs + 1):
        started = time.perf_counter()
        dataset = TrajectoryDataset(str(folder), "made", batch_rows=batch_rows, columns=names)
        read = 0
        for batch in dataset:
            read += len(batch["reward"])
            if read >= rows:
                break
        found.append(rows / (time.perf_counter() - started))
    return found[1:]


def store_run(observation: Spec, arrays: dict[str, Any], folder: Path) -> None:
    """Store the arrays as a run of one stage, in shards of at most `SHARD_BYTES`."""
    run_folder = RunFolder(open_store(str(folder)), "made")
    run_folder.create({"format": "penstock-run/1", "identity": {}})
    steps = len(arrays["reward"])
    shards = -(-sum(array.nbytes for array in arrays.values()) // SHARD_BYTES)
    edges = [steps * index // shards for index in range(shards + 1)]
    refs = []
    for round_, (start, stop) in enumerate(itertools.pairwise(edges)):
        part = {name: array[start:stop] for name, array in arrays.items()}
        shard = encoder(observation, part)()
        name = shard_name(0, 0, round_, 0, shard.digest)
        run_folder.store.write(name, shard.parts)
        refs.append(ShardRef(name, shard.digest, shard.nbytes, round_, 0, part["reward"].size))
    run_folder.log.append(
        Commit(
            stage=0,
            parent=run_folder.genesis(),
            rounds=(0, shards - 1),
            version=1,
            env_steps=arrays["reward"].size,
            episodes=0,
            shards=tuple(refs),
            states=(),
            snapshots=(),
            checkpoint=Ref(checkpoint_name(0, "0" * 32), "0" * 32, 1),
            metrics={},
            evaluation=None,
            finished="made",
        )
    )


def saved(arrays: dict[str, Any], folder: Path, rows: int | None) -> Path:
    """Return a folder with the first rows, or all, as one .npy file for each column; the last row ends its episode."""
    found = folder / f"data-{rows}"
    if not found.exists():
        found.mkdir()
        for name, array in arrays.items():
            # Store one environment's rows after the other's, so that other libraries read episodes in order.
            column = array.swapaxes(0, 1).reshape(-1, *array.shape[2:])[:rows]
            if name == "terminated":
                column = column.copy()
                column[-1] = 1
            np.save(found / name, column)
    return found


def bound_rows(arrays: dict[str, Any], batch_rows: int, epochs: int) -> list[float]:
    """Return the rows per second if one thread hashes the arrays while another copies them to new batches."""
    columns = [array.reshape(-1, *array.shape[2:]) for array in arrays.values()]
    rows = len(columns[0])

    def hash_all() -> None:
        for column in columns:
            xxhash.xxh3_128_digest(column)

    def copy_all() -> None:
        for start in range(0, rows, batch_rows):
            batch = [np.empty_like(column[start : start + batch_rows]) for column in columns]
            for copy, column in zip(batch, columns, strict=True):
                np.copyto(copy, column[start : start + batch_rows])

    found = []
    for _ in range(epochs + 1):
        threads = [threading.Thread(target=work) for work in (hash_all, copy_all)]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found.append(rows / (time.perf_counter() - started))
    return found[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shard-mib", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall", help="cpu: all threads, on a busy machine")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--frames", type=int, default=20_000)
    parser.add_argument("--batch-rows", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--peers", nargs="*", choices=LIBRARIES, default=list(LIBRARIES))
    parser.add_argument("--ram-disk", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    table: list[tuple[str, str, str]] = []
    raw: dict[str, Any] = {"machine": machine(("torch", "numpy", "pyarrow"))}
    for mib in args.shard_mib:
        for name, values in against_hardware(mib, args.repeats, args.ram_disk, args.clock):
            raw[f"{name} {mib} MiB"] = values
            spread = f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
            what = "one write" if name == "write" else "a memcpy"
            table.append((f"{mib} MiB shard, {name} / {what}", spread, ">= 0.8"))
            print(*table[-1], sep=" | ", flush=True)
    for form, observation in FORMS.items():
        rows = args.rows if observation.shape == (4,) else args.frames
        arrays = filled(observation, rows // ENVS, ENVS)
        with tempfile.TemporaryDirectory(dir=ROOT) as folder:
            own = own_rows(observation, arrays, Path(folder) / "runs", args.batch_rows, args.epochs)
            raw[f"penstock, {form}"] = own
            raw[f"hashed and copied alone, {form}"] = bound = bound_rows(arrays, args.batch_rows, args.epochs)
            said = f"{median(own) / median(bound):.2f} ({median(own):,.0f} / {median(bound):,.0f} rows/s)"
            table.append((f"{form}, rows a second / hashed and copied alone", said, ""))
            print(*table[-1], sep=" | ", flush=True)
            for library in args.peers:
                options = ["--batch-rows", args.batch_rows, "--epochs", args.epochs]
                data = saved(arrays, Path(folder), ROWS_AT_MOST[form].get(library))
                values = [library, data, Path(folder) / library, *options]
                if library == "parquet":
                    found = run([sys.executable, str(PEERS / "shards_read.py"), *map(str, values)], None)
                else:
                    found = peer(library, "shards_read.py", *values)
                raw[f"{library}, {form}"] = found["rows_per_second"]
                theirs = median(found["rows_per_second"])
                said = f"{median(own) / theirs:.2f} ({median(own):,.0f} / {theirs:,.0f} rows/s)"
                table.append((f"{form}, rows a second / {library}", said, "> 1"))
                print(*table[-1], sep=" | ", flush=True)
    command = this_command()
    notes = [f"Machine: {json.dumps(raw['machine'])}"]
    write_table(args.results, "shards", command, table, raw, head=("figure", "median (range)", "reach"), notes=notes)


if __name__ == "__main__":
    main()

"""Compares `penstock verify` with reading the same files: the goal is 0.8 of the disk's read rate.

A run with shards of 16 MiB of frames is written to a folder. Its files are read in plain, by as many threads as
verification has, and the run is verified, in turn. For the rates of the disk the kernel forgets the files before each;
the rates from memory show what hashing costs, and bound the first where a disk is faster than the processor hashes.

    python -m benchmarks.storage.verifying                              # 4 GiB in the temporary folder
    python -m benchmarks.storage.verifying --folder /data --gib 16
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.peers.measure import machine
from benchmarks.storage.shards import ENVS, FORMS, encoder, filled
from benchmarks.support.programs import RESULTS
from benchmarks.support.tables import this_command, write_table
from penstock.storage.refs import Ref, ShardRef, checkpoint_name, shard_name
from penstock.storage.runs.commit_schema import Commit
from penstock.storage.runs.run import RunFolder
from penstock.storage.runs.verification import verify_run
from penstock.storage.stores.open import open_store

if TYPE_CHECKING:
    from collections.abc import Callable

SHARD_BYTES = 16 << 20
THREADS = 4
PIECE_BYTES = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=4.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", help="on the disk to measure; default: the temporary folder")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    table, raw = [], {"machine": machine(("penstock-rl", "pyarrow", "blake3", "xxhash"))}
    with tempfile.TemporaryDirectory(prefix="penstock-verifying-", dir=args.folder) as folder:
        run = write_run(folder, int(args.gib * (1 << 30)) // SHARD_BYTES)
        paths = [path for path in (Path(folder) / run.name / "shards").rglob("*") if path.is_file()]
        nbytes = sum(path.stat().st_size for path in paths)
        for source, prepare in (("disk", lambda: forget(paths)), ("memory", lambda: read_all(paths))):
            rates: dict[str, list[float]] = {"plain read": [], "verify": []}
            for _ in range(args.repeats):
                for name, work in (("plain read", lambda: read_all(paths)), ("verify", lambda: verify(run))):
                    prepare()
                    rates[name].append(nbytes / seconds(work) / 1e6)
            ratios = [ours / plain for ours, plain in zip(rates["verify"], rates["plain read"], strict=True)]
            raw[source] = rates
            ratio = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            both = f"{median(rates['verify']):,.0f} / {median(rates['plain read']):,.0f} MB/s"
            table.append((f"from {source}: verify / plain read", ratio, both, ">= 0.8" if source == "disk" else ""))
            print(*table[-1], sep=" | ", flush=True)
    head = ("figure", "median (range)", "rates", "reach")
    write_table(args.results, "verifying", this_command(), table, raw, head=head)


def write_run(folder: str, shards: int) -> RunFolder:
    """Write a run of one stage that has so many shards; its other objects are empty."""
    observation = FORMS["84x84 frames"]
    shard = encoder(observation, filled(observation, SHARD_BYTES // (84 * 84 + 14) // ENVS, ENVS))()
    run = RunFolder(open_store(folder), "made")
    run.create({"format": "penstock-run/1", "identity": {}})
    refs = tuple(
        ShardRef(shard_name(0, 0, number, 0, shard.digest), shard.digest, shard.nbytes, number, 0, ENVS)
        for number in range(shards)
    )
    for ref in refs:
        run.store.write(ref.name, shard.parts)
    empty = "af1349b9f5f9a1a6a0404dea36dcc949"
    checkpoint = Ref(checkpoint_name(0, empty), empty, 0)
    run.store.write(checkpoint.name, [b""])
    run.store.sync([ref.name for ref in refs])
    commit = Commit(
        stage=0,
        parent=run.genesis(),
        rounds=(0, shards - 1),
        version=shards,
        env_steps=ENVS * shards,
        episodes=0,
        shards=refs,
        states=(),
        snapshots=(),
        checkpoint=checkpoint,
        metrics={},
        evaluation=None,
        finished="made",
    )
    run.log.append(commit)
    return run


def verify(run: RunFolder) -> None:
    """Verify the run, which is intact."""
    found = verify_run(run)
    if found.faults:
        raise AssertionError(found.faults[0])


def read_all(paths: list[Path]) -> None:
    """Read the files, with as many threads as verification has."""
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(read, paths))


def read(path: Path) -> None:
    piece = memoryview(bytearray(PIECE_BYTES))
    with path.open("rb", buffering=0) as file:
        while file.readinto(piece):
            pass


def forget(paths: list[Path]) -> None:
    """Remove the files, which are synced, from the kernel's cache."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def seconds(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()

"""Checks and measures the input pipeline to a GPU: the bytes that arrive, staging memory, and overlapping copies.

Needs a GPU and a torch that can use it. Ends with an error if one of these checks fails:
- every column arrives on the device bit for bit, although staging memory is reused;
- staging buffers are pinned, and few serve many shards;
- copies use another stream than the learner and continue while the learner's kernels run.

Also measures bytes per second to the device: staged copies concurrent with a busy learner, and pageable copies that
alternate with the learner.

    python -m benchmarks.learner.pipeline_gpu
    python -m benchmarks.learner.pipeline_gpu --json --shards 64 --shard-mib 16
    python -m benchmarks.learner.pipeline_gpu --device cpu  # the same code without a GPU, to check this script

Requires the repository, torch with CUDA, numpy, pyarrow, blake3 and orjson. Nothing has to be compiled.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

# Penstock need not be installed, because the pipeline uses none of its compiled modules.
import torch

from benchmarks.learner.pipeline_shards import COLUMNS, DistantStore, make_shards
from benchmarks.peers.measure import print_result
from penstock.storage.shards.codec import decode_shard
from penstock.storage.stores.open import open_store
from penstock.tasks.data.input.device_staging import DeviceCopies, StagingBuffers
from penstock.tasks.data.input.pipeline import ShardPipeline

if TYPE_CHECKING:
    from penstock.storage.refs import ShardRef
    from penstock.storage.stores.protocol import Store

MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shards", type=int, default=48)
    parser.add_argument("--shard-mib", type=float, default=16.0)
    parser.add_argument("--budget-mib", type=int, default=256)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        sys.exit(f"torch {torch.__version__} finds no GPU; run this where one is, or with --device cpu")
    device = torch.device(args.device)
    with tempfile.TemporaryDirectory(prefix="penstock-gpu-") as folder:
        store = open_store(folder)
        distinct = make_shards(store, 8, int(args.shard_mib * MIB))
        refs = [distinct[index % len(distinct)] for index in range(args.shards)]
        result: dict[str, Any] = {
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "torch": torch.__version__,
            "shard_bytes": distinct[0].nbytes,
        }
        result |= check_rows(store, refs, device, args.budget_mib * MIB)
        result |= check_staging(device)
        result |= check_overlap(device)
        result |= measure(store, refs, device, args.budget_mib * MIB)
    if not args.json:
        for name, value in result.items():
            print(f"{name:>28}  {value}")
    print_result(result)


def check_rows(store: Store, refs: list[ShardRef], device: torch.device, budget_bytes: int) -> dict[str, Any]:
    """Compare every bit, read from a mapped file and by ranged reads, while the learner's stream is busy."""
    compared, tallies = 0, []
    for source in (store, DistantStore(store)):
        with ShardPipeline(
            refs, source, expected=COLUMNS, device=device, staged=True, budget_bytes=budget_bytes
        ) as pipe:
            for ref in refs:
                loaded = pipe.take()
                keep_busy(device)
                expected = decode_shard(store.view(ref.name), COLUMNS, ref.name, ref.digest)
                for name, array in expected.columns.items():
                    found = loaded.trajectory.columns[name]
                    need(found.device.type == device.type, f"column {name} lies on {found.device}")
                    # The multiplication by one makes a kernel on the learner's stream read the column.
                    same = (found * 1).cpu().numpy().tobytes() == array.tobytes()
                    need(same, f"column {name} of {ref.name} arrived with other bits")
                    compared += array.nbytes
                rows = loaded.trajectory.bootstrap_rows.cpu().numpy()
                need((rows == expected.bootstrap_rows).all(), "bootstrap rows arrived with other bits")
                loaded.release()
            tallies.append(pipe.tally())
    for tally in tallies:
        need(tally.staging_uses >= len(refs), f"{tally.staging_uses} uses of staging buffers for {len(refs)} shards")
        need(tally.staging_allocations < len(refs) / 2, f"{tally.staging_allocations} allocations: not used again")
    return {
        "compared_bytes": compared,
        "staging_allocations": max(tally.staging_allocations for tally in tallies),
        "staging_uses": min(tally.staging_uses for tally in tallies),
        "staging_bytes": max(tally.staging_bytes for tally in tallies),
    }


def check_staging(device: torch.device) -> dict[str, Any]:
    """Check that staging memory of a pipeline to a GPU is pinned, and stays pinned when it is reused."""
    staging = StagingBuffers(64 * MIB, pinned=device.type == "cuda")
    pinned = []
    for _ in range(4):
        buffer = staging.acquire(8 * MIB)
        pinned.append(buffer.tensor.is_pinned() if device.type == "cuda" else True)
        staging.release(buffer)
    need(all(pinned), "a staging buffer is not pinned")
    need(staging.allocations == 1, f"{staging.allocations} allocations for four uses")
    return {"pinned": all(pinned)}


def check_overlap(device: torch.device) -> dict[str, Any]:
    """Check that a copy ends while an earlier kernel still runs on the learner's stream."""
    if device.type != "cuda":
        return {"overlaps": None}
    copies = DeviceCopies(device, StagingBuffers(256 * MIB, pinned=True))
    array = torch.rand(16 * MIB // 4).numpy()
    copies.send({"warm": array}).wait()
    torch.cuda.synchronize()
    learned = torch.cuda.Event()
    for _ in range(200):
        keep_busy(device)
    learned.record()
    arrival = copies.send({"column": array})
    event = arrival.event
    need(event is not None, "a copy to a GPU has no event")
    if event is not None:
        event.synchronize()
    overlaps = not learned.query()
    torch.cuda.synchronize()
    need(overlaps, "the copy waited for the learner's kernels, or they were too short to tell")
    return {"overlaps": overlaps}


def measure(store: Store, refs: list[ShardRef], device: torch.device, budget_bytes: int) -> dict[str, Any]:
    """Return the bytes per second of shards that a learner computes on. Both variants do the same work."""
    nbytes = sum(ref.nbytes for ref in refs)

    def staged() -> float:
        with ShardPipeline(refs, store, device=device, staged=True, budget_bytes=budget_bytes) as pipe:
            started = time.perf_counter()
            for _ in refs:
                loaded = pipe.take()
                consume(loaded.trajectory.columns["observation"], device)
                loaded.release()
            synchronize(device)
            return nbytes / (time.perf_counter() - started)

    def pageable() -> float:
        started = time.perf_counter()
        for ref in refs:
            shard = decode_shard(store.view(ref.name), None, ref.name, ref.digest)
            columns = {name: torch.from_numpy(array).to(device) for name, array in shard.columns.items()}
            consume(columns["observation"], device)
        synchronize(device)
        return nbytes / (time.perf_counter() - started)

    staged()
    pageable()
    rates = [(staged(), pageable()) for _ in range(3)]
    ours, theirs = (sorted(side)[1] for side in zip(*rates, strict=True))
    return {"staged_bytes_per_second": ours, "pageable_bytes_per_second": theirs}


def consume(observation: torch.Tensor, device: torch.device) -> None:
    flat = observation.flatten(0, 1)
    flat @ flat[:255].T
    keep_busy(device)


def keep_busy(device: torch.device) -> None:
    """Start some kernels on the learner's stream."""
    if device.type == "cuda":
        square = torch.ones(2048, 2048, device=device)
        for _ in range(4):
            square = square @ square * 1e-4


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def need(holds: Any, problem: str) -> None:
    if not bool(holds):
        sys.exit(f"failed: {problem}")


if __name__ == "__main__":
    main()

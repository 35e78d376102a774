"""Measures the input pipeline: a learner's wait for a distant store, and the memory that reading uses.

Every figure is measured in its own process, and the contenders alternate. Writes a table to
`benchmarks/results/<date>-pipeline.md`, and the raw results next to it.

    python -m benchmarks.learner.pipeline                              # all, about ten minutes; needs 1 GB of disk
    python -m benchmarks.learner.pipeline --only wait --rounds 3
    python -m benchmarks.learner.pipeline --only memory --gigabytes 10
    python -m benchmarks.learner.pipeline --only staging               # on a machine with a GPU; see pipeline_gpu.py
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any, Self

from benchmarks.peers.measure import machine, print_result, process_pss_bytes
from benchmarks.support.programs import RESULTS, own_program, ratio, run
from benchmarks.support.tables import this_command, write_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.storage.refs import ShardRef
    from penstock.storage.stores.protocol import Store

LATENCY_SECONDS, BYTES_PER_SECOND = 0.05, 100e6
LEARN_SLACK = 1.1
"""Ratio of the learner's time per shard to the pipe's transfer time. Above 1, fetching can keep up."""
MIB = 1 << 20

Row = tuple[str, str, str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[*FIGURES], default=["wait", "memory"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shard-mib", type=float, nargs="+", default=[1.0, 4.0, 16.0], help="of `wait`")
    parser.add_argument("--wait-mib", type=float, default=1024.0, help="read for each figure of `wait`")
    parser.add_argument("--gigabytes", type=float, default=10.0, help="read for each figure of `memory`")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print_result(MEASURES[args.measure.split(":")[0]](*map(float, args.measure.split(":")[1:])))
        return
    rows: list[Row] = []
    raw: dict[str, Any] = {"machine": machine(["torch", "numpy", "pyarrow"])}
    for name in args.only:
        found, raw[name] = FIGURES[name](args)
        rows += found
        for row in found:
            print(" | ".join(row), flush=True)
    write(args, rows, raw)


def wait(args: argparse.Namespace) -> tuple[list[Row], Any]:
    rows, taken = [], {}
    for size in args.shard_mib:
        count = max(8, round(args.wait_mib / size))
        results = [
            (measure("wait", size, count, 1), measure("wait", size, min(count, 32), 0)) for _ in range(args.rounds)
        ]
        taken[size] = results
        ours, naive = zip(*results, strict=True)
        note = (
            f"{count} shards; {median(each['after_first_share'] for each in ours):.3f} after the first shard, queue "
            f"depth {median(each['queue_depth'] for each in ours):.1f}; without reading ahead "
            f"{median(each['wait_share'] for each in naive):.2f}"
        )
        title = f"learner's wait share, 50 ms and 100 MB/s in front of every read, shards of {size:g} MiB"
        rows.append((title, ratio3([each["wait_share"] for each in ours]), "< 0.05", note))
    return rows, taken


def memory(args: argparse.Namespace) -> tuple[list[Row], Any]:
    rows, taken = [], {}
    for far, title in ((0, "mapped files"), (1, "ranged reads of a remote store")):
        results = [measure("memory", args.gigabytes, far) for _ in range(max(1, args.rounds // 3))]
        taken[title] = results
        budget = results[0]["budget_bytes"]
        peak = [each["peak_bytes"] / budget for each in results]
        growth = [each["growth_bytes"] / MIB for each in results]
        note = (
            f"{results[0]['read_bytes'] / 1e9:.1f} GB, budget {budget // MIB} MiB, "
            f"{median(each['bytes_per_second'] for each in results) / 1e9:.2f} GB/s, "
            f"{results[0]['staging_allocations']} staging allocations"
        )
        rows.append((f"peak memory (PSS) over the budget, {title}", ratio(peak), "<= 1", note))
        rows.append((f"growth from second to last quarter, MiB, {title}", ratio(growth), "about 0", ""))
    return rows, taken


def staging(args: argparse.Namespace) -> tuple[list[Row], Any]:
    results = [run(own_program("learner.pipeline_gpu", "--json"), None) for _ in range(args.rounds)]
    shares = [each["staged_bytes_per_second"] / each["pageable_bytes_per_second"] for each in results]
    note = f"{median(each['staged_bytes_per_second'] for each in results) / 1e9:.1f} GB/s onto the device"
    return [("staged copies beside a busy learner / pageable copies", ratio(shares), ">= 1", note)], results


FIGURES: dict[str, Callable[[argparse.Namespace], tuple[list[Row], Any]]] = {
    "wait": wait,
    "memory": memory,
    "staging": staging,
}


def measure_wait(shard_mib: float, count: float, ahead: float) -> dict[str, Any]:
    """Measure the wait of a learner that sleeps instead of computing, so that it uses no core of the pipeline's."""
    from benchmarks.learner.pipeline_shards import DistantStore, make_shards  # noqa: PLC0415
    from penstock.storage.shards.codec import decode_shard  # noqa: PLC0415
    from penstock.storage.stores.open import open_store  # noqa: PLC0415
    from penstock.tasks.data.input.pipeline import ShardPipeline  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        inner = open_store(folder)
        distinct = make_shards(inner, 8, int(shard_mib * MIB))
        refs = [distinct[index % len(distinct)] for index in range(int(count))]
        store: Any = DistantStore(inner, LATENCY_SECONDS, BYTES_PER_SECOND)
        started = time.perf_counter()
        waited, first, depth = 0.0, 0.0, 0.0
        if ahead:
            with ShardPipeline(refs, store) as pipeline:
                for index, ref in enumerate(refs):
                    loaded = pipeline.take()
                    first = pipeline.wait_seconds if index == 0 else first
                    learn(ref)
                    loaded.release()
                waited, depth = pipeline.wait_seconds, pipeline.tally().queue_depth
        else:
            for ref in refs:
                began = time.perf_counter()
                decode_shard(store.view(ref.name), None, ref.name, ref.digest)
                waited += time.perf_counter() - began
                first = first or waited
                learn(ref)
        seconds = time.perf_counter() - started
    return {
        "wait_share": waited / seconds,
        "after_first_share": (waited - first) / (seconds - first),
        "queue_depth": depth,
        "seconds": seconds,
    }


def learn(ref: ShardRef) -> None:
    time.sleep(LEARN_SLACK * ref.nbytes / BYTES_PER_SECOND)


def measure_memory(gigabytes: float, far: float) -> dict[str, Any]:
    """Read without pause, touching every byte of every shard, and sample the process's PSS meanwhile."""
    from benchmarks.learner.pipeline_shards import DistantStore, make_shards  # noqa: PLC0415
    from penstock.storage.stores.open import open_store  # noqa: PLC0415
    from penstock.tasks.data.input.pipeline import BUDGET_BYTES, ShardPipeline  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        inner = open_store(folder)
        distinct = make_shards(inner, 24, 24 * MIB)
        count = max(8, round(gigabytes * 1e9 / distinct[0].nbytes))
        refs = (distinct[index % len(distinct)] for index in range(count))
        store: Store | Any = DistantStore(inner) if far else inner
        # Libraries load modules at their first use; that is not the pipeline's memory.
        with ShardPipeline(distinct[:1], store) as warming:
            warming.take().trajectory.columns["observation"].sum()
        del warming
        with Samples() as samples:
            baseline = samples.take()
            started = time.perf_counter()
            with ShardPipeline(refs, store) as pipeline:
                for _ in range(count):
                    loaded = pipeline.take()
                    loaded.trajectory.columns["observation"].sum()
                    loaded.release()
                tally = pipeline.tally()
            seconds = time.perf_counter() - started
    taken = [sample - baseline for sample in samples.taken[1:]]
    quarter = max(1, len(taken) // 4)
    return {
        "budget_bytes": BUDGET_BYTES,
        "peak_bytes": max(taken),
        "growth_bytes": mean(taken[-quarter:]) - mean(taken[quarter : 2 * quarter] or taken),
        "baseline_bytes": baseline,
        "read_bytes": tally.read_bytes,
        "bytes_per_second": tally.read_bytes / seconds,
        "charged_peak_bytes": tally.peak_bytes,
        "staging_bytes": tally.staging_bytes,
        "staging_allocations": tally.staging_allocations,
        "samples": len(taken),
    }


MEASURES: dict[str, Callable[..., dict[str, Any]]] = {"wait": measure_wait, "memory": measure_memory}


class Samples:
    """Samples the PSS of this process every 50 ms."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="pss", daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def take(self) -> int:
        """Take one sample now and start the periodic ones."""
        self.taken.append(self._now())
        self._thread.start()
        return self.taken[0]

    def _now(self) -> int:
        return process_pss_bytes(int(Path("/proc/self").readlink().name))

    def _watch(self) -> None:
        while not self._stop.wait(0.05):
            self.taken.append(self._now())


def measure(name: str, *arguments: float) -> dict[str, Any]:
    what = ":".join([name, *map(str, arguments)])
    return run(own_program("learner.pipeline", "--measure", what), None)


def ratio3(values: list[float]) -> str:
    spread = f" ({min(values):.3f} to {max(values):.3f})" if len(values) > 1 else ""
    return f"{median(values):.3f}{spread}"


def write(args: argparse.Namespace, rows: list[Row], raw: dict[str, Any]) -> None:
    command = this_command()
    write_table(args.results, "pipeline", command, rows, raw)


if __name__ == "__main__":
    main()

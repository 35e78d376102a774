"""Measures many readers of one snapshot, and many writers of shards, at an origin with 20 ms per request and 1 GB/s.

Readers and writers are threads of a few processes that represent a node. All start at once and use Penstock's own store
and cache. The origin (`origin.py`) is a separate process; its bandwidth is shared. Latency is measured per caller, from
the call to the bytes. Without the cache, each reader reads from the store. The output has the ideal mean latency of the
origin's queue next to the measured one. If the machine can't move 1 GB/s, the measured latency is larger, and the ratio
to the ideal queue is the conservative one. Writers share one buffer, and no caller holds more than one body at a time.

    python -m benchmarks.storage.fanout                                          # about 5 minutes
    python -m benchmarks.storage.fanout --object-bytes 1000000 --callers 64 --rounds 1        # a smoke run
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import threading
import time
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any, Self

from benchmarks.peers.measure import PeakPss, machine
from benchmarks.support.origin import Origin
from benchmarks.support.programs import RESULTS
from benchmarks.support.tables import this_command, write_table
from penstock.storage.cache.node_cache import CacheTally, NodeCache
from penstock.storage.digest import digest
from penstock.storage.refs import Ref
from penstock.storage.stores.open import open_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from penstock.storage.stores.protocol import Store

REQUEST_SECONDS = 0.02
BYTES_PER_SECOND = 1e9
FEW_READERS = (1, 8, 64)
FEW_WRITERS = 16

Row = tuple[str, str, str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--object-bytes", type=int, default=16 << 20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--callers", type=int, default=512, help="the most readers, and writers, at once")
    parser.add_argument("--client", choices=["s3", "s3+obstore"], default="s3")
    parser.add_argument("--only", nargs="+", choices=["read", "write"], default=["read", "write"])
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    content = os.urandom(args.object_bytes)
    rows: list[Row] = []
    raw: dict[str, Any] = {"machine": machine(["penstock-rl", "s3fs"])}
    with Origin(content, REQUEST_SECONDS, BYTES_PER_SECOND) as origin, tempfile.TemporaryDirectory() as folder:
        os.environ.update(origin.environment)
        with Node(args.processes, f"{args.client}://bucket/runs", folder, args.object_bytes) as node, PeakPss() as peak:
            node.work("warm", args.processes, Ref("warm", "", 0))
            if "read" in args.only:
                rows += read(node, origin, content, args, raw)
                rows += steps(open_store(f"{args.client}://bucket/runs"), content, args.rounds, raw)
            if "write" in args.only:
                rows += write(node, origin, args, raw)
    raw["peak_pss_bytes"] = peak.peak_bytes
    rows.append(("memory of all processes at its peak (PSS), GB", f"{peak.peak_bytes / 1e9:.2f}", "", ""))
    report(args, rows, raw)


def read(node: Node, origin: Origin, content: bytes, args: argparse.Namespace, raw: dict[str, Any]) -> list[Row]:
    """Measure reads. Each measurement uses new versions that the cache does not have."""
    rows: list[Row] = []
    found: dict[str, Any] = {"origin_reads": {}, "without": [], "with": []}
    wanted, many, rounds = digest(content), args.callers, args.rounds
    for readers in sorted({*(each for each in FEW_READERS if each < many), many}):
        counts = []
        for round_ in range(rounds):
            node.forget()
            ref = Ref(f"snapshots/{readers}-{round_}", wanted, len(content))
            origin.requests()
            latencies = node.work("cached", readers, ref)
            counts.append(sum(origin.requests().values()))
            if readers == many:
                found["with"].append(mean(latencies))
        found["origin_reads"][readers] = counts
        measured = str(counts[0]) if len(set(counts)) == 1 else f"{min(counts)} to {max(counts)}"
        rows.append((f"origin reads of a version, {readers} readers on a node", measured, "1", ""))
    for round_ in range(rounds):
        latencies = node.work("plain", many, Ref(f"snapshots/plain-{round_}", wanted, len(content)))
        found["without"].append(mean(latencies))
    ideal = ideal_seconds(many, len(content))
    with_cache = found["with"]
    note = f"{median(found['without']):.2f} and {median(with_cache):.3f} s; the origin's ideal queue: {ideal:.2f} s"
    shares = [plain / cached for plain, cached in zip(found["without"], with_cache, strict=True)]
    rows.append((f"mean read latency, {many} readers, without cache / with", spread(shares), ">= 10", note))
    shares = [ideal / cached for cached in with_cache]
    rows.append(("the same, the ideal queue's latency / with cache", spread(shares), ">= 10", ""))
    raw["read"] = {**found, "ideal_seconds": ideal}
    return rows


def steps(store: Store, content: bytes, rounds: int, raw: dict[str, Any]) -> list[Row]:
    """Measure what a reader alone does, step by step: the least that many readers can wait for."""
    found: dict[str, list[float]] = {}

    def timed(step: str, call: Callable[[], object]) -> None:
        started = time.perf_counter()
        call()
        found.setdefault(step, []).append(time.perf_counter() - started)

    with tempfile.TemporaryDirectory() as folder:
        ref = Ref("snapshots/alone", digest(content), len(content))
        file = Path(folder) / ref.digest
        store.view(ref.name)  # opens the connection
        for _ in range(rounds):
            cache = NodeCache(folder)
            timed("all of it", lambda: cache.get_buffer(store, ref))  # noqa: B023  (called here)
            timed("a further read in this process", lambda: cache.get_buffer(store, ref))  # noqa: B023
            timed("the first read in another process", lambda: NodeCache(folder).get_buffer(store, ref))
            file.unlink()
            timed("the download", lambda: store.view(ref.name))
            timed("its digest", lambda: digest(content))
            timed("a file with the same bytes", lambda: file.write_bytes(content))
            file.unlink()
    raw["alone_seconds"] = found
    return [
        (f"a reader alone: {step}, ms", spread([1e3 * each for each in took]), "", "") for step, took in found.items()
    ]


def write(node: Node, origin: Origin, args: argparse.Namespace, raw: dict[str, Any]) -> list[Row]:
    """Measure writes; the two numbers of writers alternate."""
    few, many, nbytes, rounds = FEW_WRITERS, args.callers, args.object_bytes, args.rounds
    both = (few, many)
    found: dict[int, list[float]] = {writers: [] for writers in both}
    origin.requests()
    for round_ in range(rounds):
        for writers in both:
            ref = Ref(f"shards/{round_}", "", nbytes)
            found[writers].append(mean(node.work("write", writers, ref)))
    requests = sum(origin.requests().values())
    over = {writers: [each / ideal_seconds(writers, nbytes) for each in found[writers]] for writers in both}
    shares = [most / least for most, least in zip(over[many], over[few], strict=True)]
    note = "; ".join(
        f"{writers}: {median(found[writers]):.3f} s, ideal {ideal_seconds(writers, nbytes):.3f} s" for writers in both
    )
    raw["write"] = {"seconds": found, "over_ideal": over, "requests": requests}
    expected = rounds * sum(both)
    return [
        (f"mean write latency over the ideal queue's, {many} writers / {few}", spread(shares), "< 1.5", note),
        ("requests for each write", f"{requests / expected:.3f}", "1", ""),
    ]


def ideal_seconds(clients: int, nbytes: int) -> float:
    """Return the mean latency of that many bodies, requested at once and sent one after the other."""
    return REQUEST_SECONDS + (clients + 1) / 2 * nbytes / BYTES_PER_SECOND


class Node:
    """Processes with threads that all do the same work at once."""

    def __init__(self, processes: int, url: str, folder: str, nbytes: int) -> None:
        self._settings = (url, folder, nbytes)
        self._count = processes
        self._folder = Path(folder)

    def __enter__(self) -> Self:
        spawn = multiprocessing.get_context("spawn")
        self._members: list[tuple[Any, Connection]] = []
        for _ in range(self._count):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=_member, args=(theirs, *self._settings), daemon=True)
            process.start()
            self._members.append((process, ours))
        return self

    def __exit__(self, *_: object) -> None:
        for process, channel in self._members:
            channel.send(None)
            process.join()

    def work(self, what: str, callers: int, ref: Ref) -> list[float]:
        """Return the latencies of all callers. They are spread over the processes and start together."""
        busy = self._members[: min(callers, self._count)]
        for index, (_, channel) in enumerate(busy):
            threads = callers // len(busy) + (index < callers % len(busy))
            channel.send((what, threads, ref))
        for _, channel in busy:
            assert channel.recv() == "ready"
        for _, channel in busy:
            channel.send("go")
        latencies: list[float] = []
        for _, channel in busy:
            found, errors = channel.recv()
            if errors:
                raise RuntimeError(errors[0])
            latencies += found
        return latencies

    def forget(self) -> None:
        """Empty the cache; all versions have the same content, and so the same file."""
        for file in self._folder.iterdir():
            if file.is_file():
                file.unlink()


def _member(channel: Connection, url: str, folder: str, nbytes: int) -> None:
    store, cache = open_store(url), NodeCache(folder)
    body = bytes(nbytes)
    while (order := channel.recv()) is not None:
        what, threads, ref = order
        latencies: list[float] = []
        errors: list[str] = []
        gate = threading.Event()

        def call(index: int, what: str = what, ref: Ref = ref, gate: threading.Event = gate) -> None:
            gate.wait()
            started = time.perf_counter()
            try:
                if what == "cached":
                    got = cache.get_buffer(store, ref, CacheTally()).nbytes
                elif what == "write":
                    store.write(f"{ref.name}/{os.getpid()}-{index}", [body])
                    got = ref.nbytes
                elif what == "plain":
                    got = store.view(ref.name).nbytes
                else:
                    got = ref.nbytes if store.exists(ref.name) else -1
                if got != ref.nbytes:
                    errors.append(f"{what} of '{ref.name}' gave {got} bytes")  # noqa: B023  (joined below)
            except Exception as error:  # noqa: BLE001  (reported to the parent process)
                errors.append(repr(error))  # noqa: B023
            latencies.append(time.perf_counter() - started)  # noqa: B023

        callers = [threading.Thread(target=call, args=(index,)) for index in range(threads)]
        for caller in callers:
            caller.start()
        channel.send("ready")
        channel.recv()
        gate.set()
        for caller in callers:
            caller.join()
        channel.send((latencies, errors))


def spread(values: list[float]) -> str:
    """Return the median, and the range if there are several values."""
    around = f" ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else ""
    return f"{median(values):.2f}{around}"


def report(args: argparse.Namespace, rows: list[Row], raw: dict[str, Any]) -> None:
    command = this_command()
    print(write_table(args.results, "fanout", command, rows, raw))


if __name__ == "__main__":
    main()

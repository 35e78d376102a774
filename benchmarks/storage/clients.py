"""Compares S3 clients on the same work and server, in one run: s3fs and obstore behind Penstock's protocol.

Every client does every work once per round, in an order that changes from round to round. A ratio is the median over
rounds of s3fs' time divided by the client's time in the same round; more than 1 is faster than s3fs. By default the
server runs on loopback and keeps objects in memory. `--endpoint` names another server; it needs the usual credentials.

    python -m benchmarks.storage.clients                     # 7 rounds, about two minutes
    python -m benchmarks.storage.clients --rounds 2 --scale 0.25
    python -m benchmarks.storage.clients --endpoint http://127.0.0.1:18080 --bucket test
"""

from __future__ import annotations

import argparse
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.support.object_server import ObjectServer
from benchmarks.support.programs import RESULTS
from benchmarks.support.tables import this_command, write_table
from penstock.storage.stores.open import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.storage.stores.protocol import Store

CLIENTS = {"s3fs": "s3", "obstore": "s3+obstore"}
SHARD_BYTES = 16 << 20
PIECE_BYTES = 64 << 10
PARALLEL = 4


class Work(NamedTuple):
    """One kind of work of a client; `prepare` is not measured."""

    prepare: Callable[[Store, int], Any]
    do: Callable[[Store, int], Any]
    count: int
    nbytes: int


class Taken(NamedTuple):
    """The time of one workload with one client."""

    seconds: float
    cpu_seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of objects")
    parser.add_argument("--endpoint", help="another S3 server")
    parser.add_argument("--bucket", default="clients")
    parser.add_argument("--clients", nargs="+", choices=list(CLIENTS), default=list(CLIENTS), help="s3fs first")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.endpoint:
        os.environ["AWS_ENDPOINT_URL"] = args.endpoint
        raw = measure(args)
    else:
        with ObjectServer() as server:
            os.environ.update(server.environment)
            raw = measure(args)
    write(args, raw)


def measure(args: argparse.Namespace) -> dict[str, list[dict[str, Taken]]]:
    stores = {name: open_store(f"{CLIENTS[name]}://{args.bucket}/{name}") for name in args.clients}
    taken: dict[str, list[dict[str, Taken]]] = {work: [] for work in WORKS}
    shuffle = random.Random(0)
    for round_ in range(args.rounds + 1):
        for name, work in WORKS.items():
            count = max(PARALLEL, round(work.count * args.scale))
            found = {}
            for client in shuffle.sample(args.clients, len(args.clients)):
                found[client] = time_of(stores[client], work, count)
            if round_:  # the first one opens connections
                taken[name].append(found)
    return taken


def time_of(store: Store, work: Work, count: int) -> Taken:
    work.prepare(store, count)
    seconds, cpu_seconds = time.perf_counter(), time.process_time()
    work.do(store, count)
    took = Taken(time.perf_counter() - seconds, time.process_time() - cpu_seconds)
    names = store.list()
    if len(names) > 0:
        store.delete(names)
    return took


def nothing(store: Store, count: int) -> None:
    del store, count


def shards(store: Store, count: int) -> None:
    for index in range(count):
        store.write(f"shards/{index:04d}", [CONTENT])


def pieces(store: Store, count: int) -> None:
    in_parallel(lambda index: store.write(f"pieces/{index:05d}", [CONTENT[:PIECE_BYTES]]), range(count))


def small(store: Store, count: int) -> None:
    in_parallel(lambda index: store.write(f"commits/{index:08d}.json", [b"{}"]), range(count))


def one_shard(store: Store, count: int) -> None:
    del count
    store.write("shards/one", [CONTENT])


def in_parallel(call: Callable[[int], Any], indices: Iterable[int]) -> None:
    with ThreadPoolExecutor(PARALLEL) as threads:
        for _ in threads.map(call, indices):
            pass


def put_in_parallel(store: Store, count: int) -> None:
    in_parallel(lambda index: store.write(f"shards/{index:04d}", [CONTENT]), range(count))


def get(store: Store, count: int) -> None:
    for index in range(count):
        assert len(store.view(f"shards/{index:04d}")) == SHARD_BYTES


def get_in_parallel(store: Store, count: int) -> None:
    in_parallel(lambda index: store.view(f"shards/{index:04d}"), range(count))


def get_pieces(store: Store, count: int) -> None:
    for index in range(count):
        assert len(store.view(f"pieces/{index:05d}")) == PIECE_BYTES


def get_pieces_in_parallel(store: Store, count: int) -> None:
    in_parallel(lambda index: store.view(f"pieces/{index:05d}"), range(count))


def get_ranges(store: Store, count: int) -> None:
    for index in range(count):
        start = index * PIECE_BYTES % (SHARD_BYTES - PIECE_BYTES)
        assert len(store.read_range("shards/one", start, start + PIECE_BYTES)) == PIECE_BYTES


def get_ranges_in_parallel(store: Store, count: int) -> None:
    def read(index: int) -> None:
        start = index * PIECE_BYTES % (SHARD_BYTES - PIECE_BYTES)
        store.read_range("shards/one", start, start + PIECE_BYTES)

    in_parallel(read, range(count))


def list_names(store: Store, count: int) -> None:
    for _ in range(5):
        assert len(store.list("commits/")) == count


def create(store: Store, count: int) -> None:
    for index in range(count):
        store.create(f"commits/{index:08d}.json", b"{}" * 500)


def look(store: Store, count: int) -> None:
    for index in range(count):
        assert store.exists(f"commits/{index:08d}.json")


CONTENT = random.Random(1).randbytes(SHARD_BYTES)
WORKS = {
    "put 16 MiB": Work(nothing, shards, 12, SHARD_BYTES),
    f"put 16 MiB, {PARALLEL} at once": Work(nothing, put_in_parallel, 12, SHARD_BYTES),
    "get 16 MiB": Work(shards, get, 12, SHARD_BYTES),
    f"get 16 MiB, {PARALLEL} at once": Work(shards, get_in_parallel, 12, SHARD_BYTES),
    "get 64 KiB": Work(pieces, get_pieces, 200, PIECE_BYTES),
    f"get 64 KiB, {PARALLEL} at once": Work(pieces, get_pieces_in_parallel, 400, PIECE_BYTES),
    "range of 64 KiB": Work(one_shard, get_ranges, 200, PIECE_BYTES),
    f"range of 64 KiB, {PARALLEL} at once": Work(one_shard, get_ranges_in_parallel, 400, PIECE_BYTES),
    "list 2,000 names, 5 times": Work(small, list_names, 2_000, 0),
    "conditional create of 1 KB": Work(nothing, create, 200, 1_000),
    "look for an object": Work(small, look, 200, 0),
}


def write(args: argparse.Namespace, raw: dict[str, list[dict[str, Taken]]]) -> None:
    command = this_command()
    others = [name for name in args.clients if name != "s3fs"]
    head = ["work", *(f"{name} / s3fs" for name in others), *(f"{name}: wall, CPU" for name in args.clients)]
    table = []
    for name, rounds in raw.items():
        ratios = [ratio([each["s3fs"].seconds / each[other].seconds for each in rounds]) for other in others]
        times = [
            f"{median(each[client].seconds for each in rounds) * 1e3:,.0f} ms, "
            f"{median(each[client].cpu_seconds for each in rounds) * 1e3:,.0f} ms"
            for client in args.clients
        ]
        table.append([name, *ratios, *times])
    made_with = ", ".join(f"{package} {version(package)}" for package in ("s3fs", "obstore"))
    where = args.endpoint or "a server in memory on loopback (object_server.py)"
    note = (
        f"Times of one round's work, medians over {args.rounds} rounds; {made_with};\n{os.cpu_count()} cores; {where}."
    )
    print(write_table(args.results, "clients", command, table, raw, head=head, notes=[note]))


def ratio(values: list[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()

"""Measures the cost of flushing an open stage's files to the disk in the background, which Penstock does not do.

After a power cut, files of the stage that was not committed yet may be empty, and their rounds are made again. Flushing
each file behind its write, in a thread of its process, would save some of them. Runs with and without it train in turn;
a module that Python loads at the start of each of their processes adds the thread.

    python -m benchmarks.storage.syncing --pairs 5
    python -m benchmarks.storage.syncing --pairs 5 --folder /data       # on another disk
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.peers.measure import machine
from benchmarks.storage.versions import SETTINGS
from benchmarks.storage.versions import measure as train
from benchmarks.support.programs import RESULTS
from benchmarks.support.tables import this_command, write_table

FLUSHING = """
import os, queue, threading

if os.environ.get("PENSTOCK_FLUSHING"):
    from penstock.storage.stores.local import LocalStore

    write, files, lock = LocalStore.write, queue.Queue(), threading.Lock()
    flushers = {}

    def flush():
        while True:
            try:
                descriptor = os.open(files.get(), os.O_RDONLY)
            except FileNotFoundError:
                continue
            os.fdatasync(descriptor)
            os.close(descriptor)

    def flushed(store, name, parts, *, durable=False):
        write(store, name, parts, durable=durable)
        if not durable and name.startswith(("shards/", "states/", "snapshots/")):
            with lock:
                if os.getpid() not in flushers:
                    flushers[os.getpid()] = threading.Thread(target=flush, daemon=True)
                    flushers[os.getpid()].start()
            files.put(store.path(name))

    LocalStore.write = flushed
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--folder", help="on the disk to measure; default: the temporary folder")
    parser.add_argument("--environments", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    command, table, raw = Path(sys.executable).with_name("penstock"), [], {"machine": machine(("penstock-rl", "torch"))}
    with tempfile.TemporaryDirectory(prefix="penstock-syncing-", dir=args.folder) as folder:
        (Path(folder) / "sitecustomize.py").write_text(FLUSHING)
        os.environ["PYTHONPATH"] = folder
        train(command, "this", "CartPole-v1", folder, Path(folder))
        for environment in args.environments:
            rates: dict[str, list[float]] = {"": [], "1": []}
            for pair in range(args.pairs):
                for flushing in ("", "1") if pair % 2 else ("1", ""):
                    os.environ["PENSTOCK_FLUSHING"] = flushing
                    row = train(command, "this", environment, folder, Path(folder))
                    rates[flushing].append(row["steps_per_second"])
            raw[environment] = {"flushed": rates["1"], "not flushed": rates[""]}
            ratios = [with_ / without for with_, without in zip(rates["1"], rates[""], strict=True)]
            spread = f"{median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
            medians = f"{median(rates['1']):,.0f} / {median(rates['']):,.0f}"
            table.append((f"{environment}: env steps/s, flushed behind / not", spread, medians))
            print(*table[-1], sep=" | ", flush=True)
    head = ("figure", "median ratio (range)", "medians")
    write_table(args.results, "syncing", this_command(), table, raw, head=head)


if __name__ == "__main__":
    main()

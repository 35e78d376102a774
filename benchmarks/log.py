"""A very long run: what it costs to go on from its end, and to plan a replay of it.

The log is generated in bulk, but it is a real one: canonical commits, each chained to the one before by its digest, and
the roll-ups that training would have written. Shards, states and snapshots are named and not there. What is measured is
what `penstock resume` does until the first stage could be submitted: settings checked, store probed, lease taken,
newest commit found, its checkpoint loaded. Requests are counted as an object store would bill them: a listing is one
for each 1,000 names.

    python benchmarks/log.py                                    # 100,000 commits, 1,000,000 shards, a local folder
    python benchmarks/log.py --commits 2000 --store s3://bucket/runs     # with AWS_ENDPOINT_URL and credentials set
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import tasks.start
import tasks.training
from storage.commit_form import encode_commit
from storage.commits import LATEST, CommitLog, commit_name
from storage.digest import canonical_json, digest
from storage.lease import acquire
from storage.refs import shard_name
from storage.rollups import Span, concat_tables, encode_rollup, shard_table, spans_ending
from storage.run import RunFolder
from storage.store import open_store
from tasks.attempts import current_attempt
from tasks.config import TrainConfig
from tasks.start import check_start
from tasks.stored import stored_shards, stored_states
from tasks.training import describe_run

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
from measure import machine
from tables import write_table

if TYPE_CHECKING:
    import pyarrow as pa

    from storage.store import Store

HERE = Path(__file__).resolve().parent
INTERVAL = 100
LISTED_AT_ONCE = 1000
REACH = {"resume": 40, "plan": 1100}


class CountingStore:
    """A store, and all that are opened below it: how many requests an object store would have seen, and the bytes."""

    def __init__(self, inner: Store, counts: dict[str, int] | None = None) -> None:
        self._inner = inner
        self.counts = counts if counts is not None else {"requests": 0, "read_bytes": 0}

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._inner, name)
        if name in {"url", "path", "sync"}:
            return function

        def counted(*arguments: Any, **options: Any) -> Any:
            self.counts["requests"] += 1  # also where it is refused
            result = function(*arguments, **options)
            self.counts["requests"] += (len(result) - 1) // LISTED_AT_ONCE if name == "list" and result else 0
            self.counts["read_bytes"] += memoryview(result).nbytes if name in {"read", "view", "read_range"} else 0
            return result

        return counted

    def at(self, prefix: str) -> CountingStore:
        """The same counts below a folder."""
        return CountingStore(self._inner.at(prefix), self.counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=100_000)
    parser.add_argument("--shards-per-commit", type=int, default=10)
    parser.add_argument("--store", help="Where the run is generated; default: a temporary folder, removed afterwards.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-log-") as folder:
        store = args.store or folder
        config = TrainConfig(name="long", store=store)
        started = time.perf_counter()
        generate(config, args.commits, args.shards_per_commit)
        generate_seconds = time.perf_counter() - started
        print(f"generated {args.commits:,} commits in {generate_seconds:.0f} s in {store}", flush=True)
        rows = measure(config, args.commits, args.rounds)
    for row in rows:
        print(" | ".join(map(str, row.values())), flush=True)
    write(args, rows, {"generate_seconds": generate_seconds})


def generate(config: TrainConfig, commits: int, shards_per_commit: int) -> None:
    """The run's folder as training would have left it, but for the objects that commits name."""
    run = RunFolder(open_store(config.store), str(config.name))
    run.create(describe_run(config))
    checkpoint = b"no checkpoint that anything loads"
    parents, parent, tables = [], run.genesis(), []
    narrow: list[pa.Table] = []
    for stage in range(commits):
        commit = make_commit(stage, parent, shards_per_commit, checkpoint)
        data = encode_commit(commit)
        run.store.write(commit_name(stage), [data])
        parents.append(parent)
        parent = digest(data)
        tables.append(shard_table(stage, commit["shards"]))
        for span in spans_ending(stage, INTERVAL):
            if span.last - span.first < INTERVAL:
                narrow.append(concat_tables(tables))
                table, tables = narrow[-1], []
            else:
                table, narrow = concat_tables(narrow), []
            write_rollup(run, table, span, parents[span.first], parent)
    run.store.write(commit["checkpoint"]["name"], [checkpoint])
    run.store.write(LATEST, [canonical_json({"stage": commits - 1}) + b"\n"])


def write_rollup(run: RunFolder, table: pa.Table, span: Span, parent: str, commit: str) -> None:
    run.store.write(span.name, [encode_rollup(table, span, parent, commit)])


def make_commit(stage: int, parent: str, shards: int, checkpoint: bytes) -> dict[str, Any]:
    def ref(name: str, content: str, **numbers: int) -> dict[str, Any]:
        return {"name": name, "digest": content, "nbytes": 1 << 20, **numbers}

    contents = [digest(f"{stage}/{index}".encode()) for index in range(shards)]
    named = [ref(shard_name(stage, 0, stage, i, c), c, round=stage, tile=i, rows=4096) for i, c in enumerate(contents)]
    content = digest(checkpoint)
    snapshot, state = digest(f"snapshot {stage}".encode()), digest(f"state {stage}".encode())
    return {
        "format": "penstock-commit/1",
        "stage": stage,
        "parent": parent,
        "rounds": [stage, stage],
        "version": stage + 1,
        "env_steps": 4096 * shards * (stage + 1),
        "episodes": 10 * (stage + 1),
        "shards": named,
        "states": [ref(f"states/{stage:08d}/{stage:08d}-0000-{state}.safetensors", state, round=stage, tile=0)],
        "snapshots": [ref(f"snapshots/{stage + 1:08d}-{snapshot}.safetensors", snapshot, version=stage + 1)],
        "checkpoint": ref(f"checkpoints/{stage:08d}-{content}.safetensors", content),
        "metrics": {"episode_return": 20.0 + stage / 1000},
        "evaluation": None,
        "finished": None,
    }


def measure(config: TrainConfig, commits: int, rounds: int) -> list[dict[str, Any]]:
    run = RunFolder(open_store(config.store), str(config.name))
    rows = []
    hints = {"right": commits - 1, "stale by 7": commits - 8, "stale by half": commits // 2, "lost": None}
    for hint, stage in hints.items():
        if stage is None:
            run.store.delete([LATEST])
        else:
            run.store.write(LATEST, [canonical_json({"stage": max(0, stage)}) + b"\n"])
        rows.append(row(f"resume, latest.json {hint}", [resume(config, commits) for _ in range(rounds)], "resume"))
    plan(config)
    rows.append(row("plan a replay of all shards", [plan(config) for _ in range(rounds)], "plan"))
    return rows


def row(name: str, taken: list[tuple[float, CountingStore]], kind: str) -> dict[str, Any]:
    seconds = median(each[0] for each in taken)
    requests = max(each[1].counts["requests"] for each in taken)
    reached = requests <= REACH[kind] and (kind != "resume" or seconds < 1.0)
    return {
        "what": name,
        "requests": requests,
        "seconds": round(seconds, 3),
        "read MB": round(taken[0][1].counts["read_bytes"] / 1e6, 2),
        "reach": f"<= {REACH[kind]} requests{', < 1 s' if kind == 'resume' else ''}{'' if reached else '; missed'}",
    }


def resume(config: TrainConfig, commits: int) -> tuple[float, CountingStore]:
    """What `tasks.training.driving` and the first stage's members do before there is work."""
    root = CountingStore(open_store(config.store))
    started = time.perf_counter()
    with opened_as(root):
        committed = check_start(config, "resume")
        run, _ = tasks.training._open_run(root, config)  # noqa: SLF001  (what driving does, but for the cluster)
        with acquire(run.store, "benchmark", config.cluster.lease_seconds):
            newest = run.log.newest(committed)
            assert newest is not None
            assert newest["stage"] == commits - 1
            run.genesis()
            attempt = current_attempt(run, commits)
            stored_shards(run.store, commits, attempt)
            stored_states(run.store, commits, attempt)
            run.store.read(newest["checkpoint"]["name"])
            seconds = time.perf_counter() - started
    return seconds, root


def plan(config: TrainConfig) -> tuple[float, CountingStore]:
    root = CountingStore(open_store(config.store))
    started = time.perf_counter()
    log = CommitLog(root.at(str(config.name)))  # type: ignore[arg-type]
    table = log.shard_table()
    seconds = time.perf_counter() - started
    assert table.num_rows
    return seconds, root


class opened_as:  # noqa: N801  (reads as a statement)
    """Within it, whoever opens a store by its url gets this one."""

    def __init__(self, root: CountingStore) -> None:
        self._root: Any = root

    def __enter__(self) -> None:
        self._before = tasks.start.open_store
        tasks.start.open_store = lambda _: self._root

    def __exit__(self, *_: object) -> None:
        tasks.start.open_store = self._before


def write(args: argparse.Namespace, rows: list[dict[str, Any]], raw: dict[str, Any]) -> None:
    about = machine(["penstock", "pyarrow"])
    command = f"python benchmarks/log.py --commits {args.commits} --rounds {args.rounds}"
    notes = [
        f"{args.commits:,} commits and {args.commits * args.shards_per_commit:,} shards; most requests, median seconds",
        f"Machine: {json.dumps(about)}",
    ]
    name = "log-s3" if args.store and "://" in args.store else "log"
    table = [[str(value) for value in each.values()] for each in rows]
    write_table(
        args.results, name, command, table, {"rows": rows, **raw, "machine": about}, head=list(rows[0]), notes=notes
    )


if __name__ == "__main__":
    main()

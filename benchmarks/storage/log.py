"""Measures the cost of resuming a very long run, of planning a replay of it, and of the commands that look at it.

The commit log is generated in bulk, but it is valid: canonical commits, each with its predecessor's digest, and the
roll-ups that training would have written. The commits name shards, states and snapshots that do not exist. The
measurement covers `penstock resume` until it could submit the first stage: it checks the settings, probes the store,
acquires the lease, finds the newest commit and loads its checkpoint. Requests are counted as an object store bills
them: a listing is one request per 1,000 names.

The commands `runs`, `show`, `report` and `gc --dry-run` are timed as processes, Python's start included.

    python -m benchmarks.storage.log  # 100,000 commits, 1,000,000 shards, a local folder
    python -m benchmarks.storage.log --commits 2000 --store s3://bucket/runs  # AWS_ENDPOINT_URL and credentials set
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import penstock.tasks.driver.run
import penstock.tasks.setup.planning.resolve
from benchmarks.peers.measure import machine
from benchmarks.support.programs import RESULTS
from benchmarks.support.tables import write_table
from penstock.storage.digest import canonical_json, digest
from penstock.storage.refs import Ref, ShardRef, SnapshotRef, StateRef, checkpoint_name, shard_name, snapshot_name
from penstock.storage.runs.commit_schema import Commit, encode_commit
from penstock.storage.runs.commits import CommitLog, commit_name
from penstock.storage.runs.latest import LATEST
from penstock.storage.runs.lease import acquire
from penstock.storage.runs.rollups.content import concat_tables, encode_rollup, shard_table
from penstock.storage.runs.rollups.names import Span, spans_ending
from penstock.storage.runs.run import RunFolder
from penstock.storage.runs.timings import ActTimes, LearnTimes, StageTimings, encode_timings, timings_name
from penstock.storage.stores.open import open_store
from penstock.tasks.driver.attempts import current_attempt
from penstock.tasks.driver.run import describe_run
from penstock.tasks.runtime.stored_objects import stored_shards, stored_states
from penstock.tasks.setup.config.run import TrainConfig
from penstock.tasks.setup.planning.resolve import resolve

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.storage.stores.protocol import Store

INTERVAL = 100
LISTED_AT_ONCE = 1000
REACH = {"resume": 40, "plan": 1100}
COMMANDS = (
    (("runs",), 1.0),
    (("show", "long"), 1.0),
    (("gc", "long", "--dry-run"), 10.0),
    (("report", "long"), 10.0),
)
"""Commands, and the seconds that each may take with 100,000 commits."""


class CountingStore:
    """A store that counts the requests and bytes an object store would see, including stores opened below it."""

    def __init__(self, inner: Store, counts: dict[str, int] | None = None) -> None:
        self._inner = inner
        self.counts = counts if counts is not None else {"requests": 0, "read_bytes": 0}

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._inner, name)
        if name in {"url", "path", "sync"}:
            return function

        def counted(*arguments: Any, **options: Any) -> Any:
            self.counts["requests"] += 1  # refused requests count too
            result = function(*arguments, **options)
            self.counts["requests"] += (len(result) - 1) // LISTED_AT_ONCE if name == "list" and result else 0
            self.counts["read_bytes"] += memoryview(result).nbytes if name in {"read", "view", "read_range"} else 0
            return result

        return counted

    def at(self, prefix: str) -> CountingStore:
        """Return the store of a folder, with the same counts."""
        return CountingStore(self._inner.at(prefix), self.counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=100_000)
    parser.add_argument("--shards-per-commit", type=int, default=10)
    parser.add_argument("--store", help="Store of the generated run; default: a temporary folder, removed afterwards.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-log-") as folder:
        store = args.store or folder
        config = TrainConfig(name="long", store=store)
        started = time.perf_counter()
        generate(config, args.commits, args.shards_per_commit)
        generate_seconds = time.perf_counter() - started
        print(f"generated {args.commits:,} commits in {generate_seconds:.0f} s in {store}", flush=True)
        rows = measure(config, args.commits, args.rounds)
        rows += [time_command(config, words, limit, args.rounds) for words, limit in COMMANDS]
    for row in rows:
        print(" | ".join(map(str, row.values())), flush=True)
    write(args, rows, {"generate_seconds": generate_seconds})


def generate(config: TrainConfig, commits: int, shards_per_commit: int) -> None:
    """Write the run's folder as training would have left it, except the objects that commits name."""
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
        acted = ActTimes(member="act-0", env_steps=4096, act_seconds=0.8, wait_seconds=0.1)
        learned = LearnTimes(member="learn-0", env_steps=4096, learn_seconds=0.7, wait_seconds=0.2)
        times = {"started_at": 1.7e9 + stage, "stage_seconds": 1.0, "act": (acted,), "learn": (learned,)}
        timings = StageTimings(stage=stage, **times)
        run.store.write(timings_name(stage, 1), [encode_timings(timings)])
        tables.append(shard_table(stage, commit.shards))
        for span in spans_ending(stage, INTERVAL):
            if span.last - span.first < INTERVAL:
                narrow.append(concat_tables(tables))
                table, tables = narrow[-1], []
            else:
                table, narrow = concat_tables(narrow), []
            write_rollup(run, table, span, parents[span.first], parent)
    run.store.write(commit.checkpoint.name, [checkpoint])
    run.store.write(LATEST, [canonical_json({"stage": commits - 1}) + b"\n"])


def write_rollup(run: RunFolder, table: pa.Table, span: Span, parent: str, commit: str) -> None:
    run.store.write(span.name, [encode_rollup(table, span, parent, commit)])


def make_commit(stage: int, parent: str, shards: int, checkpoint: bytes) -> Commit:
    contents = [digest(f"{stage}/{index}".encode()) for index in range(shards)]
    content = digest(checkpoint)
    snapshot, state = digest(f"snapshot {stage}".encode()), digest(f"state {stage}".encode())
    return Commit(
        stage=stage,
        parent=parent,
        rounds=(stage, stage),
        version=stage + 1,
        env_steps=4096 * shards * (stage + 1),
        episodes=10 * (stage + 1),
        shards=tuple(
            ShardRef(shard_name(stage, 0, stage, i, one), one, 1 << 20, stage, i, 4096)
            for i, one in enumerate(contents)
        ),
        states=(StateRef(f"states/{stage:08d}/{stage:08d}-0000-{state}.safetensors", state, 1 << 20, stage, 0),),
        snapshots=(SnapshotRef(snapshot_name(stage + 1, snapshot), snapshot, 1 << 20, stage + 1),),
        checkpoint=Ref(checkpoint_name(stage, content), content, 1 << 20),
        metrics={"episode_return": 20.0 + stage / 1000},
        evaluation=None,
        finished=None,
    )


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


def time_command(config: TrainConfig, words: tuple[str, ...], limit_seconds: float, rounds: int) -> dict[str, Any]:
    """Time a command of a user, from its start to its end."""
    seconds = []
    with tempfile.TemporaryDirectory(prefix="penstock-log-report-") as folder:
        command = [str(Path(sys.executable).with_name("penstock")), *words, "--store", config.store]
        if words[0] == "report":
            command += ["--out", f"{folder}/report.html"]
        for _ in range(rounds):
            started = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True, cwd=folder)
            seconds.append(time.perf_counter() - started)
    taken = median(seconds)
    return {
        "what": f"penstock {' '.join(words)}",
        "requests": "",
        "seconds": round(taken, 3),
        "read MB": "",
        "reach": f"< {limit_seconds:g} s{'' if taken < limit_seconds else '; missed'}",
    }


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
    """Do what `penstock.tasks.driver.run.drive_run` and the first stage's members do before any work starts."""
    root = CountingStore(open_store(config.store))
    started = time.perf_counter()
    with opened_as(root):
        resolved = resolve(config, "resume")
        run = penstock.tasks.driver.run.open_run(resolved).run  # as drive_run does, without the cluster
        with acquire(run.store, "benchmark", config.cluster.lease_seconds):
            newest = run.log.newest(resolved.newest_stage)
            assert newest is not None
            assert newest.stage == commits - 1
            run.genesis()
            attempt = current_attempt(run, commits)
            stored_shards(run.store, commits, attempt)
            stored_states(run.store, commits, attempt)
            run.store.read(newest.checkpoint.name)
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
    """A context manager in which opening a store by its URL returns this one."""

    def __init__(self, root: CountingStore) -> None:
        self._root: Any = root

    def __enter__(self) -> None:
        self._before = penstock.tasks.setup.planning.resolve.open_store
        penstock.tasks.setup.planning.resolve.open_store = lambda _: self._root

    def __exit__(self, *_: object) -> None:
        penstock.tasks.setup.planning.resolve.open_store = self._before


def write(args: argparse.Namespace, rows: list[dict[str, Any]], raw: dict[str, Any]) -> None:
    about = machine(["penstock-rl", "pyarrow"])
    command = f"python -m benchmarks.storage.log --commits {args.commits} --rounds {args.rounds}"
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

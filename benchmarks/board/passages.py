"""Writes README's figures that other results than the board's hold: of returns, pools, stored rows, scale and placing.

Pools and stored rows are of the newest results that have their figures; placing and scale name theirs.
"""

from __future__ import annotations

import json
from collections import defaultdict
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from benchmarks.returns.page import column, losses, mean_of, stored_trials
from benchmarks.returns.rows import ROWS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TRAINED = ("ppo-halfcheetah", "ppo-hopper", "ppo-walker2d", "ppo-ant")
PLACED = "2026-11-26-placing"
"""The folder of the comparison of placers, which is continued, not made again."""
CALLED = {
    "envpool": "EnvPool",
    "envpool, bilinear resize": "EnvPool with its cheaper resize",
    "ocean": "PufferLib's Ocean",
    "bare": "a bare loop",
    "gymnasium": "Gymnasium",
    "ale": "ale-py",
    "emulator": "the bare emulator",
}


def short(rate: float) -> str:
    """Return a rate in thousands or millions, to two or three digits."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if rate >= size:
            return f"{rate / size:.0f} {unit}" if rate >= 10 * size else f"{rate / size:.1f} {unit}"
    return f"{rate:.0f}"


def returns_of(title: str) -> Callable[[Path], str]:
    """Return the passage of a contender's returns at the end, in the order of `TRAINED`, of the rows that it has."""

    def passage(results: Path) -> str:
        found = stored_trials(results / "returns")
        return "; ".join(
            f"{mean_of(column(found[name][title], ROWS[name].parts - 1)):,.0f}"
            for name in TRAINED
            if title in found[name]
        )

    return passage


def returns_lost(results: Path) -> str:
    """Return where Penstock's returns are below their peer's, at a fifth of the training and at its end."""
    found = stored_trials(results / "returns")
    lost = [
        f"{ROWS[name].environment}: {'; '.join(below)}"
        for name in TRAINED
        if (below := losses(ROWS[name], found[name]))
    ]
    return ". ".join(lost)


def pools(results: Path) -> dict[str, dict[str, Any]]:
    """Return the newest comparison of each task of `benchmarks.pool`, with its file."""
    found = {}
    for path in sorted(results.glob("*-pool.json")):
        for name, task in json.loads(path.read_text(encoding="utf-8")).items():
            if "reach" in task:
                found[name] = {**task, "path": path}
    return found


def pool_rates(results: Path) -> str:
    """Return the pool's env steps/s in the tasks of README's row."""
    found = pools(results)
    return "; ".join(short(_rate(found[name], "penstock")) for name in ("cartpole-1024", "halfcheetah-64"))


def pool_peers(results: Path) -> str:
    """Return the peers' env steps/s in these tasks, and how many times as fast the pool is as each."""
    found = pools(results)
    tasks = [
        ", ".join(
            f"{CALLED[name]} {short(_rate(found[task], name))} ({_ratio(found[task], name):.3g} times)"
            for name in found[task]["reach"]
        )
        for task in ("cartpole-1024", "halfcheetah-64")
    ]
    return "; ".join(tasks)


def pool_lost(results: Path) -> str:
    """Return every peer that is faster, and every goal that is missed."""
    slower, missed = [], []
    for task in pools(results).values():
        for name, reach in task["reach"].items():
            ratio = _ratio(task, name)
            called = f"{task['id']} ({task['num_envs']} environments), {ratio:.2f} times {CALLED.get(name, name)}"
            if ratio < 1.0:
                slower.append(called)
            elif reach is not None and ratio < reach:
                missed.append(f"{called} (goal {reach:g})")
    parts = [f"Slower: {'; '.join(slower)}"] if slower else []
    return ". ".join([*parts, *([f"Goals missed: {'; '.join(missed)}"] if missed else [])])


def pool_table(results: Path) -> str:
    """Return a table of the tasks that EnvPool has too, in lines of their own."""
    rows = [
        f"| {task['id']}, {task['num_envs']:,} | {short(_rate(task, 'penstock'))} | {short(_rate(task, 'envpool'))} | "
        f"{_ratio(task, 'envpool'):.3g} |"
        for task in pools(results).values()
        if "envpool" in task["reach"]
    ]
    head = ["| environments | Penstock, env steps/s | EnvPool | Penstock / EnvPool |", "|---|---|---|---|"]
    return "\n".join(["", "", *head, *rows, "", ""])


def pool_sources(results: Path) -> str:
    """Return links to the files that README's row of the pool is from."""
    names = sorted({task["path"].stem for task in pools(results).values()})
    return ", ".join(f"[{name}](benchmarks/results/{name}.md)" for name in names)


def rows_ours(results: Path) -> str:
    """Return the stored rows that Penstock reads a second, of both kinds."""
    found = _newest(results, "shards")
    return "; ".join(short(median(found[f"penstock, {kind}"])) for kind in _KINDS)


def rows_best(results: Path) -> str:
    """Return the fastest other reader of each kind, and how many times as fast Penstock is."""
    found = _newest(results, "shards")
    return "; ".join(_best_reader(found, kind) for kind in _KINDS)


def shard(measured: str) -> Callable[[Path], str]:
    """Return the passage of a shard's time next to that of plain memory or files, as a ratio."""
    return lambda results: f"{median(_newest(results, 'shards')[measured]):.2f}"


def scale_rates(name: str, place: int) -> Callable[[Path], str]:
    """Return the passage of a scale run's env steps/s at its most actors: predicted (0) or measured (2)."""

    def passage(results: Path) -> str:
        runs = json.loads((results / f"{name}.json").read_text(encoding="utf-8"))["runs"]
        return f"{max(runs, key=lambda run: run['actors'])['pairs']['env steps/s'][place]:,.0f}"

    return passage


def placed(method: str, budget_seconds: float) -> Callable[[Path], str]:
    """Return the passage of a method's mean cost on Ariane133 after so many CPU seconds."""

    def passage(results: Path) -> str:
        costs: dict[tuple[str, float, str], list[float]] = defaultdict(list)
        for path in (results / PLACED).glob("*.json"):
            one = json.loads(path.read_text(encoding="utf-8"))
            costs[one["block"], one["budget_seconds"], one["method"]].append(one["cost"])
        return f"{fmean(costs['ariane133', budget_seconds, method]):.3f}"

    return passage


_KINDS = ("CartPole-like rows", "84x84 frames")
_BOUND = ("penstock", "hashed and copied alone")
"""Not readers that others have."""


def _newest(results: Path, name: str) -> dict[str, Any]:
    path = max(results.glob(f"????-??-??-{name}.json"))
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _best_reader(found: dict[str, Any], kind: str) -> str:
    rates = {
        name.partition(", ")[0]: median(values)
        for name, values in found.items()
        if name.endswith(f", {kind}") and not name.startswith(_BOUND)
    }
    best = max(rates, key=lambda name: rates[name])
    times = median(found[f"penstock, {kind}"]) / rates[best]
    return f"{best.capitalize()} {short(rates[best])} ({times:.1f} times)"


def _rate(task: dict[str, Any], name: str) -> float:
    return float(median(each[name] for each in task["rounds"]))


def _ratio(task: dict[str, Any], name: str) -> float:
    return float(median(each["penstock"] / each[name] for each in task["rounds"]))


_GUIDED, _RANDOM, _RESTARTS = (
    "guided proposals, soft macros too",
    "random proposals, soft macros too",
    "annealing with restarts",
)
PASSAGES: dict[str, Callable[[Path], str]] = {
    "returns-squashed": returns_of("Penstock"),
    "returns-clipped": returns_of("Penstock, clipped actions"),
    "returns-cleanrl": returns_of("CleanRL's script"),
    "returns-random": returns_of("random actions"),
    "returns-lost": returns_lost,
    "pool-rates": pool_rates,
    "pool-peers": pool_peers,
    "pool-lost": pool_lost,
    "pool-table": pool_table,
    "pool-sources": pool_sources,
    "rows-ours": rows_ours,
    "rows-best": rows_best,
    "shard-write": shard("write 16 MiB"),
    "shard-read": shard("read, copied 16 MiB"),
    "scale-obstore": scale_rates("2026-11-23-scale-obstore", 2),
    "scale-obstore-predicted": scale_rates("2026-11-23-scale-obstore", 0),
    "scale-s3fs": scale_rates("2026-11-23-scale", 2),
    "scale-s3fs-predicted": scale_rates("2026-11-23-scale", 0),
    "placing-10": placed(_GUIDED, 10.0),
    "placing-10-random": placed(_RANDOM, 10.0),
    "placing-10-efficient": placed("efficient-place search, tuned for these costs", 10.0),
    "placing-10-wire-mask": placed("wire-mask search, tuned for these costs", 10.0),
    "placing-10-restarts": placed(_RESTARTS, 10.0),
    "placing-1200": placed(_GUIDED, 1200.0),
    "placing-1200-random": placed(_RANDOM, 1200.0),
    "placing-1200-restarts": placed(_RESTARTS, 1200.0),
}
"""By the name of their mark, with the folder of results."""

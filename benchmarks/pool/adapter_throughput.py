"""Measures what Penstock adds to another library's environments: stepping, and acting with shards written.

Stepping: the family alone against Penstock's pool of it, with the same random actions drawn beforehand. Acting: policy,
steps and rows of a whole stage, as an act task makes them, with its shards and states written to a folder against
without. Sides alternate within one process, and change who is first. Each is measured in CPU time, of every thread and
of the server behind a socket, and in wall time; the one whose ratios vary less is the row's figure.

    python -m benchmarks.pool.adapter_throughput
    python -m benchmarks.pool.adapter_throughput --only EnvPool --profile         # what of a round is the library's
    python -m benchmarks.pool.adapter_throughput --only MinAtar --measure stepping --rounds 9 --keep  # others stay
"""

from __future__ import annotations

import argparse
import cProfile
import datetime as dt
import json
import logging
import pstats
import shlex
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import torch

from benchmarks.peers.measure import machine
from benchmarks.pool.acting import make_run
from benchmarks.pool.adapter_families import FAMILIES, Family, Server
from benchmarks.support.programs import RESULTS
from benchmarks.support.tables import write_table
from penstock import native
from penstock.storage.errors import PenstockError
from penstock.tasks.roles.acting.shard_writer import RoundWriter
from penstock.tasks.roles.acting.tile import RoundBuffers, TileActor
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.planning.dry_run import NullMembership

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from penstock.native import EnvironmentPool
    from penstock.tasks.roles.acting.tile import ActedRound
    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.specs import Params

ROUND_STEPS = 64
TURNS = 4
"""Times that each side has its turn in a round, so that other work meets both; fewer where a stage is long."""
REACH = {"stepping": 0.95, "acting": 0.85}
HEAD = ("family", "id, environments", "measured", "env steps/s", "CPU time", "wall time", "reach", "judged by")
_MEASURED = (
    "Stepping: the rate of Penstock's pool over that of the family alone, with the same random actions. Acting: the "
    "rate with shards and states written over that without. env steps/s are those of the second, the family alone or "
    "acting without writing, in CPU time. Ratios are medians over the rounds, with the least and the largest."
)
_ALONE = (
    "The family alone is SyncVectorEnv in same-step mode for Gymnasium, MuJoCo, MinAtar and MiniGrid, ale-py's vector "
    "environment and EnvPool with one thread, and a loop over dm_control's tasks or PettingZoo's environments. "
    "For the socket it is SyncVectorEnv with the same environments in this process: the row measures the wire and the "
    "server's process, whose CPU time is counted, and 0.95 is not asked of it. "
    "MJX, Brax and Warp were not installed."
)


@dataclass(frozen=True)
class Spent:
    """Seconds of a side in a round."""

    cpu: float
    wall: float


class Clock:
    """Measures this process and one other."""

    def __init__(self, other: int | None = None) -> None:
        self._other = None if other is None else psutil.Process(other)

    def time(self, work: Callable[[], object]) -> Spent:
        """Return the seconds that some work takes."""
        cpu, wall = self._cpu(), time.perf_counter()
        work()
        return Spent(self._cpu() - cpu, time.perf_counter() - wall)

    def _cpu(self) -> float:
        spent = time.process_time()
        if self._other is not None:
            other = self._other.cpu_times()
            spent += other.user + other.system
        return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--measure", nargs="+", choices=list(REACH), default=list(REACH))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a side in a round, at least")
    parser.add_argument("--keep", action="store_true", help="keep what today's results have of everything else")
    parser.add_argument("--profile", action="store_true", help="print a profile of stepping in the pool, and no more")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    if args.profile:
        for name in args.only:
            profile(FAMILIES[name])
        return
    kept = args.results / f"{dt.datetime.now(tz=dt.UTC).date().isoformat()}-adapter-throughput.json"
    raw: dict[str, Any] = json.loads(kept.read_text()) if args.keep and kept.exists() else {}
    for name in args.only:
        before = {part: found for part, found in raw.get(name, {}).items() if part != "skipped"}
        try:
            raw[name] = before | measure(FAMILIES[name], args)
        except (ValueError, ImportError, PenstockError) as error:
            raw[name] = before or {"skipped": str(error)}
        print(*(" | ".join(row) for row in table_rows(name, FAMILIES[name], raw[name])), sep="\n", flush=True)
    raw["machine"] = about = machine(["penstock-rl", "gymnasium", "numpy", "torch"])
    rows = [row for name, family in FAMILIES.items() if name in raw for row in table_rows(name, family, raw[name])]
    given = ["--rounds", str(args.rounds), "--seconds", str(args.seconds)] if args.keep else sys.argv[1:]
    command = shlex.join(["python", "-m", "benchmarks.pool.adapter_throughput", *given])
    where = f"{about['processor']}, {about['cores']} cores, shared with other work; Python {about['python']}."
    if args.keep:
        where += " Rows were measured one at a time, with `--only`, `--measure` and `--keep`, under `chrt -r 1`."
    write_table(args.results, "adapter-throughput", command, rows, raw, head=HEAD, notes=[_MEASURED, _ALONE, where])


def measure(family: Family, args: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds of both sides in every round, by what is measured."""
    server = Server(family.id.removeprefix("socket/")) if family.id.startswith("socket/") else None
    try:
        clock = Clock(server.process.pid if server else None)
        address = {"address": server.address} if server else {}
        measures = {"stepping": stepping, "acting": acting}
        return {name: measures[name](family, address, clock, args) for name in args.measure}
    finally:
        if server is not None:
            server.close()


def stepping(family: Family, address: dict[str, str], clock: Clock, args: argparse.Namespace) -> dict[str, Any]:
    """Measure the pool against the family alone."""
    with closing(native.make(family.id, family.num_envs, one_array=True, one_action=True, **address)) as pool:
        pool.reset_ids(np.array(family.seeds, dtype=np.uint64))
        actions = drawn(pool)
        alone, ours = family.alone(family), Rounds(pool)
        trial = min(clock.time(lambda: play_alone(alone, actions, 1)).wall for _ in range(3))
        ours.play(actions, 1)
        count = max(1, round(args.seconds / TURNS / trial))
        taken = alternated(
            {
                "alone": lambda: clock.time(lambda: play_alone(alone, actions, count)),
                "penstock": lambda: clock.time(lambda: ours.play(actions, count)),
            },
            args.rounds,
            TURNS,
        )
    return {
        "env_steps": TURNS * count * ROUND_STEPS * family.num_envs,
        "without": "alone",
        "with": "penstock",
        "taken": taken,
    }


def profile(family: Family) -> None:
    """Print the functions that rounds of the pool spend most time in; the profiler makes calls of Python dearer."""
    with closing(native.make(family.id, family.num_envs, one_array=True, one_action=True)) as pool:
        pool.reset_ids(np.array(family.seeds, dtype=np.uint64))
        rounds, actions, profiler = Rounds(pool), drawn(pool), cProfile.Profile()
        rounds.play(actions, 1)
        profiler.runcall(rounds.play, actions, 10)
    print(f"{family.id}, {family.num_envs}, {10 * ROUND_STEPS} steps of the pool")
    pstats.Stats(profiler).sort_stats("tottime").print_stats(16)


def drawn(pool: EnvironmentPool) -> NDArray[Any]:
    """Return random actions of a round."""
    action, generator = pool.environment["action"], np.random.default_rng(0)
    shape = (ROUND_STEPS, pool.num_envs, *action["shape"])
    if action["kind"] == "discrete":
        return generator.integers(0, action["n"], shape)
    return generator.uniform(action["low"], action["high"], shape).astype(np.float32)


def play_alone(step: Callable[[NDArray[Any]], object], actions: NDArray[Any], rounds: int) -> None:
    """Make the steps of some rounds without Penstock."""
    for _ in range(rounds):
        for action in actions:
            step(action)


class Rounds:
    """Rounds of a pool, in buffers that are used again."""

    def __init__(self, pool: EnvironmentPool) -> None:
        self._pool = pool
        shape, observed, agents = (
            (ROUND_STEPS, pool.num_envs),
            pool.environment["observation"],
            pool.environment["agents"],
        )
        self._buffers = [
            np.empty((*shape, *observed["shape"]), dtype=observed["dtype"]),
            np.empty((*shape, agents) if agents else shape, dtype=np.float32),
            *(np.empty(shape, dtype=dtype) for dtype in (np.uint8, np.uint8, np.int32)),
        ]

    def play(self, actions: NDArray[Any], rounds: int) -> None:
        """Make some rounds."""
        for _ in range(rounds):
            self._pool.begin_round(*self._buffers)
            for t, action in enumerate(actions):
                self._pool.step_round(t, action)
            self._pool.end_round()


def acting(family: Family, address: dict[str, str], clock: Clock, args: argparse.Namespace) -> dict[str, Any]:
    """Measure stages that are written against stages that are not."""
    config = build_config(
        {
            "name": "acting",
            "seed": 1,
            "environment": {
                "id": family.id,
                "num_envs": family.num_envs,
                "envs_per_tile": family.num_envs,
                **address,
            },
            "schedule": {"round_steps": ROUND_STEPS},
            **family.run,
        }
    )
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        assignment, context = make_run(config, folder)
        sides = {name: Stages(assignment, context, clock, writes=name == "writing") for name in ("plain", "writing")}
        turns = min(TURNS, max(1, round(TURNS * args.seconds / sides["plain"].act().wall)))
        taken = alternated({name: side.act for name, side in sides.items()}, args.rounds, turns)
        for side in sides.values():
            side.actor.close()
    rounds = turns * config.schedule.rounds_per_stage
    return {
        "env_steps": rounds * ROUND_STEPS * family.num_envs,
        "without": "plain",
        "with": "writing",
        "taken": taken,
    }


class Stages:
    """Acts stage after stage in one tile: the environments begin anew in each, as where a run restores by replay."""

    def __init__(self, assignment: Assignment, context: RunContext, clock: Clock, *, writes: bool) -> None:
        self._assignment, self._context, self._clock, self._writes = assignment, context, clock, writes
        self.actor = TileActor(context, 0)
        self._params: Params = context.algorithm.init(1).params
        self._buffers = RoundBuffers(context, 0)
        self._stage = 0

    def act(self) -> Spent:
        """Act a stage, and return what it takes, without the resets at its start."""
        self.actor.restart(self._context.rounds_of(self._stage).start)
        spent = self._clock.time(self._act_stage)
        self._stage += 1
        return spent

    def _act_stage(self) -> None:
        rounds = self._context.rounds_of(self._stage)
        if not self._writes:
            for _ in rounds:
                self.actor.act_round(0, self._params, self._buffers)
            return
        assignment = replace(self._assignment, stage=self._stage)
        writer = RoundWriter(assignment, self._context, NullMembership(), {}, {})  # type: ignore[arg-type]
        for _ in rounds:
            acted: ActedRound = self.actor.act_round(0, self._params, writer.buffers(self.actor))
            writer.submit(acted)
        writer.finish()
        writer.close()


def alternated(sides: dict[str, Callable[[], Spent]], rounds: int, turns: int) -> list[dict[str, dict[str, float]]]:
    """Return the seconds of each side in every round; one before them is not counted."""
    taken = []
    for number in range(rounds + 1):
        sums = {name: {"cpu": 0.0, "wall": 0.0} for name in sides}
        for index in range(turns):
            for name in list(sides) if (number + index) % 2 else list(sides)[::-1]:
                spent = sides[name]()
                sums[name]["cpu"] += spent.cpu
                sums[name]["wall"] += spent.wall
        taken.append(sums)
    return taken[1:]


def table_rows(name: str, family: Family, found: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return a row for each that was measured, or one that says why nothing was."""
    what = f"`{family.id}`, {family.num_envs}{f' ({family.note})' if family.note else ''}"
    if "skipped" in found:
        return [(name, what, f"skipped: {found['skipped']}", "", "", "", "", "")]
    rows = []
    for measured, result in sorted(found.items(), key=lambda item: list(REACH).index(item[0])):
        ratios = {
            kind: sorted(each[result["without"]][kind] / each[result["with"]][kind] for each in result["taken"])
            for kind in ("cpu", "wall")
        }
        cells = {kind: f"{median(all_):.2f} ({all_[0]:.2f} to {all_[-1]:.2f})" for kind, all_ in ratios.items()}
        kind = min(ratios, key=lambda kind: (ratios[kind][-1] - ratios[kind][0]) / median(ratios[kind]))
        rate = result["env_steps"] / median(each[result["without"]]["cpu"] for each in result["taken"])
        asked = measured == "acting" or not family.id.startswith("socket/")
        reach = f">= {REACH[measured]:g}" if asked else "-"
        missed = "; missed" if asked and median(ratios[kind]) < REACH[measured] else ""
        rows.append((name, what, measured, f"{rate:,.0f}", cells["cpu"], cells["wall"], reach, f"{kind}{missed}"))
    return rows


if __name__ == "__main__":
    main()

"""Kills runs at random moments and compares every byte that they end with to undisturbed runs.

Each run has a policy and a store, drawn by a seed, and is killed several times: its flow, one worker, several workers,
everything, or Prefect's server, which is started again. On the store `disk`, an ext4 file system of its own, the power
is cut as well: what was not flushed is lost. A command that was killed is given again as a person would do: `penstock
resume`, or `penstock train` where there was no run yet. Then `verify`, `copy` and `gc` are killed and repeated on it. A
command that ends with an error without having been killed counts as a manual intervention. One that is refused, because
Prefect's server was down when it began, is given again, and counted.

Two undisturbed runs of `central_stale`, a parameter server with `max_staleness`, differ already. Its runs are compared
with what they had published when they were killed, and after the commands that follow with what they ended with.

    python -m benchmarks.faults.kills --kills 1000 --seed 1 --results benchmarks/results/<date>-kills
    python -m benchmarks.faults.kills --kills 500 --stores disk --victims power --results build/power-cuts

Parts with other seeds may run next to each other or on other days: each adds its line to the same results.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import shutil
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.faults.kill_trials import OPERATIONS, POWER, Trial, content, contradicted, differing, published
from benchmarks.peers.measure import machine
from benchmarks.support.object_server import ObjectServer
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store

STALE = "central_stale"
POLICIES = {
    "single_learner_coarse": ("--act-tasks", "2"),
    "single_learner_fine": ("--env-tasks", "2"),
    "multiple_learners": ("--learn-tasks", "2"),
    "gpu_only": ("--learn-tasks", "2"),
    "environments": ("--env-tasks", "2", "--learn-tasks", "2"),
    "central": ("--learn-tasks", "2"),
    # Of three agents, the first learner owns two.
    "agents": (
        *("--act-tasks", "2", "--learn-tasks", "2", "--environment.id", "simple_spread_v3"),
        *("--algorithm.name", "mappo", "--algorithm.shared_parameters", "false"),
    ),
    STALE: ("--policy", "central", "--learn-tasks", "2", "--distribution.max_staleness", "1"),
}
STORES = ("folder", "s3", "disk")
ROUNDS, MOST_DISTURBED = 40, 5
KINDS = {
    "flow": "the flow",
    "worker": "a worker",
    "workers": "several workers",
    "everything": "everything",
    "server": "Prefect's server",
    "power": POWER,
}
PRESET = """
seed = 7
[environment]
num_envs = 12
envs_per_tile = 4
[algorithm]
hidden = [8]
epochs = 1
minibatches = 2
[schedule]
round_steps = 8
rounds_per_stage = {rounds}
max_stages = 4
evaluation_episodes = 2
[cluster]
lease_seconds = 6.0
"""


class Measurement:
    """Disturbed runs, one after the other, and what they have cost."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args, self.trial = args, Trial(folder, random.Random(args.seed))
        self.victims = tuple(KINDS[name] for name in args.victims)
        self.preset = str(folder / "preset.toml")
        Path(self.preset).write_text(PRESET.format(rounds=args.rounds))
        self.stores = {name: url for name, url in self.trial.stores().items() if name in args.stores}
        self.expected: dict[str, dict[str, bytes]] = {}
        self.seconds: dict[str, float] = {}
        self.differences: list[str] = []
        self.runs: Counter[str] = Counter()

    def run(self) -> None:
        """Disturb runs until there were enough kills."""
        while sum(self.trial.kills.values()) < self.args.kills:
            policy, store = self.trial.random.choice(self.args.policies), self.trial.random.choice(sorted(self.stores))
            if policy not in self.expected:
                self.expected[policy], self.seconds[policy] = self._undisturbed(policy)
            self._disturb(policy, store)
            self.runs[f"{policy}, {store}"] += 1
            found = f"{len(self.differences)} differences, {len(self.trial.interventions)} interventions"
            kills = sum(self.trial.kills.values())
            print(f"run {self.runs.total()}: {policy}, {store}; {kills} kills, {found}", flush=True)
            self.trial.clear()

    def _undisturbed(self, policy: str) -> tuple[dict[str, bytes], float]:
        """Return the content of a run that nothing disturbs, and the seconds of its command."""
        url, name = f"{self.trial.folder}/undisturbed", policy.replace("_", "-")
        started = time.perf_counter()
        command = self.trial.start(*self._train(policy, name, url))
        if command.wait():
            sys.exit(f"the undisturbed run of {policy} failed: {command.output}")
        return content(RunFolder(open_store(url), name)), time.perf_counter() - started

    def _train(self, policy: str, name: str, url: str) -> tuple[str, ...]:
        options = POLICIES[policy] if policy == STALE else ("--policy", policy, *POLICIES[policy])
        return ("train", self.preset, "--name", name, "--store", url, *options)

    def _disturb(self, policy: str, store: str) -> None:
        trial, url = self.trial, self.stores[store]
        name, seconds = f"run-{self.runs.total()}", self.seconds[policy]
        run = RunFolder(open_store(url), name)
        train, resume = self._train(policy, name, url), ("resume", name, "--store", url)
        # Power is cut on its disk alone, and two of three times there: that is what the disk is for.
        victims = tuple(victim for victim in self.victims if victim != POWER)
        if store == "disk" and POWER in self.victims:
            victims += (POWER,) * max(1, 2 * len(victims))
        seen: dict[str, bytes] = {}

        def look() -> None:
            # After a cut, versions since the last commit may be published anew: what they were had not been flushed.
            found = content(run) if store == "disk" else published(run)
            seen.update((name, data) for name, data in found.items() if name not in seen)

        commands = {"train": train, "resume": resume}
        after_each = look if policy == STALE else None
        trial.survive(run, commands, seconds, victims, self.args.kills_of_a_run, after_each)
        if policy == STALE:
            self.differences += contradicted(run, seen)
            expected = content(run)
        else:
            expected = self.expected[policy]
            self.differences += differing(run, expected)
        for operation in OPERATIONS if self.args.operations else ():
            self._operate(run, url, operation, expected)
        run.store.delete(run.store.list())

    def _operate(self, run: RunFolder, url: str, operation: str, expected: dict[str, bytes]) -> None:
        """Kill a command on a finished run, give it again, and note what differs then."""
        copies = f"{self.trial.folder}/copies"
        arguments = (operation, run.name, *((copies,) if operation == "copy" else ()), "--store", url)
        if not self.trial.disturbed(arguments, 2.0, ("the flow",)):
            self.trial.end(self.trial.start(*arguments), arguments)
        changed = RunFolder(open_store(copies), run.name) if operation == "copy" else run
        self.differences += differing(changed, expected)
        shutil.rmtree(copies, ignore_errors=True)

    def result(self) -> dict[str, Any]:
        """Return the figures of this part."""
        given = [f"--kills {self.args.kills} --seed {self.args.seed}"]
        for name, all_ in (("stores", STORES), ("victims", tuple(KINDS))):
            if (chosen := tuple(getattr(self.args, name))) != all_:
                given.append(f"--{name} {' '.join(chosen)}")
        # Always: parts that name none are from when there were only the first six.
        given.append(f"--policies {' '.join(self.args.policies)}")
        for option, default in (("kills_of_a_run", MOST_DISTURBED), ("rounds", ROUNDS)):
            if (value := getattr(self.args, option)) != default:
                given.append(f"--{option.replace('_', '-')} {value}")
        if not self.args.operations:
            given.append("--no-operations")
        trial = self.trial
        return {
            "command": " ".join(["python -m benchmarks.faults.kills", *given]),
            "runs": dict(self.runs),
            "kills": dict(trial.kills),
            "during": dict(trial.during),
            "differences": self.differences,
            "manual_interventions": trial.interventions,
            "refused_without_server": trial.refusals,
            "lost_seconds": [round(seconds, 2) for seconds in trial.lost_seconds],
            "machine": machine(["penstock-rl", "torch", "prefect", "distributed"]),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000, help="the last run may add a few")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stores", nargs="+", choices=STORES, default=list(STORES))
    parser.add_argument("--victims", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="per stage")
    parser.add_argument("--kills-of-a-run", type=int, default=MOST_DISTURBED, help="most commands that are disturbed")
    parser.add_argument("--no-operations", dest="operations", action="store_false", help="only train and resume")
    parser.add_argument("--results", type=Path, help="without suffix; .json and .md are written")
    args = parser.parse_args()
    if args.victims == ["power"] and args.stores != ["disk"]:
        parser.error("power can be cut on the disk alone: give --stores disk as well")
    with tempfile.TemporaryDirectory(prefix="penstock-kills-") as name, ObjectServer() as server:
        os.environ |= {"PREFECT_HOME": f"{name}/prefect", "COLUMNS": "200", **server.environment}
        urllib.request.urlopen(urllib.request.Request(f"{server.endpoint}/bench", method="PUT"), timeout=30).close()
        measurement = Measurement(args, Path(name))
        try:
            measurement.run()
        finally:
            measurement.trial.close()
    parts = [measurement.result()]
    if args.results:
        parts = add(args.results, parts[0])
    print(table(parts))
    for part in parts:
        print(*part["differences"], *part["manual_interventions"], sep="\n")


def add(results: Path, part: dict[str, Any]) -> list[dict[str, Any]]:
    """Add a part to the results and write the table anew; return all parts."""
    with results.with_suffix(".json").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        parts = [*json.loads(file.read() or "[]"), part]
        file.truncate(0)
        file.write(json.dumps(parts, indent=1) + "\n")
        commands = "\n".join(f"    {part['command']}" for part in parts)
        results.with_suffix(".md").write_text(f"# Kills and power cuts\n\n{commands}\n\n{table(parts)}\n")
    return parts


def table(parts: list[dict[str, Any]]) -> str:
    """Return a table of what all parts have counted."""
    totals = {name: sum((Counter(part[name]) for part in parts), Counter()) for name in ("runs", "kills", "during")}
    lost = [seconds for part in parts for seconds in part["lost_seconds"]]

    def counted(name: str) -> str:
        return "; ".join(f"{kind}: {count}" for kind, count in totals[name].most_common())

    rows = {
        "runs": f"{totals['runs'].total()} ({counted('runs')})",
        "kills and power cuts": totals["kills"].total(),
        "of": counted("kills"),
        "during": counted("during"),
        "files that differ from the undisturbed run, or from what was published before": sum(
            len(part["differences"]) for part in parts
        ),
        "manual interventions": sum(len(part["manual_interventions"]) for part in parts),
        "seconds lost per kill of a run, median (worst)": f"{median(lost):.1f} ({max(lost):.1f})" if lost else "-",
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


if __name__ == "__main__":
    main()

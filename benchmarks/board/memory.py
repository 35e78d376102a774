"""Measures the memory of a whole run by process: `penstock train`, cold, beside RLlib and stable-baselines3.

Memory is the proportional set size (PSS), summed over the command and all its descendants, Prefect's server included,
and sampled every 0.2 s. The table shows each process at the moment at which the sum was largest: what it has of its own
("anonymous": its heap, and pages of files that it has written to) and its share of files (mostly libraries) and of
shared memory. PREFECT_HOME is empty and no server runs; a first run, which is not counted, lets Penstock keep a
migrated database of Prefect. RLlib and stable-baselines3 run on the same machine, in turn with Penstock.

    python -m benchmarks.board.memory --rounds 3  # eight minutes; installs the peers first
    python -m benchmarks.board.memory --only penstock --libraries --results /tmp # by mapped file too
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.peers.measure import TreeSampler, machine, tree_pids
from benchmarks.support.programs import PEERS, RESULTS, peer_python
from benchmarks.support.tables import this_command, write_table

if TYPE_CHECKING:
    from collections.abc import Sequence

KINDS = {"Pss": "all", "Pss_Anon": "anonymous", "Pss_File": "files", "Pss_Shmem": "shared"}
HEAD = ("system", "process", *(f"{kind}, MB" for kind in KINDS.values()))
RUNS: dict[str, list[str]] = {
    "Penstock, cartpole": ["cartpole"],
    "Penstock, halfcheetah, 2 stages": ["halfcheetah", "--max-stages", "2"],
}
RLLIB, SB3 = "RLlib, CartPole", "stable-baselines3, CartPole"
GOAL = 0.55

Sizes = dict[str, int]
"""Bytes by kind of memory."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=("penstock", "rllib", "sb3"), default=("penstock", "rllib", "sb3"))
    parser.add_argument("--presets", type=int, default=len(RUNS), help="how many of Penstock's runs")
    parser.add_argument("--interval", type=float, default=0.2, help="seconds between samples")
    parser.add_argument("--libraries", action="store_true", help="read every mapping at the peak; slows the run")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-memory-") as folder:
        if "penstock" in args.only:
            watched(penstock(["cartpole"], 0, f"{folder}/first"), args)
        for turn in range(1, args.rounds + 1):
            for name, command in commands(args, turn, f"{folder}/{turn}").items():
                found.setdefault(name, []).append(watched(command, args))
                print(name, found[name][-1]["peak"], file=sys.stderr, flush=True)
    command = this_command()
    rows = [row for name, rounds in found.items() for row in rows_of(name, rounds)]
    raw = {"machine": machine(("penstock-rl", "prefect", "distributed", "torch")), "rounds": found}
    print(write_table(args.results, "memory", command, rows, raw, head=HEAD, notes=notes_of(found)))


def commands(args: argparse.Namespace, seed: int, folder: str) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Return the command and the environment of each system's run."""
    chosen = {}
    if "penstock" in args.only:
        for number, (name, settings) in enumerate(list(RUNS.items())[: args.presets]):
            chosen[name] = penstock(settings, seed, f"{folder}/{number}")
    for key, name, script, options in (
        ("rllib", RLLIB, "rllib_cartpole.py", []),
        ("sb3", SB3, "sb3_cartpole.py", ["--settings", "preset"]),
    ):
        if key in args.only:
            command = [str(peer_python(key)), str(PEERS / script), "--seed", str(seed), *options]
            chosen[name] = (command, clean_environment())
    return chosen


def penstock(settings: Sequence[str], seed: int, folder: str) -> tuple[list[str], dict[str, str]]:
    command = [str(Path(sys.executable).parent / "penstock"), "train", *settings, "--seed", str(seed)]
    command += ["--store", f"{folder}/runs", "--name", "bench", "--json"]
    return command, clean_environment() | {"PREFECT_HOME": f"{folder}/home"}


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PREFECT")}


def watched(run: tuple[list[str], dict[str, str]], args: argparse.Namespace) -> dict[str, Any]:
    """Run a command to its end and return its memory at the peak, its seconds, and its processor seconds."""
    command, environment = run
    before, started = os.times(), time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with TreeMemory(process.pid, args.interval, libraries=args.libraries) as memory:
        printed, said = process.communicate()
    if process.returncode:
        sys.exit(f"{shlex.join(command)} ended with {process.returncode}:\n{said}")
    after = os.times()
    return {
        "ended_by": ended_by(printed),
        "peak": memory.peak,
        "peak_second": memory.peak_at - started,
        "processes": memory.processes,
        "libraries": memory.libraries,
        "samples": memory.samples,
        "seconds": time.perf_counter() - started,
        "cpu_seconds": after.children_user + after.children_system - before.children_user - before.children_system,
    }


def ended_by(printed: str) -> object:
    """Return why Penstock's run finished, or whether a peer has solved its task before its time was over."""
    text = printed if printed.startswith("{\n") else printed.strip().rpartition("\n")[2]
    found = json.loads(text)
    return found.get("finished", found.get("solved"))


class TreeMemory(TreeSampler):
    """Samples a process tree from a thread while the block runs.

    Attributes:
        peak: the largest sum seen, in bytes.
        peak_at: when, by `time.perf_counter`.
        processes: role and sizes of each process at that moment, largest first.
        libraries: bytes by mapped file at that moment, the 40 largest; empty unless asked for.
        samples: how many samples were taken.
    """

    def __init__(self, pid: int, interval: float, *, libraries: bool = False) -> None:
        self.peak = 0
        self.peak_at = 0.0
        self.processes: list[tuple[str, Sizes]] = []
        self.libraries: dict[str, dict[str, int]] = {}
        self._with_libraries = libraries
        super().__init__(pid, interval)

    def sample(self) -> int:
        """Take one sample now and return it in bytes."""
        sizes = {pid: sizes_of(pid) for pid in tree_pids(self.pid)}
        self.samples += 1
        total = sum(each["all"] for each in sizes.values())
        if total > self.peak:
            roles = roles_of(list(sizes))
            self.peak, self.peak_at = total, time.perf_counter()
            self.processes = sorted(((roles[pid], sizes[pid]) for pid in sizes), key=lambda one: -one[1]["all"])
            if self._with_libraries:
                self.libraries = {f"{roles[pid]} {pid}": mapped(pid) for pid in sizes}
        return total


def sizes_of(pid: int) -> Sizes:
    """Return a process's PSS in bytes by kind, zeros if it has ended."""
    sizes = dict.fromkeys(KINDS.values(), 0)
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return sizes
    for line in lines:
        name, _, rest = line.partition(":")
        if name in KINDS:
            sizes[KINDS[name]] = int(rest.split()[0]) * 1024
    return sizes


def mapped(pid: int) -> dict[str, int]:
    """Return a process's PSS in bytes by mapped file, the 40 largest; memory without a file is `anonymous`."""
    sums: Counter[str] = Counter()
    name = ""
    try:
        lines = Path(f"/proc/{pid}/smaps").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    for line in lines:
        if line.startswith("Pss:"):
            sums[name] += int(line.split()[1]) * 1024
        elif not line.split(None, 1)[0].endswith(":"):
            parts = line.split(None, 5)
            name = Path(parts[5]).name if len(parts) > 5 else "anonymous"
    return dict(sums.most_common(40))


def roles_of(pids: Sequence[int]) -> dict[int, str]:
    """Return what each process of a tree does, from its command line; a fork's is its parent's."""
    roles: dict[int, str] = {}
    for pid in pids:
        try:
            line = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            roles[pid] = "ended"
            continue
        if "serve_prefect" in line:
            roles[pid] = "Prefect's server"
        elif "multiprocessing.forkserver" in line:
            roles[pid] = "worker" if roles.get(parent) == "fork server" else "fork server"
        elif "resource_tracker" in line:
            roles[pid] = "resource tracker"
        elif "penstock train" in line:
            roles[pid] = "command: flow, Dask's scheduler"
        else:
            words = line.split()
            named = Path(words[0]).name if words else "unnamed"
            scripts = [Path(word).name for word in words[1:] if word.endswith(".py")]
            roles[pid] = " ".join([named, *scripts[:1]]) if named.startswith("python") else named
    return roles


def rows_of(name: str, rounds: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return a row for each process of the round whose peak is the median, and one for the sum."""
    middle = sorted(rounds, key=lambda one: one["peak"])[len(rounds) // 2]
    rows = [(name, role, *(megabytes(sizes[kind]) for kind in KINDS.values())) for role, sizes in middle["processes"]]
    sums = [megabytes(sum(sizes[kind] for _, sizes in middle["processes"])) for kind in KINDS.values()]
    return [*rows, (name, f"**sum** at {middle['peak_second']:.1f} s", *sums)]


def notes_of(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return each system's peaks, and Penstock's as a share of RLlib's."""
    peaks = {name: [one["peak"] for one in rounds] for name, rounds in found.items()}
    notes = [
        f"{name}: peak {megabytes(median(each))} MB ({megabytes(min(each))} to {megabytes(max(each))}, {len(each)} "
        f"rounds), {median(one['seconds'] for one in found[name]):.1f} s, "
        f"{median(one['cpu_seconds'] for one in found[name]):.1f} processor seconds."
        for name, each in peaks.items()
    ]
    ours = next(iter(RUNS))
    for other, goal in ((RLLIB, f" (goal: at most {GOAL})"), (SB3, "")):
        if ours in peaks and other in peaks:
            notes.append(f"{ours} / {other}: {median(peaks[ours]) / median(peaks[other]):.2f}{goal}.")
    return notes


def megabytes(size: float) -> str:
    return f"{size / 1e6:,.0f}"


if __name__ == "__main__":
    main()

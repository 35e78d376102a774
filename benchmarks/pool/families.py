"""Tries every environment that `penstock envs` lists here, and writes a table by family.

Each id makes a pool of two, and takes 100 random steps whose results must match its spaces; some, drawn by a seed, then
train one stage, and one of each family is killed and must end with the same bytes. An id that crashes, hangs or does
not match is listed with its reason. What was tried is kept, a line of JSON for each in the results folder, so that an
interrupted run goes on where it was. Families whose packages exclude each other are tried in environments of their own
(dm_control needs MuJoCo 3), with `--only`; the table has what was tried in any of them.

    python -m benchmarks.pool.families                      # all ids, 200 that train, kills: hours on two cores
    python -m benchmarks.pool.families --only EnvPool --train 0 --no-kill
    python -m benchmarks.pool.families --quick  # three ids of each family, of which one trains; keeps nothing:
                                                       # 6 minutes, 107 CPU seconds with 11 families installed
    python -m benchmarks.pool.families --page               # the table alone, from what is kept
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import threading
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.pool.families_page import TYPICAL, table, write
from benchmarks.support.programs import RESULTS, own_program
from penstock.native.registry.families import families

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from penstock.native.registry.families import Family

KEPT = RESULTS / "families"
LIMIT_SECONDS = {"step": 300.0, "train": 900.0, "kill": 3600.0}
"""An id that takes longer is ended, and counts as one that hangs."""
PER_PROCESS = {"step": 40, "train": 40, "kill": 40}
"""Ids that a process tries before a new one takes over, whose memory is then its own."""
SEED, QUICK_IDS = 22, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="families, as `penstock envs` calls them")
    parser.add_argument("--train", type=int, default=200, help="ids that train one stage, drawn from those that step")
    parser.add_argument("--no-kill", dest="kill", action="store_false", help="leave out the kills")
    parser.add_argument("--again", action="store_true", help="try once more what has failed")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_IDS} ids of each family, and one training each")
    parser.add_argument("--page", action="store_true", help="write the table and try nothing")
    args = parser.parse_args()
    found = [one for one in families() if args.only is None or one.name in args.only]
    trials = Trials(KEPT)
    if args.quick:
        with tempfile.TemporaryDirectory(prefix="penstock-families-") as folder:
            quick(Trials(Path(folder)), found)
        return
    if not args.page:
        for family in found:
            trials.try_all("step", family.ids, again=args.again)
        good = [name for one in found for name in one.ids if trials.went_well("step", name)]
        trials.try_all("train", drawn(good, args.train, trials.kept("train")), again=args.again)
        ids = [TYPICAL[one.name] for one in found if one.installed and one.name in TYPICAL]
        trials.try_all("kill", ids if args.kill else (), again=args.again)
    tried = {trial: trials.kept(trial) for trial in LIMIT_SECONDS}
    print(write(RESULTS, [with_ids_of(one, tried["step"]) for one in families()], tried))


def quick(trials: Trials, found: Sequence[Family]) -> None:
    """Step a few ids of each family, train the first that does it well, and print what comes of it."""
    for family in found:
        trials.try_all("step", drawn(family.ids, QUICK_IDS))
    stepping = [[name for name in drawn(one.ids, QUICK_IDS) if trials.went_well("step", name)] for one in found]
    trials.try_all("train", [names[0] for names in stepping if names])
    print(table(found, {trial: trials.kept(trial) for trial in LIMIT_SECONDS}))


def with_ids_of(family: Family, tried: Iterable[str]) -> Family:
    """Return a family that is not installed here with the ids that were tried elsewhere: they begin with its name."""
    prefix = f"{family.name.lower()}/"
    ids = tuple(sorted(name for name in tried if name.startswith(prefix)))
    return family if family.installed else replace(family, ids=ids)


def drawn(ids: Sequence[str], count: int, first: Collection[str] = ()) -> list[str]:
    """Return ids drawn by a seed: those of `first`, then others in an order that no new id changes."""
    return sorted(ids, key=lambda name: (name not in first, sha256(f"{SEED} {name}".encode()).digest()))[:count]


class Trials:
    """Tries ids, and keeps what came of them in a folder, a file for each kind of trial."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def try_all(self, trial: str, ids: Sequence[str], *, again: bool = False) -> None:
        """Try the ids that have not been tried yet, and keep what came of each."""
        before = self.kept(trial)
        rest = [name for name in ids if name not in before or (again and "error" in before[name])]
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"{trial}.jsonl").open("a", encoding="utf-8") as file:
            while rest:
                for answer in answers(trial, rest[: PER_PROCESS[trial]]):
                    print(json.dumps(answer), file=file, flush=True)
                    print(trial, answer["id"], answer.get("error", "ok"), sep=" | ", flush=True)
                    rest.remove(answer["id"])

    def kept(self, trial: str) -> dict[str, dict[str, Any]]:
        """Return what was found of each id, the latest where it was tried more than once."""
        path = self._folder / f"{trial}.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return {answer["id"]: answer for answer in map(json.loads, lines)}

    def went_well(self, trial: str, name: str) -> bool:
        """Return whether an id was tried, without an error."""
        return "error" not in self.kept(trial).get(name, {"error": ""})


def answers(trial: str, ids: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield what a process says of each id; the last one may be that it did not survive."""
    command = own_program("pool.families_trials", trial)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        for name in ids:
            hung = threading.Event()

            def end(hung: threading.Event = hung) -> None:
                hung.set()
                process.kill()

            timer = threading.Timer(LIMIT_SECONDS[trial], end)
            timer.start()
            try:
                print(name, file=process.stdin, flush=True)
                line = process.stdout.readline()
            except BrokenPipeError:
                line = ""
            timer.cancel()
            if not line:
                status = process.wait()
                error = f"took over {LIMIT_SECONDS[trial]:.0f} s" if hung.is_set() else f"ended with status {status}"
                yield {"id": name, "error": error}
                return
            yield json.loads(line)
        process.stdin.close()


if __name__ == "__main__":
    main()

"""Tries every environment that `penstock envs` lists here, and writes a table by family.

Each id makes a pool of two, and takes 100 random steps whose results must match its spaces; some, drawn by a seed, then
train one stage. An id that crashes, hangs or does not match is listed with its reason. What was tried is kept, a line
of JSON for each in the results folder, so that an interrupted run goes on where it was.

    python benchmarks/families.py                      # all ids, then 200 that train: hours on two cores
    python benchmarks/families.py --only EnvPool --train 0
    python benchmarks/families.py --page               # the table alone, from what is kept
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import threading
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
from measure import machine
from tables import write_table

from penstock.native.registry.families import families

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.native.registry.families import Family

HERE = Path(__file__).resolve().parent
KEPT = HERE / "results" / "families"
TRIALS = ("step", "train")
LIMIT_SECONDS = {"step": 120.0, "train": 300.0}
"""An id that takes longer is ended, and counts as one that hangs."""
PER_PROCESS = {"step": 40, "train": 10}
"""Ids that a process tries before a new one takes over, whose memory is then its own."""
SEED = 22
HEAD = ("family", "ids", "step as their spaces say", "trained one stage", "restored by", "median seconds of a trial")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="families, as `penstock envs` calls them")
    parser.add_argument("--train", type=int, default=200, help="ids that train one stage, drawn from those that step")
    parser.add_argument("--again", action="store_true", help="try once more what has failed")
    parser.add_argument("--page", action="store_true", help="write the table and try nothing")
    args = parser.parse_args()
    found = [one for one in families() if one.ids and (args.only is None or one.name in args.only)]
    if not args.page:
        for family in found:
            try_all("step", family.ids, again=args.again)
        stepping = kept("step")
        good = [name for one in found for name in one.ids if "error" not in stepping.get(name, {"error": ""})]
        try_all("train", drawn(good, args.train), again=args.again)
    print(write(found))


def drawn(ids: Sequence[str], count: int) -> list[str]:
    """Return ids drawn by a seed: those that have trained before, and others in an order that no new id changes."""
    tried = kept("train")
    return sorted(ids, key=lambda name: (name not in tried, sha256(f"{SEED} {name}".encode()).digest()))[:count]


def try_all(trial: str, ids: Sequence[str], *, again: bool = False) -> None:
    """Try the ids that have not been tried yet, and keep what came of each."""
    before = kept(trial)
    rest = [name for name in ids if name not in before or (again and "error" in before[name])]
    KEPT.mkdir(parents=True, exist_ok=True)
    with (KEPT / f"{trial}.jsonl").open("a", encoding="utf-8") as file:
        while rest:
            for answer in answers(trial, rest[: PER_PROCESS[trial]]):
                print(json.dumps(answer), file=file, flush=True)
                print(trial, answer["id"], answer.get("error", "ok"), sep=" | ", flush=True)
                rest.remove(answer["id"])


def answers(trial: str, ids: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield what a process says of each id; the last one may be that it did not survive."""
    command = [sys.executable, str(HERE / "families_trials.py"), trial]
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


def kept(trial: str) -> dict[str, dict[str, Any]]:
    """Return what was found of each id, the latest where it was tried more than once."""
    path = KEPT / f"{trial}.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {answer["id"]: answer for answer in map(json.loads, lines)}


def write(found: Sequence[Family]) -> str:
    """Write the table of what is kept, and the reasons of what failed; return its text."""
    tried = {trial: kept(trial) for trial in TRIALS}
    rows, reasons, total = [], [], dict.fromkeys(TRIALS, (0, 0))
    for family in found:
        cells = []
        for trial in TRIALS:
            mine = [tried[trial][name] for name in family.ids if name in tried[trial]]
            failed = [answer for answer in mine if "error" in answer]
            good = len(mine) - len(failed)
            total[trial] = (total[trial][0] + good, total[trial][1] + len(mine))
            cells.append(f"{good:,} of {len(mine):,}" if mine else "not tried")
            reasons += [f"- {trial} `{answer['id']}`: {answer['error']}" for answer in failed]
        seconds = sorted(
            tried["step"][name]["seconds"] for name in family.ids if "seconds" in tried["step"].get(name, {})
        )
        middle = f"{seconds[len(seconds) // 2]:.2f}" if seconds else ""
        rows.append((family.name, f"{len(family.ids):,}", *cells, family.restored, middle))
    totals = [f"{good:,} of {count:,}" for good, count in total.values()]
    rows.append(("all", f"{sum(len(one.ids) for one in found):,}", *totals, "", ""))
    packages = ["penstock-rl", "gymnasium", "envpool", "ale-py", "minigrid", "minatar", "mujoco"]
    about = {"tried": tried, "machine": machine(packages)}
    notes = ["What failed:", "\n".join(reasons) or "nothing."]
    command = shlex.join(["python", "benchmarks/families.py", *sys.argv[1:]])
    return write_table(HERE / "results", "families", command, rows, about, head=HEAD, notes=notes)


if __name__ == "__main__":
    main()

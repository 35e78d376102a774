"""Measures the seconds until a command of `penstock` prints its first line.

Each command is started in a new process and ended with its first line. For comparison: Python alone, and what the
packages take that a command needs to do its work.

    python -m benchmarks.board.first_second
    python -m benchmarks.board.first_second --rounds 9 --results /tmp/results
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.peers.measure import machine
from benchmarks.support.programs import RESULTS
from benchmarks.support.tables import this_command, write_table
from tests.support.processes.first_line import first_line

COMMANDS = (
    "--version",
    "settings",
    "runs",
    "show c1",
    "train cartpole",
    "train cartpole --device nothing",
    "resume c1",
    "replay again --from c1",
    "evaluate c1",
    "export c1 policy.onnx --to onnx",
    "report c1",
    "verify c1",
    "copy c1 elsewhere",
    "plan",
    "check-algorithm ppo",
    "ui",
)
IMPORTS = ("pass", "import torch", "import prefect", "import distributed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    seconds: dict[str, list[float]] = {}
    lines: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-first-") as folder:
        environment = {"PREFECT_HOME": f"{folder}/prefect", "DO_NOT_TRACK": "1"}
        program = "from penstock.flows.cli.main import main; main()"
        trained = [sys.executable, "-c", program, "train", "cartpole", "--name", "c1", "--max-stages", "2"]
        subprocess.run(trained, cwd=folder, env={**os.environ, **environment}, check=True, stdout=subprocess.DEVNULL)
        for _ in range(args.rounds):
            for command in COMMANDS:
                began = time.perf_counter()
                found = first_line(command.split(), Path(folder), environment)
                seconds.setdefault(f"penstock {command}", []).append(time.perf_counter() - began)
                lines[f"penstock {command}"] = found.line.splitlines()[0]
            for statement in IMPORTS:
                began = time.perf_counter()
                subprocess.run([sys.executable, "-c", statement], check=True)
                seconds.setdefault(f'python -c "{statement}"', []).append(time.perf_counter() - began)
    table = [
        (f"`{name}`", f"{median(each):.2f} ({min(each):.2f} to {max(each):.2f})", lines.get(name, "").replace("|", "/"))
        for name, each in seconds.items()
    ]
    raw = {"machine": machine(("penstock-rl", "prefect", "distributed", "torch")), "seconds": seconds}
    head = ("command", "seconds to the first line, median (range)", "first line")
    print(write_table(args.results, "first-second", this_command(), table, raw, head=head))


if __name__ == "__main__":
    main()

"""Searches for inputs that decoders mishandle, guided by coverage: `python -m tests.fuzzing [TARGET...]`.

It prints a line per target: inputs, coverage (branches of Penstock's Python that were seen), faults. Faults and the
corpus, which a later search starts from, are kept below --folder.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .search import search
from .targets import TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"default: all of {', '.join(TARGETS)}")
    parser.add_argument("--seconds", type=int, default=60, help="most seconds per target (60)")
    parser.add_argument("--inputs", type=int, default=-1, help="most inputs per target (unlimited)")
    parser.add_argument("--seed", type=int, default=1, help="of the search (1); with --inputs alone it is repeatable")
    parser.add_argument("--folder", type=Path, default=Path("build/fuzzing"), help="build/fuzzing")
    given = parser.parse_args()
    if unknown := sorted(set(given.targets) - set(TARGETS)):
        parser.error(f"no target {', '.join(unknown)}: expected some of {', '.join(TARGETS)}")
    faulty = 0
    for name in given.targets or TARGETS:
        found = search(TARGETS[name], given.folder / name, given.seconds, given.inputs, given.seed)
        print(found, flush=True)
        faulty += bool(found.faults)
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())

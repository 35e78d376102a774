"""Reads a stored run with Arrow and JSON alone: copy this file, it needs nothing of Penstock.

    python read_run.py runs/cartpole-1 [FIRST_STAGE]

`commits` walks the log and checks it, `shards` yields what was learned from as Arrow tables. If the package `blake3` is
installed, digests are verified as well: those of commits, and of each shard's head, which its name carries.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

try:
    from blake3 import blake3
except ImportError:
    blake3 = None

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMIT_FORMAT = "penstock-commit/1"
SHARD_FORMATS = ("penstock-shard/2", "penstock-shard/3")  # the latter has a column for each leaf of an observation


class DamagedRunError(Exception):
    """A file of the run is not what the log says."""


def digest(data: bytes) -> str | None:
    """Return BLAKE3 of the data, cut to 128 bits, in hex; None if the package is missing."""
    return None if blake3 is None else blake3(data).hexdigest(length=16)


def canonical(value: Any) -> bytes:
    """Return the one JSON text of a value: sorted keys, no spaces, ASCII only."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def commits(run: Path) -> Iterator[dict[str, Any]]:
    """Yield the commits in order of stage, each checked against the one before.

    Raises:
        DamagedRunError: a commit is malformed, or was not built upon the one before.
    """
    about = json.loads((run / "run.json").read_bytes())
    parent, before = digest(canonical(about["identity"])), "the identity in run.json"
    stage = 0
    while (path := run / f"commits/{stage:08d}.json").exists():
        data = path.read_bytes()
        commit = json.loads(data)
        if commit["format"] != COMMIT_FORMAT or commit["stage"] != stage or canonical(commit) + b"\n" != data:
            raise DamagedRunError(f"{path} is no canonical {COMMIT_FORMAT} of stage {stage}")
        if parent is not None and commit["parent"] != parent:
            raise DamagedRunError(f"{path} was built upon {commit['parent']}, but {before} has the digest {parent}")
        yield commit
        parent, before = digest(data), str(path)
        stage += 1


def shards(run: Path, first: int = 0, last: int | None = None) -> Iterator[pa.Table]:
    """Yield the shards of the stages `first` to `last` (both included) as tables, in order of round, then tile.

    A table has a row for each step of each environment: row `t * envs + b`. `describe` gives its facts.

    Raises:
        DamagedRunError: a shard is not what its commit names.
    """
    for commit in commits(run):
        if commit["stage"] >= first and (last is None or commit["stage"] <= last):
            for ref in commit["shards"]:
                yield read_shard(run / ref["name"], ref)


def read_shard(path: Path, ref: dict[str, Any]) -> pa.Table:
    """Read a shard and check it against its reference in a commit.

    Raises:
        DamagedRunError: it is missing, or its size, its digest, its format or its number of rows differs.
    """
    if not path.exists():
        raise DamagedRunError(f"{path} is missing; if `penstock gc` has dropped it, begin at a later stage")
    data = path.read_bytes()
    if len(data) != ref["nbytes"]:
        raise DamagedRunError(f"{path} has {len(data)} bytes, expected {ref['nbytes']}")
    if blake3 is not None and ref["digest"] not in _head_digests(data):
        raise DamagedRunError(f"the head of {path} has another digest than {ref['digest']}")
    with pa.ipc.open_file(pa.BufferReader(data)) as reader:
        table = reader.read_all()
    facts = describe(table)
    if facts["format"] not in SHARD_FORMATS or (facts["round"], facts["tile"]) != (ref["round"], ref["tile"]):
        raise DamagedRunError(f"{path} is no shard of round {ref['round']}, tile {ref['tile']}")
    if table.num_rows != ref["rows"]:
        raise DamagedRunError(f"{path} has {table.num_rows} rows, expected {ref['rows']}")
    return table


def describe(table: pa.Table) -> dict[str, Any]:
    """Return what a shard says of itself: columns, round, tile, steps, envs, versions and `episodes`."""
    metadata = table.schema.metadata
    return {**json.loads(metadata[b"penstock.shard"]), "episodes": json.loads(metadata[b"penstock.episodes"])}


def _head_digests(data: bytes) -> Iterator[str | None]:
    """Yield digests of what may be the head: two messages, each behind its length, and zeros up to the first column."""
    end = 8  # the magic `ARROW1` and two bytes
    for _ in ("schema", "record batch"):
        end += 8 + int.from_bytes(data[end + 4 : end + 8], "little")
    # Only the second message says where the first column begins; it is aligned, and so one of a few places.
    return (digest(data[:first]) for first in range(end, end + 136, 8) if not any(data[end:first]))


def main() -> None:
    """Print a line for each shard of a run."""
    run, first = Path(*sys.argv[1:2]), sys.argv[2] if len(sys.argv) > 2 else "0"
    if len(sys.argv) not in (2, 3) or not (run / "run.json").exists() or not first.isdecimal():
        sys.exit("usage: python read_run.py RUN [FIRST_STAGE]: a folder with a run.json, and a number")
    found = False
    for table in shards(run, int(first)):
        found = True
        facts = describe(table)
        ended = len(facts["episodes"]["row"])
        print(f"round {facts['round']}, tile {facts['tile']}: {table.num_rows} rows, {ended} episodes ended")
    if not found:
        sys.exit(f"{run} has no shards of stage {first} or later")


if __name__ == "__main__":
    main()

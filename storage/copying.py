"""A whole run in another store: every file as it is, so that it goes on there to the bytes that it would have had."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage.errors import ConfigError, RunExistsError
from storage.lease import acquire
from storage.run import RUN

if TYPE_CHECKING:
    from storage.run import RunFolder

_LEASE_TTL_SECONDS = 30.0
_AT_ONCE = 8
# Who drives or reads the run is said of the folder that it is in.
_LEFT = ("lease.json", "readers/")
# Names that hold a digest say what is in them; what else is there may be of another time.
_DIGESTED = ("shards/", "states/", "snapshots/", "checkpoints/", "replay/")


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What was copied; objects that an earlier copy had left are not counted."""

    objects: int
    nbytes: int
    commits: int


def copy_run(source: RunFolder, target: RunFolder) -> CopyReport:
    """Copy a run, under its name or another; the source stays, and nobody may drive it meanwhile.

    `run.json` comes last, durable: before it there is no run in the other store, and a copy that was ended goes on when
    it is begun again. Evaluations, timings and given-up attempts come along; leases and claims of readers don't.

    Args:
        source: that nobody drives.
        target: that does not exist yet.

    Raises:
        ConfigError: both are the same folder.
        RunNotFoundError: there is no such run.
        RunExistsError: the target was created before.
        LeaseHeldError: a flow drives the source.
        CorruptObjectError: the source's log can't be trusted, or the copy is not what was read.
    """
    if source.store.url == target.store.url:
        raise ConfigError(f"{target.store.url} is where run '{source.name}' is; copy it to another store")
    description = source.load()
    if target.exists():
        raise RunExistsError(
            f"there is a run '{target.name}' in {target.root.url} already; choose another store, or another name"
        )
    with acquire(source.store, "a copy", _LEASE_TTL_SECONDS) as keeper:
        source.log.verify(source.genesis())
        there = {name for name in target.store.list() if name.startswith(_DIGESTED)}
        names = [name for name in source.store.list() if name != RUN and not name.startswith(_LEFT)]
        missing = [name for name in names if name not in there]

        def copy(name: str) -> int:
            keeper.check()
            data = source.store.view(name)
            target.store.write(name, [data])
            return len(data)

        with ThreadPoolExecutor(_AT_ONCE) as threads:
            copied = list(threads.map(copy, missing))
        target.store.sync(names)
        commits = target.log.verify(source.genesis())
    target.create(description)
    return CopyReport(objects=len(copied) + 1, nbytes=sum(copied), commits=commits)

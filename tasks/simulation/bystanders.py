"""Simulated processes beside the flows: a reader, garbage collection, and a copy; the real protocol of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from penstock.storage.errors import ConfigError, CorruptObjectError, ObjectNotFoundError, PenstockError
from penstock.storage.runs.copying import copy_run
from penstock.storage.runs.gc import collect
from penstock.storage.runs.reader_claims import reading
from penstock.storage.runs.run import RunFolder
from penstock.tasks.simulation.cluster import RUN
from penstock.tasks.simulation.memory import check_once

if TYPE_CHECKING:
    from penstock.storage.stores.protocol import Store
    from penstock.tasks.simulation.cluster import SimulatedCluster
    from penstock.tasks.simulation.store import SimulatedStore

_READER_TTL_SECONDS = 15.0
_BETWEEN_SECONDS = 2.0


class ClaimBrokenError(AssertionError):
    """An object that a living reader claims is gone."""


def read(cluster: SimulatedCluster) -> bool:
    """Claim the committed stages, and read all that their commits name; slowly. Returns False if there are none yet.

    Raises:
        ClaimBrokenError: a claimed object is missing or damaged, and no fault hit the reader.
        PenstockError: the store failed, or the shards were dropped before.
    """
    world = cluster.world
    run = RunFolder(cast("Store", cluster.store), RUN)
    newest = run.log.newest()
    if newest is None:
        return False
    first = world.rng.randrange(newest.stage + 1)
    faults, ahead = world.faults.happened, world.thread.process.host.clock_ahead_seconds
    with reading(run.store, "reading", first, newest.stage, ttl_seconds=_READER_TTL_SECONDS):
        try:
            # State of stages that were superseded before the claim may be gone.
            current = run.log.newest_stage()
            for stage in range(first, newest.stage + 1):
                commit = run.log.read(stage)
                for ref in commit.references():
                    if stage == current or ref in commit.shards:
                        check_once(run.store.read(ref.name), ref)
                    world.sleep(world.rng.random() * _BETWEEN_SECONDS)
        except (ObjectNotFoundError, CorruptObjectError) as error:
            host = world.thread.process.host
            if (faults, ahead) == (world.faults.happened, host.clock_ahead_seconds):
                raise ClaimBrokenError(str(error)) from error
            raise ConfigError(f"a fault may have ended the claim: {error}") from error
    return True


def collect_garbage(cluster: SimulatedCluster) -> bool:
    """Collect garbage; in some schedules with the shards of early stages. Returns True."""
    world = cluster.world
    run = RunFolder(cast("Store", cluster.store), RUN)
    drop = world.rng.choice((None, None, 1))
    try:
        collect(run, keep_checkpoints=world.rng.choice((1, 2)), drop_shards_before=drop)
    except ConfigError:  # fewer stages are committed
        collect(run)
    return True


def copy(cluster: SimulatedCluster, target: SimulatedStore) -> bool:
    """Copy the run into another store. Returns whether all of it is there, also if that is known from an error."""
    to = RunFolder(cast("Store", target), RUN)
    try:
        copy_run(RunFolder(cast("Store", cluster.store), RUN), to)
    except PenstockError as error:
        cluster.world.note(f"the copy failed: {error}")
        return to.exists()
    return True

"""Finds the stored objects from which an act task continues: after the stored rounds, or after the commit before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.storage import system
from penstock.storage.errors import ObjectNotFoundError
from penstock.tasks.runtime.stored_objects import stored_shards, stored_states

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.storage.refs import ShardRef, StateRef
    from penstock.storage.runs.commit_schema import Commit
    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.run_context import RunContext

_TRIES = 5
_REQUESTS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Starts:
    """The stored objects from which the tiles of an act task continue."""

    starts: list[tuple[StateRef, int] | None]
    """Each tile's state and next round; None at the run's beginning."""
    buffers: list[memoryview | None]
    """The contents of these states."""
    shards: Mapping[tuple[int, int], ShardRef]
    """The attempt's stored shards by (round, tile), of all tiles: shared with the other members of this process."""
    states: Mapping[tuple[int, int], StateRef]
    before: Commit | None


def find_starts(assignment: Assignment, context: RunContext, tiles: Iterable[int]) -> Starts:
    """Read the tiles' stored states, the lists of stored objects and the commit before, with concurrent requests.

    An earlier member that has not left yet may act one more round, and delete a state that was just listed: list again.

    Raises:
        ObjectNotFoundError: a state that is listed, or that the commit names, can't be found again and again.
        StageMismatchError: a round is stored twice, with different content.
    """
    store, which = context.run.store, (assignment.stage, assignment.attempt)
    rounds, whole = context.rounds_of(assignment.stage), context.config.requires_full_round
    with system.executor(_REQUESTS_AT_ONCE, "resume") as threads:
        committed = threads.submit(context.commit_before, assignment)
        for tries_left in reversed(range(_TRIES)):
            listed = threads.submit(context.state_listing.get, which, lambda: stored_states(store, *which))
            shards = context.shard_listing.get(which, lambda: stored_shards(store, *which))
            states = listed.result()
            before = committed.result()
            starts = [start_of(tile, rounds, before, shards, states, whole=whole) for tile in tiles]
            try:
                buffers = list(threads.map(lambda start: _state_of(context, start), starts))
            except ObjectNotFoundError:
                if not tries_left:
                    raise
                continue
            return Starts(starts, buffers, shards, states, before)
    raise AssertionError("the loop returns or raises")


def start_of(
    tile: int,
    rounds: range,
    before: Commit | None,
    shards: Mapping[tuple[int, int], ShardRef],
    states: Mapping[tuple[int, int], StateRef],
    *,
    whole: bool,
) -> tuple[StateRef, int] | None:
    """Return a tile's newest state whose shard is stored without a gap before it, and the next round.

    Args:
        tile: of the act task.
        rounds: of the stage.
        before: the commit before the stage.
        shards: the stage's stored shards by (round, tile).
        states: its stored environment states by (round, tile).
        whole: whether each tile acts all rounds; otherwise a round that it has skipped is not a gap.

    Returns:
        None at the run's beginning.
    """
    gap = rounds.stop
    if whole:
        gap = next((round_ for round_ in rounds if (round_, tile) not in shards), gap)
    both = [round_ for round_ in range(rounds.start, gap) if (round_, tile) in shards]
    kept = [round_ for round_ in both if (round_, tile) in states]
    if kept:
        return states[kept[-1], tile], kept[-1] + 1
    if before:
        return next(ref for ref in before.states if ref.tile == tile), rounds.start
    return None


def _state_of(context: RunContext, start: tuple[StateRef, int] | None) -> memoryview | None:
    return None if start is None else context.cache.get_buffer(context.run.store, start[0])

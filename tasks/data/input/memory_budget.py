"""The memory budget of a learner's input: its size, its shares, and a recommended minimum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.storage.transfer.ranged_reads import IN_FLIGHT, PART_BYTES

if TYPE_CHECKING:
    import logging

    from penstock.tasks.runtime.assignment import Assignment

BUDGET_BYTES = 256 << 20
"""Default budget, if two rounds need no more."""

_SMALLEST_BUDGET_BYTES = 1 << 20  # of the setting
_SMALLEST_PART_BYTES = _SMALLEST_BUDGET_BYTES // 4

_warned: set[tuple[str, str, int]] = set()


@dataclass(frozen=True, slots=True)
class BudgetShares:
    """The shares of a pipeline's budget."""

    held_bytes: int
    """Limit for shards that are read ahead or held."""
    part_bytes: int
    """Size of one ranged read."""
    in_flight: int
    """Limit of concurrent ranged reads: parts take memory, too, before they are copied to a shard's buffer."""


def share_out(budget_bytes: int, part_bytes: int, *, is_remote: bool, is_staged: bool) -> BudgetShares:
    """Divide a budget.

    Args:
        budget_bytes: the whole budget.
        part_bytes: size of one ranged read; less if a quarter of the budget is less.
        is_remote: whether shards are read in parts.
        is_staged: whether columns are copied through staging buffers. They are then in two places for a while: half of
            the budget is for each.
    """
    quarter = budget_bytes // 4
    part_bytes = min(part_bytes, max(_SMALLEST_PART_BYTES, quarter))
    in_flight = max(1, min(IN_FLIGHT, quarter // part_bytes))
    held_bytes = budget_bytes - in_flight * part_bytes if is_remote else budget_bytes
    return BudgetShares(max(1, held_bytes // 2 if is_staged else held_bytes), part_bytes, in_flight)


def enough_bytes(held_bytes: int, *, is_remote: bool, is_staged: bool) -> int:
    """Return the budget whose share for shards is this large."""
    nbytes = 2 * held_bytes if is_staged else held_bytes
    if is_remote:
        nbytes += min(IN_FLIGHT * PART_BYTES, -(-nbytes // 3))
    return max(_SMALLEST_BUDGET_BYTES, nbytes)


def read_budget_bytes(
    assignment: Assignment, log: logging.Logger, two_rounds_bytes: int, *, is_remote: bool, is_staged: bool
) -> int:
    """Return a learner's budget: `cluster.read_budget_bytes`, or what two rounds need, but at least the default.

    A smaller one gives the same rounds, only later. The warning about it is logged once for each drive of a run.

    Args:
        assignment: the learner's.
        log: gets the warning.
        two_rounds_bytes: size of the shards of the current round and the next one.
        is_remote: whether the store is remote.
        is_staged: whether the device is not the CPU.
    """
    enough = enough_bytes(two_rounds_bytes, is_remote=is_remote, is_staged=is_staged)
    given = assignment.read_budget_bytes
    if given is None:
        return max(BUDGET_BYTES, enough)
    drive = (assignment.store, assignment.run, assignment.generation)
    if given < enough and assignment.replica == 0 and drive not in _warned:
        _warned.add(drive)
        log.warning(
            "cluster.read_budget_bytes is %d, and the current round and the next one need %d: the next is not complete "
            "when the learner needs it, so the learner waits for the store. Set it to %d or more, or leave it out",
            given,
            enough,
            enough,
        )
    return given

"""The memory that a learner's input takes: what it may have, how that is shared out, and what would be enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage.ranges import IN_FLIGHT, PART_BYTES

if TYPE_CHECKING:
    import logging

    from tasks.assignment import Assignment

BUDGET_BYTES = 256 << 20
"""Where nobody said anything else, and two rounds need no more."""

_SMALLEST_BUDGET_BYTES = 1 << 20  # of the setting
_SMALLEST_PART_BYTES = _SMALLEST_BUDGET_BYTES // 4

_said: set[tuple[str, str, int]] = set()


@dataclass(frozen=True, slots=True)
class BudgetShares:
    """What a pipeline does with its budget."""

    held_bytes: int
    """Of shards that are read ahead or held."""
    part_bytes: int
    """Of one ranged read."""
    in_flight: int
    """Ranged reads under way: parts are memory as well, before they lie in a shard's buffer."""


def share_out(budget_bytes: int, part_bytes: int, *, is_remote: bool, is_staged: bool) -> BudgetShares:
    """Share a budget out.

    Args:
        budget_bytes: of everything.
        part_bytes: of one ranged read, less where a quarter of the budget is less.
        is_remote: whether shards come in parts.
        is_staged: whether columns are copied through staging buffers. They are in two places for a while: half is for
            each.
    """
    quarter = budget_bytes // 4
    part_bytes = min(part_bytes, max(_SMALLEST_PART_BYTES, quarter))
    in_flight = max(1, min(IN_FLIGHT, quarter // part_bytes))
    held_bytes = budget_bytes - in_flight * part_bytes if is_remote else budget_bytes
    return BudgetShares(max(1, held_bytes // 2 if is_staged else held_bytes), part_bytes, in_flight)


def enough_bytes(held_bytes: int, *, is_remote: bool, is_staged: bool) -> int:
    """A budget of which, shared out, so many bytes are for shards."""
    nbytes = 2 * held_bytes if is_staged else held_bytes
    if is_remote:
        nbytes += min(IN_FLIGHT * PART_BYTES, -(-nbytes // 3))
    return max(_SMALLEST_BUDGET_BYTES, nbytes)


def read_budget_bytes(
    assignment: Assignment, log: logging.Logger, two_rounds_bytes: int, *, is_remote: bool, is_staged: bool
) -> int:
    """A learner's budget: as `cluster.read_budget_bytes` says, otherwise what two rounds need, the default at least.

    With less than that, rounds come as they do otherwise, only later. It is said once for each drive of a run.

    Args:
        assignment: the learner's.
        log: where it is said.
        two_rounds_bytes: of the shards of the round that is learned and of the next one.
        is_remote: whether the store is.
        is_staged: whether the device is not the CPU.
    """
    enough = enough_bytes(two_rounds_bytes, is_remote=is_remote, is_staged=is_staged)
    given = assignment.read_budget_bytes
    if given is None:
        return max(BUDGET_BYTES, enough)
    drive = (assignment.store, assignment.run, assignment.generation)
    if given < enough and assignment.replica == 0 and drive not in _said:
        _said.add(drive)
        log.warning(
            "cluster.read_budget_bytes is %d, and the round that is learned and the next one need %d: the next is not "
            "all there when the learner comes for it, so it waits for the store. Set it to %d or more, or leave it out",
            given,
            enough,
            enough,
        )
    return given

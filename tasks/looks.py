"""When somebody who waits for a hint looks into storage: ever more seldom, and less often where many wait.

A look is a request, and those of a role's members wait for the same thing: where they share a process, one of them
looks. Hints are seldom lost, so what a look costs a store matters more than when it comes.
"""

from __future__ import annotations

_FIRST_SECONDS = 0.25
_FIRST_FAR_SECONDS = 0.05
_AT_MOST_SECONDS = 2.0
_LOOKS_PER_SECOND = 250.0
"""Of all who look of a role together; one prefix of S3 answers a few thousand requests a second."""


def first_pause_seconds(lookers: int, *, far: bool = False) -> float:
    """Before the first look.

    Args:
        lookers: members of the role, or processes in which they are, who may all be waiting.
        far: whether no hint can come, from another cluster, so that looking is all there is.
    """
    return max(_FIRST_FAR_SECONDS if far else _FIRST_SECONDS, lookers / _LOOKS_PER_SECOND)


def next_pause_seconds(pause_seconds: float, lookers: int) -> float:
    """After one more look: twice as long, up to two seconds or what so many members need."""
    return min(2 * pause_seconds, max(_AT_MOST_SECONDS, lookers / _LOOKS_PER_SECOND))

"""What a role's members do, which follows from the fragments that share their process. Knows no torch.

A member is composed of halves. Each half is a function of the member's assignment, run and membership; where a role
holds two, both run in the same process and meet where they would meet across processes: in storage, and by hints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from tasks.policies import Fragment

Half = Literal["env", "act", "learn", "server"]
Pools = Literal["local", "remote"]


@dataclass(frozen=True, slots=True)
class Composition:
    """The halves of a role's members; the last one runs in the task's own thread, others beside it."""

    halves: tuple[Half, ...]
    pools: Pools | None
    """Where the acting half's environments are: in its process, or with members that hold `env` alone."""


def compose(fragments: AbstractSet[Fragment]) -> Composition | None:
    """The composition for fragments that share a process; None if nothing plays them together.

    `act` and `collect` go together, because a step's rows are written where they are made, and so do `buffer` and
    `learn`. `sync` alone is a parameter server; beside `learn`, every learner takes the optimizer's steps itself.
    """
    acts, learns = fragments & {"act", "collect"}, fragments & {"buffer", "learn"}
    if fragments == {"env"}:
        return Composition(("env",), None)
    if fragments == {"sync"}:
        return Composition(("server",), None)
    if len(acts) == 1 or len(learns) == 1 or ("env" in fragments and not acts) or ("sync" in fragments and not learns):
        return None
    halves: tuple[Half, ...] = (*(("act",) if acts else ()), *(("learn",) if learns else ()))
    pools: Pools | None = None
    if acts:
        pools = "local" if "env" in fragments else "remote"
    return Composition(halves, pools) if halves else None

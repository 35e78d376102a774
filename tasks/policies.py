"""Distribution policies as data: which fragments of the loop run in which role, how often, on which resources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from storage.errors import ConfigError

Fragment = Literal["env", "act", "collect", "buffer", "learn", "sync"]
FRAGMENTS: tuple[Fragment, ...] = ("env", "act", "collect", "buffer", "learn", "sync")


PROGRAMS: dict[frozenset[Fragment], str] = {
    frozenset(("env", "act", "collect")): "act",
    frozenset(("buffer", "learn", "sync")): "learn",
}
"""What plays fragments that share a process, by the fragments."""


@dataclass(frozen=True, slots=True)
class Role:
    """Fragments that share a process, how many replicas of it there are, and what each takes from its Dask worker."""

    name: str
    fragments: frozenset[Fragment]
    replicas: int
    resources: tuple[tuple[str, float], ...]

    @property
    def program(self) -> str | None:
        """What plays the role; None if nothing does so far."""
        return PROGRAMS.get(self.fragments)


@dataclass(frozen=True, slots=True)
class DistributionPolicy:
    """A placement of all six fragments, or of those that learn alone where all data are stored already.

    Raises:
        ConfigError: a fragment is missing, or placed in two roles.
    """

    name: str
    roles: tuple[Role, ...]
    reduce: Literal["local", "allreduce", "parameter_server"] = "local"

    def __post_init__(self) -> None:
        placed = [fragment for role in self.roles for fragment in role.fragments]
        needed = FRAGMENTS if not placed or set(placed) & set(FRAGMENTS[:3]) else FRAGMENTS[3:]
        missing = [fragment for fragment in needed if fragment not in placed]
        twice = sorted({fragment for fragment in placed if placed.count(fragment) > 1})
        if missing or twice:
            raise ConfigError(
                f"policy '{self.name}' must place each of {', '.join(FRAGMENTS)} in exactly one role; "
                f"missing: {', '.join(missing) or 'none'}; placed twice: {', '.join(twice) or 'none'}"
            )

    @property
    def acts(self) -> bool:
        """Whether it has environments; otherwise it learns from what is stored."""
        return any("env" in role.fragments for role in self.roles)

    def role_of(self, fragment: Fragment) -> Role:
        """The role that holds a fragment."""
        return next(role for role in self.roles if fragment in role.fragments)


def single_learner_coarse(act_tasks: int) -> DistributionPolicy:
    """Actors with local inference send whole rounds to one learner (IMPALA, Acme, Menger)."""
    return DistributionPolicy(
        name="single_learner_coarse",
        roles=(
            Role("act", frozenset({"env", "act", "collect"}), act_tasks, (("actor", 1.0),)),
            Role("learn", frozenset({"buffer", "learn", "sync"}), 1, (("learner", 1.0),)),
        ),
    )


def learner_over_storage(act_tasks: int) -> DistributionPolicy:  # noqa: ARG001  (nothing acts)
    """One learner, and nobody who acts: a replay of what is stored."""
    return DistributionPolicy(
        name="learner_over_storage",
        roles=(Role("learn", frozenset({"buffer", "learn", "sync"}), 1, (("learner", 1.0),)),),
    )


POLICIES = {"single_learner_coarse": single_learner_coarse, "learner_over_storage": learner_over_storage}


def make_policy(name: str, act_tasks: int) -> DistributionPolicy:
    """Look a policy up by name.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in POLICIES:
        raise ConfigError(f"placement.policy = '{name}': no such policy; there are: {', '.join(POLICIES)}")
    return POLICIES[name](act_tasks)

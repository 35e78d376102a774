"""Distribution policies as data: which fragments of the loop run in which role, how often, on which resources."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from storage.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tasks.config import PlacementSettings

Fragment = Literal["env", "act", "collect", "buffer", "learn", "sync"]
FRAGMENTS: tuple[Fragment, ...] = ("env", "act", "collect", "buffer", "learn", "sync")


@dataclass(frozen=True, slots=True)
class Role:
    """Fragments that share a process, how many replicas of it there are, and what each takes from its Dask worker."""

    name: str
    fragments: frozenset[Fragment]
    replicas: int
    resources: tuple[tuple[str, float], ...]
    fewest: int | None = None
    """Replicas with which a stage may begin where there are no places for more; None: all."""

    @property
    def needed(self) -> int:
        """Replicas without which no stage begins."""
        return self.replicas if self.fewest is None else self.fewest


@dataclass(frozen=True, slots=True)
class DistributionPolicy:
    """A placement of all six fragments, or of those that learn alone where all data are stored already.

    Raises:
        ConfigError: a fragment is missing, or placed in two roles.
    """

    name: str
    roles: tuple[Role, ...]
    reduce: Literal["local", "allreduce", "parameter_server"] = "local"
    pools: Literal["native", "torch"] = "native"
    """What steps environments: the pools of `native`, or torch on the device where learning runs."""

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

    @property
    def learners(self) -> int:
        """Replicas that compute gradients."""
        return self.role_of("learn").replicas

    def over_storage(self) -> DistributionPolicy:
        """The part of it that learns, where all data are stored already and nobody acts."""
        learns = frozenset(FRAGMENTS[3:])
        roles = [replace(role, fragments=role.fragments & learns) for role in self.roles if role.fragments & learns]
        return replace(self, roles=tuple(roles), pools="native")

    def role_of(self, fragment: Fragment) -> Role:
        """The role that holds a fragment."""
        return next(role for role in self.roles if fragment in role.fragments)


def single_learner_coarse(act_tasks: int, min_act_tasks: int | None = None) -> DistributionPolicy:
    """Actors with local inference send whole rounds to one learner (IMPALA, Acme, Menger)."""
    return DistributionPolicy(
        name="single_learner_coarse",
        roles=(
            Role("act", frozenset({"env", "act", "collect"}), act_tasks, (("actor", 1.0),), min_act_tasks),
            Role("learn", frozenset({"buffer", "learn", "sync"}), 1, (("learner", 1.0),)),
        ),
    )


def single_learner_fine(env_tasks: int, min_env_tasks: int | None = None) -> DistributionPolicy:
    """One learner infers for environments that are stepped elsewhere (SEED RL)."""
    return DistributionPolicy(
        name="single_learner_fine",
        roles=(
            Role("env", frozenset({"env"}), env_tasks, (("actor", 1.0),), min_env_tasks),
            Role("learn", frozenset(FRAGMENTS) - {"env"}, 1, (("learner", 1.0),)),
        ),
    )


def multiple_learners(learn_tasks: int) -> DistributionPolicy:
    """Workers that act and learn on tiles of their own, and add up their gradients (DD-PPO)."""
    return DistributionPolicy(
        name="multiple_learners",
        roles=(Role("worker", frozenset(FRAGMENTS), learn_tasks, (("learner", 1.0),)),),
        reduce="allreduce",
    )


def gpu_only(learn_tasks: int) -> DistributionPolicy:
    """Workers as above, with environments in torch: a policy, its environments and learning share a device (Anakin)."""
    return DistributionPolicy(
        name="gpu_only",
        roles=(Role("worker", frozenset(FRAGMENTS), learn_tasks, (("learner", 1.0),)),),
        reduce="allreduce",
        pools="torch",
    )


def environments(env_tasks: int, learn_tasks: int, min_env_tasks: int | None = None) -> DistributionPolicy:
    """Environments on processes of their own, the rest on workers that add up their gradients (MSRL)."""
    return DistributionPolicy(
        name="environments",
        roles=(
            Role("env", frozenset({"env"}), env_tasks, (("actor", 1.0),), min_env_tasks),
            Role("worker", frozenset(FRAGMENTS) - {"env"}, learn_tasks, (("learner", 1.0),)),
        ),
        reduce="allreduce",
    )


def central(learn_tasks: int) -> DistributionPolicy:
    """Workers act and compute gradients; a server holds the optimizer and gives them parameters."""
    return DistributionPolicy(
        name="central",
        roles=(
            Role("worker", frozenset(FRAGMENTS) - {"sync"}, learn_tasks, (("learner", 1.0),)),
            Role("server", frozenset({"sync"}), 1, (("server", 1.0),)),
        ),
        reduce="parameter_server",
    )


def learner_over_storage() -> DistributionPolicy:
    """One learner, and nobody who acts: a replay of what is stored."""
    return DistributionPolicy(
        name="learner_over_storage",
        roles=(Role("learn", frozenset({"buffer", "learn", "sync"}), 1, (("learner", 1.0),)),),
    )


POLICIES: dict[str, Callable[[PlacementSettings], DistributionPolicy]] = {
    "single_learner_coarse": lambda settings: single_learner_coarse(settings.act_tasks, settings.min_act_tasks),
    "single_learner_fine": lambda settings: single_learner_fine(settings.env_tasks, settings.min_env_tasks),
    "multiple_learners": lambda settings: multiple_learners(settings.learn_tasks),
    "gpu_only": lambda settings: gpu_only(settings.learn_tasks),
    "environments": lambda settings: environments(settings.env_tasks, settings.learn_tasks, settings.min_env_tasks),
    "central": lambda settings: central(settings.learn_tasks),
    "learner_over_storage": lambda _: learner_over_storage(),
}


AUTO = "auto"
"""In place of a policy's name: the one whose rounds are predicted to be the shortest (`tasks.auto_policy`)."""


def own_policy(settings: PlacementSettings) -> DistributionPolicy:
    """A policy that `placement.roles` describes; how gradients are reduced follows from its roles.

    Raises:
        ConfigError: its name is taken, a fragment is missing or placed twice, or roles disagree about their pools.
    """
    name = settings.policy
    if name in POLICIES or name == AUTO:
        raise ConfigError(
            f"placement.roles describes a policy, and placement.policy = '{name}' is one that there is; give yours "
            f"another name, or leave placement.roles out"
        )
    roles = tuple(
        Role(
            role_name,
            frozenset(role.fragments),
            role.replicas if isinstance(role.replicas, int) else getattr(settings, role.replicas),
            tuple(sorted(role.resources.items())) or _usual_resources(frozenset(role.fragments)),
            # Who learns or syncs has as many replicas as the run began with: sums are rounded by it.
            None if {"learn", "sync"} & {*role.fragments} else getattr(settings, f"min_{role.replicas}", None),
        )
        for role_name, role in settings.roles.items()
    )
    holders = {fragment: name for name, role in settings.roles.items() for fragment in role.fragments}
    learner, pools = holders.get("learn"), holders.get("env")
    torch_roles = [role_name for role_name, role in settings.roles.items() if role.pools == "torch"]
    if any(role_name != pools for role_name in torch_roles):
        raise ConfigError(
            f"placement.roles: {', '.join(torch_roles)} has pools = 'torch'; only the role that holds env has pools"
        )
    reduce: Literal["local", "allreduce", "parameter_server"] = "local"
    if holders.get("sync") != learner:
        reduce = "parameter_server"
    elif learner is not None and settings.roles[learner].replicas != 1:
        reduce = "allreduce"
    return DistributionPolicy(name, roles, reduce, "torch" if torch_roles else "native")


def _usual_resources(fragments: frozenset[Fragment]) -> tuple[tuple[str, float], ...]:
    """What policies that ship take for such fragments."""
    kind = "learner" if "learn" in fragments else "server" if fragments == {"sync"} else "actor"
    return ((kind, 1.0),)


def make_policy(settings: PlacementSettings) -> DistributionPolicy:
    """The policy that settings name or describe, with as many replicas as they say.

    Raises:
        ConfigError: there is none of that name, or what they describe is none.
    """
    if settings.roles:
        return own_policy(settings)
    if settings.policy not in POLICIES:
        raise ConfigError(
            f"placement.policy = '{settings.policy}': no such policy; there are: {', '.join(POLICIES)}, {AUTO}"
        )
    return POLICIES[settings.policy](settings)


def unused_counts(settings: PlacementSettings) -> list[str]:
    """Which of `act_tasks`, `env_tasks` and `learn_tasks` are more than 1, and change nothing under the policy."""
    policy = make_policy(settings)
    return [
        name
        for name in ("act_tasks", "env_tasks", "learn_tasks")
        if getattr(settings, name) > 1 and make_policy(settings.model_copy(update={name: 1})) == policy
    ]

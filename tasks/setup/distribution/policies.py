"""Distribution policies as data: the roles of the loop's fragments, their replicas and their Dask resources."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from penstock.storage.errors import ConfigError
from penstock.tasks.setup.distribution.settings import FRAGMENTS, Fragment

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.tasks.setup.distribution.settings import DistributionSettings

Reduce = Literal["local", "allreduce", "parameter_server", "agents"]
"""The place where learners' gradients are added up. With `agents` nowhere: each owns the parameters of some agents."""


@dataclass(frozen=True, slots=True)
class Role:
    """Fragments that share a process, the number of replicas, and the Dask resources of each."""

    name: str
    fragments: frozenset[Fragment]
    replicas: int
    resources: tuple[tuple[str, float], ...]
    fewest: int | None = None
    """Fewest replicas with which a stage may begin if worker slots are short; None: all."""
    agents: tuple[tuple[int, ...], ...] | None = None
    """Agents of each replica, where learners own agents; None: an even split (`dataflow.agents_of`)."""

    @property
    def needed(self) -> int:
        """Return the number of replicas that a stage needs to begin."""
        return self.replicas if self.fewest is None else self.fewest


@dataclass(frozen=True, slots=True)
class DistributionPolicy:
    """A distribution of all six fragments, or only of those that learn from stored data.

    Raises:
        ConfigError: a fragment is missing, or placed in two roles.
    """

    name: str
    roles: tuple[Role, ...]
    reduce: Reduce = "local"
    pools: Literal["native", "torch"] = "native"
    """Pools that step the environments: those of `native`, or torch on the learner's device."""

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
    def has_actors(self) -> bool:
        """Return whether it has environments; otherwise it learns from stored shards."""
        return any("env" in role.fragments for role in self.roles)

    @property
    def learners(self) -> int:
        """Return the number of replicas that compute gradients."""
        return self.role_of("learn").replicas

    def share_of_rows(self, replica: int, replicas: int) -> tuple[int, int]:
        """Return the part of each round's rows that a learner learns, as number and count: of agents' owners, all."""
        return (0, 1) if self.reduce == "agents" else (replica, replicas)

    def over_storage(self) -> DistributionPolicy:
        """Return the learning part of the policy, for runs without actors whose data are all stored."""
        learns = frozenset(FRAGMENTS[3:])
        roles = [replace(role, fragments=role.fragments & learns) for role in self.roles if role.fragments & learns]
        return replace(self, roles=tuple(roles), pools="native")

    def role_of(self, fragment: Fragment) -> Role:
        """Return the role that holds a fragment."""
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
    """Workers act and learn on their own tiles, and all-reduce their gradients (DD-PPO)."""
    return DistributionPolicy(
        name="multiple_learners",
        roles=(Role("worker", frozenset(FRAGMENTS), learn_tasks, (("learner", 1.0),)),),
        reduce="allreduce",
    )


def gpu_only(learn_tasks: int) -> DistributionPolicy:
    """Workers as above, with environments in torch: inference, environments and learning share a device (Anakin)."""
    return DistributionPolicy(
        name="gpu_only",
        roles=(Role("worker", frozenset(FRAGMENTS), learn_tasks, (("learner", 1.0),)),),
        reduce="allreduce",
        pools="torch",
    )


def environments(env_tasks: int, learn_tasks: int, min_env_tasks: int | None = None) -> DistributionPolicy:
    """Environments are stepped in separate processes; workers do the rest and all-reduce their gradients (MSRL)."""
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


def agents(act_tasks: int, learn_tasks: int, min_act_tasks: int | None = None) -> DistributionPolicy:
    """Actors send whole rounds to learners, each of which trains the parameters of some agents (MSRL's MAPPO)."""
    coarse = single_learner_coarse(act_tasks, min_act_tasks)
    actors, learner = coarse.roles
    return DistributionPolicy("agents", (actors, replace(learner, replicas=learn_tasks)), reduce="agents")


def learner_over_storage() -> DistributionPolicy:
    """One learner without actors: a replay of stored shards."""
    return DistributionPolicy(
        name="learner_over_storage",
        roles=(Role("learn", frozenset({"buffer", "learn", "sync"}), 1, (("learner", 1.0),)),),
    )


POLICIES: dict[str, Callable[[DistributionSettings], DistributionPolicy]] = {
    "single_learner_coarse": lambda settings: single_learner_coarse(settings.act_tasks, settings.min_act_tasks),
    "single_learner_fine": lambda settings: single_learner_fine(settings.env_tasks, settings.min_env_tasks),
    "multiple_learners": lambda settings: multiple_learners(settings.learn_tasks),
    "gpu_only": lambda settings: gpu_only(settings.learn_tasks),
    "environments": lambda settings: environments(settings.env_tasks, settings.learn_tasks, settings.min_env_tasks),
    "central": lambda settings: central(settings.learn_tasks),
    "agents": lambda settings: agents(settings.act_tasks, settings.learn_tasks, settings.min_act_tasks),
    "learner_over_storage": lambda _: learner_over_storage(),
}
AUTO = "auto"
"""The name that chooses the policy with the shortest predicted round (`planning.auto_policy`)."""


def custom_policy(settings: DistributionSettings) -> DistributionPolicy:
    """Return the policy that `distribution.roles` describes; its roles determine how gradients are reduced.

    Raises:
        ConfigError: its name is taken, a fragment is missing or placed twice, or roles disagree about their pools.
    """
    name = settings.policy
    if name in POLICIES or name == AUTO:
        raise ConfigError(
            f"distribution.roles describes a policy, and distribution.policy = '{name}' is a built-in one; "
            f"choose another name, or leave distribution.roles out"
        )
    for role_name, role in settings.roles.items():
        if twice := sorted({fragment for fragment in role.fragments if role.fragments.count(fragment) > 1}):
            raise ConfigError(
                f"distribution.roles.{role_name}.fragments = {list(role.fragments)}: {', '.join(twice)} is there "
                f"twice; name each once"
            )
    roles = tuple(
        Role(
            role_name,
            frozenset(role.fragments),
            role.replicas if isinstance(role.replicas, int) else getattr(settings, role.replicas),
            tuple(sorted(role.resources.items())) or _usual_resources(frozenset(role.fragments)),
            # Roles that learn or sync keep their number of replicas: it decides how sums are rounded.
            None if {"learn", "sync"} & {*role.fragments} else getattr(settings, f"min_{role.replicas}", None),
            role.agents,
        )
        for role_name, role in settings.roles.items()
    )
    holders = {fragment: name for name, role in settings.roles.items() for fragment in role.fragments}
    learner, pools = holders.get("learn"), holders.get("env")
    torch_roles = [role_name for role_name, role in settings.roles.items() if role.pools == "torch"]
    if any(role_name != pools for role_name in torch_roles):
        raise ConfigError(
            f"distribution.roles: {', '.join(torch_roles)} has pools = 'torch'; only the role that holds env has pools"
        )
    idle = [role_name for role_name, role in settings.roles.items() if role.agents is not None and role_name != learner]
    if idle:
        raise ConfigError(
            f"distribution.roles: {', '.join(idle)} has agents; only the role that holds learn trains parameters of "
            f"agents: leave agents out there"
        )
    reduce: Reduce = "local"
    if learner is not None and settings.roles[learner].agents is not None:
        reduce = "agents"
    elif holders.get("sync") != learner:
        reduce = "parameter_server"
    elif learner is not None and settings.roles[learner].replicas != 1:
        reduce = "allreduce"
    return DistributionPolicy(name, roles, reduce, "torch" if torch_roles else "native")


def _usual_resources(fragments: frozenset[Fragment]) -> tuple[tuple[str, float], ...]:
    """Return the resources that built-in policies take for such fragments."""
    kind = "learner" if "learn" in fragments else "server" if fragments == {"sync"} else "actor"
    return ((kind, 1.0),)


def make_policy(settings: DistributionSettings) -> DistributionPolicy:
    """Build the policy that settings name or describe, with their numbers of replicas.

    Raises:
        ConfigError: there is no policy of that name, or the roles do not make a policy.
    """
    if settings.roles:
        return custom_policy(settings)
    if settings.policy not in POLICIES:
        raise ConfigError(
            f"distribution.policy = '{settings.policy}': no such policy; there are: {', '.join(POLICIES)}, {AUTO}"
        )
    return POLICIES[settings.policy](settings)


def owns_agents(settings: DistributionSettings) -> bool:
    """Return whether learners own agents instead of tiles; also of settings that do not make a policy."""
    if settings.roles:
        return any(role.agents is not None for role in settings.roles.values())
    return settings.policy == "agents"


def unused_counts(settings: DistributionSettings) -> dict[str, int | None]:
    """Return the defaults of the numbers of tasks that are not at them and have no effect under the policy."""
    policy = make_policy(settings)
    unused: dict[str, int | None] = {
        "act_tasks": 1,
        "env_tasks": 1,
        "learn_tasks": 1,
        "min_act_tasks": None,
        "min_env_tasks": None,
    }
    return {
        name: default
        for name, default in unused.items()
        if getattr(settings, name) != default and make_policy(settings.model_copy(update={name: default})) == policy
    }

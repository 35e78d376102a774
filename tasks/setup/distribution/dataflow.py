"""Derives from a policy the edges of the loop that cross a process border, and the communication of each.

Communication is never declared: it is computed here from the roles. If the runtime lacks a kind of communication, the
policy is refused by the name of the edge, before anything starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock.storage.errors import ConfigError
from penstock.tasks.setup.distribution.settings import FRAGMENTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from penstock.tasks.setup.distribution.policies import DistributionPolicy, Role
    from penstock.tasks.setup.distribution.settings import Fragment


Component = Literal["env", "act", "learn", "server"]
Pools = Literal["local", "remote"]


@dataclass(frozen=True, slots=True)
class Composition:
    """The components of a role's members; the last one runs in the task's main thread, the others concurrently."""

    components: tuple[Component, ...]
    pools: Pools | None
    """The acting component's environments: in its process (local), or with members that hold `env` alone (remote)."""


def compose(fragments: AbstractSet[Fragment]) -> Composition | None:
    """Return the composition for fragments that share a process; None if no program runs them together.

    `act` and `collect` go together, because a step's rows are written in the process that makes them; so do `buffer`
    and `learn`. `sync` alone is a parameter server; together with `learn`, every learner takes optimizer steps.
    """
    acts, learns = fragments & {"act", "collect"}, fragments & {"buffer", "learn"}
    if fragments == {"env"}:
        return Composition(("env",), None)
    if fragments == {"sync"}:
        return Composition(("server",), None)
    if len(acts) == 1 or len(learns) == 1 or ("env" in fragments and not acts) or ("sync" in fragments and not learns):
        return None
    components: tuple[Component, ...] = (*(("act",) if acts else ()), *(("learn",) if learns else ()))
    pools: Pools | None = None
    if acts:
        pools = "local" if "env" in fragments else "remote"
    return Composition(components, pools) if components else None


Granularity = Literal["step", "round", "minibatch"]
Communication = Literal["gather", "scatter", "broadcast", "reduce"]


@dataclass(frozen=True, slots=True)
class Edge:
    """Fields that flow from one fragment to another, and their frequency."""

    source: Fragment
    target: Fragment
    fields: tuple[str, ...]
    granularity: Granularity

    @property
    def name(self) -> str:
        """Return the edge as in `learn -> sync`."""
        return f"{self.source} -> {self.target}"


EDGES: tuple[Edge, ...] = (
    Edge("env", "act", ("observation",), "step"),
    Edge("act", "env", ("action",), "step"),
    Edge("env", "collect", ("observation", "reward", "terminated", "truncated"), "step"),
    Edge("act", "collect", ("action", "rows"), "step"),
    Edge("collect", "buffer", ("shard",), "round"),
    Edge("buffer", "learn", ("rows",), "minibatch"),
    Edge("learn", "sync", ("gradients",), "minibatch"),
    Edge("sync", "learn", ("parameters",), "minibatch"),
    Edge("sync", "act", ("snapshot",), "round"),
)
_SHARD, _GRADIENTS, _SNAPSHOT = EDGES[4], EDGES[-3], EDGES[-1]
_SUMS = Edge("learn", "learn", ("sums",), "round")
_OWNED = Edge("learn", "learn", ("parameters", "optimizer"), "round")


@dataclass(frozen=True, slots=True)
class CutEdge:
    """An edge between two roles, and the communication that it needs."""

    edge: Edge
    source: Role
    target: Role
    communication: Communication

    def __str__(self) -> str:
        """Return it as in `collect -> buffer, a round, gather: act -> learn`."""
        edge = self.edge
        return f"{edge.name}, a {edge.granularity}, {self.communication}: {self.source.name} -> {self.target.name}"


def cut_edges(policy: DistributionPolicy) -> tuple[CutEdge, ...]:
    """Return the edges between different roles."""
    cut = []
    placed = {fragment for role in policy.roles for fragment in role.fragments}
    for edge in EDGES:
        if not {edge.source, edge.target} <= placed:
            continue
        source, target = policy.role_of(edge.source), policy.role_of(edge.target)
        if source is not target:
            cut.append(CutEdge(edge, source, target, _communication(edge, source, target, policy)))
    return tuple(cut)


def crossings(policy: DistributionPolicy) -> tuple[CutEdge, ...]:
    """Return all edges that cross processes: cut edges, and edges between replicas of one role.

    The latter are sums and gradients that learners reduce among themselves, and snapshots that the first one publishes.
    Learners that own agents reduce nothing: each reads every shard, and sends what it owns to the others once a round.
    """
    learner, syncer = policy.role_of("learn"), policy.role_of("sync")
    within: list[CutEdge] = []
    if learner.replicas > 1 and policy.reduce == "agents":
        within.append(CutEdge(_OWNED, learner, learner, "broadcast"))
        if policy.has_actors and policy.role_of("collect") is learner:
            within.append(CutEdge(_SHARD, learner, learner, "broadcast"))
    elif learner.replicas > 1:
        within.append(CutEdge(_SUMS, learner, learner, "reduce"))
        if syncer is learner:
            within.append(CutEdge(_GRADIENTS, learner, learner, "reduce"))
    if policy.has_actors and syncer is policy.role_of("act") and syncer.replicas > 1:
        within.append(CutEdge(_SNAPSHOT, syncer, syncer, "broadcast"))
    return (*cut_edges(policy), *within)


def crosses(policy: DistributionPolicy, edge: str) -> bool:
    """Return whether an edge, such as `learn -> sync`, crosses processes."""
    return any(item.edge.name == edge for item in crossings(policy))


def _communication(edge: Edge, source: Role, target: Role, policy: DistributionPolicy) -> Communication:
    if edge.fields == ("gradients",):
        return "reduce"
    if edge.fields in (("snapshot",), ("parameters",)) or (edge is _SHARD and policy.reduce == "agents"):
        return "broadcast"
    return "gather" if source.replicas >= target.replicas else "scatter"


def check_supported(policy: DistributionPolicy) -> tuple[CutEdge, ...]:
    """Return the cut edges, if the runtime has the communication that each needs.

    Rounds cross processes through storage, steps over links to members that hold env alone, gradients and parameters
    by the policy's reduction.

    Raises:
        ConfigError: the runtime has no communication for a cut edge, several learners do not reduce their gradients,
            or a role holds fragments that no program runs together.
    """
    cut = cut_edges(policy)
    for item in cut:
        if item.edge.granularity != "round" and not (_is_linked(item) or _is_reduced(item.edge, policy)):
            raise ConfigError(
                f"policy '{policy.name}' cuts '{item}'; apart from edges that fire once a round, only those of a role "
                f"that holds env alone, and gradients and parameters of a parameter server, can cross processes"
            )
    learner, syncer = policy.role_of("learn"), policy.role_of("sync")
    if policy.reduce == "local" and learner.replicas != 1:
        raise ConfigError(
            f"policy '{policy.name}' has {learner.replicas} replicas of '{learner.name}', which holds learn, and "
            f"reduces gradients by 'local'; several learners must reduce their gradients together"
        )
    if (policy.reduce == "parameter_server") != (syncer is not learner) or (
        policy.reduce == "parameter_server" and syncer.replicas != 1
    ):
        raise ConfigError(
            f"policy '{policy.name}' reduces gradients by '{policy.reduce}' and has sync in {syncer.replicas} x "
            f"'{syncer.name}' and learn in '{learner.name}'; one separate server holds sync under "
            f"'parameter_server', and the learners themselves otherwise"
        )
    if policy.pools == "torch" and not policy.role_of("env").fragments >= set(FRAGMENTS[:3]):
        raise ConfigError(
            f"policy '{policy.name}' has pools in torch in '{policy.role_of('env').name}', which does not act; put "
            f"env, act and collect into one role, or leave its pools native"
        )
    for role in policy.roles:
        if compose(role.fragments) is None:
            raise ConfigError(
                f"policy '{policy.name}' puts {', '.join(sorted(role.fragments))} together in '{role.name}', which no "
                f"component implements; expected act with collect, buffer with learn, env with act or alone, and sync "
                f"with learn or alone"
            )
    return cut


def is_stored(item: CutEdge) -> bool:
    """Return whether an edge goes through storage, and so needs no connection between the processes."""
    return item.edge.fields in (("shard",), ("snapshot",))


def works_in_step(policy: DistributionPolicy) -> bool:
    """Return whether members synchronise within a round, so that losing one restarts the stage for all.

    Otherwise a lost member is restarted at its last stored round, and the others continue.
    """
    return policy.reduce != "local" or any(item.edge.granularity != "round" for item in cut_edges(policy))


def _is_linked(item: CutEdge) -> bool:
    return item.edge.granularity == "step" and {"env"} in (item.source.fragments, item.target.fragments)


def _is_reduced(edge: Edge, policy: DistributionPolicy) -> bool:
    return policy.reduce == "parameter_server" and {edge.source, edge.target} == {"learn", "sync"}


def agents_of(role: Role, replica: int, agents: int) -> tuple[int, ...]:
    """Return the agents that a replica owns: those that its role lists, or contiguous ones, split evenly as tiles."""
    return tuple(tiles_of(replica, role.replicas, agents)) if role.agents is None else role.agents[replica]


def check_agents(
    policy: DistributionPolicy, environment: str, agents: int, losses: Iterable[Sequence[int] | None] = ()
) -> None:
    """Check that every agent of an environment has exactly one learner, and every learner an agent.

    Args:
        policy: its learners own agents.
        environment: its name, for messages.
        agents: of the environment.
        losses: the agents of each loss, where one may have several.

    Raises:
        ConfigError: there is another number of entries than learners or an empty one, agents are missing, listed
            twice or unknown, there are fewer than learners, the agents of a loss have several learners, or a learner
            has no loss.
    """
    role = policy.role_of("learn")
    if role.agents is not None and not (role.agents and all(role.agents)):
        raise ConfigError(
            f"distribution.roles.{role.name}.agents = {[list(part) for part in role.agents]}: expected an entry for "
            f"each learner, with one agent at least; give every learner agents, or leave the list out"
        )
    if role.agents is not None and len(role.agents) != role.replicas:
        raise ConfigError(
            f"distribution.roles.{role.name}.agents has {len(role.agents)} entries, and the role {role.replicas} "
            f"replicas, expected one entry each; set distribution.roles.{role.name}.replicas = 'learn_tasks' and "
            f"distribution.learn_tasks = {len(role.agents)}"
        )
    owned = [agents_of(role, replica, agents) for replica in range(role.replicas)]
    every = [agent for part in owned for agent in part]
    if sorted(every) != list(range(agents)):
        missing, unknown = sorted({*range(agents)} - {*every}), sorted({*every} - {*range(agents)})
        twice = sorted({agent for agent in every if every.count(agent) > 1})
        raise ConfigError(
            f"distribution.roles.{role.name}.agents = {[list(part) for part in owned]}: {environment} has the agents "
            f"{list(range(agents))}, and each must have exactly one learner; missing: {missing or 'none'}; listed "
            f"twice: {twice or 'none'}; unknown: {unknown or 'none'}. Correct the list"
        )
    if not all(owned):
        raise ConfigError(
            f"policy '{policy.name}' has {role.replicas} learners, and {environment} only {agents} agents, so "
            f"{owned.count(())} would have none; set distribution.learn_tasks to {agents} at most, with an agent at "
            f"least for each"
        )
    trained = [{*(together or ())} for together in losses]
    apart = [sorted(together) for together in trained if not any(together <= {*part} for part in owned)]
    idle = [list(part) for part in owned if trained and not any(together <= {*part} for together in trained)]
    if apart or idle:
        raise ConfigError(
            f"policy '{policy.name}' gives its learners the agents {[list(part) for part in owned]}, expected one "
            f"learner for the agents of each loss, and a loss for each learner; losses whose agents have several "
            f"learners: {apart or 'none'}; learners without a loss: {idle or 'none'}. Set "
            f"distribution.roles.{role.name}.agents accordingly"
        )


def tiles_of(replica: int, replicas: int, tiles: int) -> range:
    """Return the tiles that a replica owns: contiguous, and as evenly split as possible."""
    return range(replica * tiles // replicas, (replica + 1) * tiles // replicas)


def owner_of(tile: int, replicas: int, tiles: int) -> int:
    """Return the replica that owns a tile, as in `tiles_of`."""
    return ((tile + 1) * replicas - 1) // tiles

"""What follows from a placement: which edges of the loop cross a process border, and what each then needs.

Nobody writes the communication down: it is computed here from the roles. A runtime that lacks a kind of communication
refuses the policy by the name of the edge, before anything starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from storage.errors import ConfigError
from tasks.composition import compose
from tasks.policies import FRAGMENTS

if TYPE_CHECKING:
    from tasks.cluster_settings import ClusterSettings
    from tasks.policies import DistributionPolicy, Fragment, Role

Granularity = Literal["step", "round", "minibatch"]
Communication = Literal["gather", "scatter", "broadcast", "reduce"]


@dataclass(frozen=True, slots=True)
class Edge:
    """Fields that flow from one fragment to another, and how often."""

    source: Fragment
    target: Fragment
    fields: tuple[str, ...]
    granularity: Granularity

    @property
    def name(self) -> str:
        """`learn -> sync`."""
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
_GRADIENTS, _SNAPSHOT = EDGES[-3], EDGES[-1]
_SUMS = Edge("learn", "learn", ("sums",), "round")


@dataclass(frozen=True, slots=True)
class CutEdge:
    """An edge between two roles, and the communication that it needs."""

    edge: Edge
    source: Role
    target: Role
    communication: Communication

    def __str__(self) -> str:
        """`collect -> buffer, a round, gather: act -> learn`."""
        edge = self.edge
        return f"{edge.name}, a {edge.granularity}, {self.communication}: {self.source.name} -> {self.target.name}"


def cut_edges(policy: DistributionPolicy) -> tuple[CutEdge, ...]:
    """Edges whose ends lie in different roles."""
    cut = []
    placed = {fragment for role in policy.roles for fragment in role.fragments}
    for edge in EDGES:
        if not {edge.source, edge.target} <= placed:
            continue
        source, target = policy.role_of(edge.source), policy.role_of(edge.target)
        if source is not target:
            cut.append(CutEdge(edge, source, target, _communication(edge, source, target)))
    return tuple(cut)


def crossings(policy: DistributionPolicy) -> tuple[CutEdge, ...]:
    """All that crosses processes: cut edges, and edges within a role whose replicas need what only others have.

    Those are sums and gradients that learners reduce among themselves, and snapshots that the first one publishes.
    """
    learner, syncer = policy.role_of("learn"), policy.role_of("sync")
    within: list[CutEdge] = []
    if learner.replicas > 1:
        within.append(CutEdge(_SUMS, learner, learner, "reduce"))
        if syncer is learner:
            within.append(CutEdge(_GRADIENTS, learner, learner, "reduce"))
    if policy.acts and syncer is policy.role_of("act") and syncer.replicas > 1:
        within.append(CutEdge(_SNAPSHOT, syncer, syncer, "broadcast"))
    return (*cut_edges(policy), *within)


def crosses(policy: DistributionPolicy, edge: str) -> bool:
    """Whether an edge, `learn -> sync`, crosses processes."""
    return any(item.edge.name == edge for item in crossings(policy))


def _communication(edge: Edge, source: Role, target: Role) -> Communication:
    if edge.fields == ("gradients",):
        return "reduce"
    if edge.fields in (("snapshot",), ("parameters",)):
        return "broadcast"
    return "gather" if source.replicas >= target.replicas else "scatter"


def check_supported(policy: DistributionPolicy) -> tuple[CutEdge, ...]:
    """The cut edges, if the runtime has the communication that each needs.

    Rounds cross processes through storage, steps over links to members that hold env alone, gradients and parameters
    by the policy's reduction.

    Raises:
        ConfigError: an edge is cut that nothing carries, learners that reduce nothing are several, or a role holds
            fragments that no program plays together.
    """
    cut = cut_edges(policy)
    for item in cut:
        if item.edge.granularity != "round" and not (_is_linked(item) or _is_reduced(item.edge, policy)):
            raise ConfigError(
                f"policy '{policy.name}' cuts '{item}'; beside edges that fire once a round, only those of a role that "
                f"holds env alone, and gradients and parameters of a parameter server, can cross processes"
            )
    learner, syncer = policy.role_of("learn"), policy.role_of("sync")
    if policy.reduce == "local" and learner.replicas != 1:
        raise ConfigError(
            f"policy '{policy.name}' has {learner.replicas} replicas of '{learner.name}', which holds learn, and "
            f"reduces gradients by 'local'; several learners have to reduce their gradients together"
        )
    if (policy.reduce == "parameter_server") != (syncer is not learner) or (
        policy.reduce == "parameter_server" and syncer.replicas != 1
    ):
        raise ConfigError(
            f"policy '{policy.name}' reduces gradients by '{policy.reduce}' and has sync in {syncer.replicas} x "
            f"'{syncer.name}' and learn in '{learner.name}'; one server of its own holds sync under "
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
                f"policy '{policy.name}' puts {', '.join(sorted(role.fragments))} together in '{role.name}', which "
                f"nothing plays; act goes with collect, buffer with learn, env with act, sync with learn, and env or "
                f"sync may be alone"
            )
    return cut


def check_clusters(policy: DistributionPolicy, cluster: ClusterSettings) -> None:
    """Refuse roles on Dask clusters between which something would have to go that storage does not carry.

    Raises:
        ConfigError: a role is named that there is not, or what happens within a round lies on several clusters.
    """
    known = [role.name for role in policy.roles]
    unknown = sorted(set(cluster.schedulers) - set(known))
    if unknown:
        raise ConfigError(
            f"cluster.schedulers names {', '.join(unknown)}: policy '{policy.name}' has the roles {', '.join(known)}"
        )
    for item in crossings(policy):
        roles = dict.fromkeys((item.source.name, item.target.name))
        where = {address for role in roles for address in cluster.schedulers_of(role)}
        if not is_stored(item) and len(where) > 1:
            raise ConfigError(
                f"cluster.schedulers puts {' and '.join(roles)} on "
                f"{', '.join(sorted(address or 'this machine' for address in where))}, and policy '{policy.name}' has "
                f"'{item}'. Only shards and snapshots go between clusters, through storage: name one scheduler for "
                f"{' and '.join(roles)}, or choose single_learner_coarse"
            )


def is_stored(item: CutEdge) -> bool:
    """Whether an edge goes through storage, and so between processes that don't reach each other."""
    return item.edge.granularity == "round" and item.communication != "reduce"


def works_in_step(policy: DistributionPolicy) -> bool:
    """Whether members wait for each other within a round, so that losing one ends the attempt for all.

    Otherwise who is lost is started again where it was, and everybody else goes on.
    """
    return policy.reduce != "local" or any(item.edge.granularity != "round" for item in cut_edges(policy))


def _is_linked(item: CutEdge) -> bool:
    return item.edge.granularity == "step" and {"env"} in (item.source.fragments, item.target.fragments)


def _is_reduced(edge: Edge, policy: DistributionPolicy) -> bool:
    return policy.reduce == "parameter_server" and {edge.source, edge.target} == {"learn", "sync"}


def tiles_of(replica: int, replicas: int, tiles: int) -> range:
    """Tiles that a replica owns: contiguous, whole, and as even as can be."""
    return range(replica * tiles // replicas, (replica + 1) * tiles // replicas)


def owner_of(tile: int, replicas: int, tiles: int) -> int:
    """The replica that owns a tile, as `tiles_of` has it."""
    return ((tile + 1) * replicas - 1) // tiles

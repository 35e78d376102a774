"""The hosts, the network and the caches on which simulated flows run their members."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from penstock.storage.cache.node_cache import make_content
from penstock.storage.runs.run import RunFolder
from penstock.tasks.runtime.run_context import RunContext
from penstock.tasks.setup.config.replay import build_stored_config
from penstock.tasks.simulation.memory import check_once

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from penstock.storage.cache.node_cache import CacheTally, Make, NodeCache
    from penstock.storage.refs import Ref
    from penstock.storage.stores.protocol import Store
    from penstock.tasks.model.algorithms.contract import Algorithm
    from penstock.tasks.setup.config.run import RunConfig
    from penstock.tasks.setup.distribution.policies import DistributionPolicy
    from penstock.tasks.simulation.store import SimulatedStore
    from penstock.tasks.simulation.world import Host, SimulatedProcess, World
    from penstock.tasks.specs import EnvironmentSpec

RUN = "simulated"


@dataclass(frozen=True, slots=True)
class Network:
    """The quality of notifications between members."""

    loss: float
    """Share that never arrives."""
    repeated: float
    """Share that arrives twice."""
    delay_seconds: float
    """Upper bound; so they also overtake each other."""


@cache
def make_config(
    lag: int, quorum: float, act_tasks: int, max_stages: int, *, differences: bool
) -> tuple[RunConfig, DistributionPolicy]:
    """Return the settings of a simulated run, and its policy; made once, because checks of settings take long."""
    reduced = {"snapshot_dtype": "bfloat16", "snapshot_differences": True} if differences else {}
    config = build_stored_config(
        {
            "name": RUN,
            "environment": {"id": "CartPole-v1", "num_envs": 2, "envs_per_tile": 1},
            "algorithm": {"name": "ppo"},
            "schedule": {"round_steps": 16, "rounds_per_stage": 2, "max_stages": max_stages, "lag": lag},
            "distribution": {"act_tasks": act_tasks, "quorum": quorum, **reduced},
        }
    )
    return config, config.make_policy()


@dataclass(slots=True)
class SimulatedCluster:
    """The hosts on which a schedule's flows run, and their run."""

    world: World
    hosts: list[Host]
    network: Network
    store: SimulatedStore
    config: RunConfig
    policy: DistributionPolicy
    ends_with_flow: bool
    """Members end with their flow, as workers that it started; otherwise they notice that its lease expires."""
    extended_stages: int = 0
    """Stages to which the run is extended once it is finished; 0: it is not."""
    _members: dict[SimulatedProcess, list[SimulatedProcess]] = field(default_factory=dict)

    @property
    def run(self) -> RunFolder:
        """Return the run's folder."""
        return RunFolder(cast("Store", self.store), RUN, is_fenced=self.store.is_fenced)

    def context_on(self, host: Host) -> RunContext:
        """Return the run as a member on a host sees it. Nothing of a simulated member steps or learns."""
        return RunContext(
            config=self.config,
            run=self.run,
            cache=cast("NodeCache", SimulatedCache(host)),
            environment=cast("EnvironmentSpec", None),
            algorithm=cast("Algorithm", None),
            policy=self.policy,
        )

    def joined(self, member: SimulatedProcess, flow: SimulatedProcess) -> None:
        """Remember the members of a flow."""
        self._members.setdefault(flow, []).append(member)

    def close(self) -> None:
        """Let go of the processes."""
        self._members.clear()

    def flow_ended(self, flow: SimulatedProcess) -> None:
        """End the members of a flow's own workers a moment after it."""
        if self.ends_with_flow:
            for member in self._members.pop(flow, []):
                self.world.after(self.world.rng.random() * 3.0, member.end, None)


class SimulatedCache:
    """A node's cache: what a process of a host has downloaded or made. A local store needs none."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def get_buffer(
        self,
        store: Store,
        ref: Ref,
        tally: CacheTally | None = None,  # noqa: ARG002
        make: Make | None = None,
    ) -> memoryview:
        """Return an object's content; verified if it is from an object store."""
        if store.path(ref.name) is not None:
            return store.view(ref.name)
        found = self._host.cache.get(ref.digest)
        if found is None:
            made = make_content(ref, make)
            found = store.read(ref.name) if made is None else bytes(made)
            check_once(found, ref)
            self._host.cache[ref.digest] = found
        return memoryview(bytearray(found))

    get: Any = get_buffer

    def put(self, store: Store, ref: Ref, parts: Sequence[Buffer]) -> None:
        """Keep an object that this host made."""
        if store.path(ref.name) is None:
            self._host.cache[ref.digest] = b"".join(bytes(part) for part in parts)

    def find(self, ref: Ref) -> memoryview | None:
        """Return the content if the host has it."""
        found = self._host.cache.get(ref.digest)
        return None if found is None else memoryview(bytearray(found))

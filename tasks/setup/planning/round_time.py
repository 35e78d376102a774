"""Predicts the seconds of a round under a policy from the times of its parts. Imports no torch.

A round takes as long as its longest chain of work, and no less than the cores need for the work of all processes, which
share one host here. At lag 0 acting and learning take turns; at a greater lag they overlap if they have separate
processes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.tasks.setup.config.run import RunConfig
    from penstock.tasks.setup.distribution.policies import DistributionPolicy
    from penstock.tasks.setup.planning.traffic import Sizes

_HINT_SECONDS = 0.002
"""From storing an object to its announcement in another process: a message through Dask."""


@dataclass(frozen=True, slots=True)
class PartSeconds:
    """Seconds of the parts of a round, each measured alone. CPU seconds are those of a core that no other one slows.

    Seconds in which other programs had the measuring thread's core are left out, where the kernel counts them.
    """

    step: float
    """Stepping a tile's native environments once."""
    step_cpu: float
    """CPU seconds of the same; less than `step` for an environment that waits."""
    infer: float
    """Inference of a tile's actions once, with its rows written."""
    write: float
    """Encoding and storing a tile's shard and state."""
    take: float
    """Reading and verifying a tile's shard on this node, and making training rows of it."""
    fetch: float
    """Reading a version of the parameters from this node's cache, verified; its download is not part of it."""
    torch_round: float | None
    """A tile's whole round with environments in tensors; None if the learner's device can't step them."""
    update: float
    """Learning a round, without the part that grows with its rows; the optimizer's steps are part of it."""
    update_row: float
    """Learning, per row of a round."""
    update_cpu: float
    """CPU seconds of `update`."""
    update_row_cpu: float
    """CPU seconds of `update_row`; more than that where a second thread computes gradients."""
    optimizer: float
    """The optimizer's steps of a round, over all parameters; every learner takes them, or the parameter server."""
    message: float
    """Half of a round trip over a link: a step's actions one way, its frame back."""
    collective: float
    """All-reduce of a gradient between two learners."""
    collective_cpu: float
    """CPU seconds of the same, of each of the two."""
    cores: int
    busy_core_speed: float
    """Speed of a core while all are busy, as a share of its speed while the others are idle."""

    @property
    def busy_cores(self) -> float:
        """Return how many cores without others next to them would compute as fast as all cores together."""
        return max(1.0, self.cores * self.busy_core_speed)

    def to_json(self) -> dict[str, Any]:
        """Return the fields, for another process and for `run.json`."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Work:
    """Work of a round, spread over processes."""

    seconds: float
    """The longest chain, if every process has the cores that it wants."""
    cpu_seconds: float
    """Those of all processes."""

    def on(self, cores: float) -> float:
        """Return the seconds on a host with so many cores."""
        return max(self.seconds, self.cpu_seconds / cores)


def round_seconds(policy: DistributionPolicy, config: RunConfig, parts: PartSeconds, sizes: Sizes) -> float:
    """Return the predicted seconds of a round."""
    actor, learner, syncer = policy.role_of("act"), policy.role_of("learn"), policy.role_of("sync")
    acting, learning = _acting(policy, config, parts), _learning(policy, config, parts, sizes)
    apart = actor is not learner
    hints = 2 * _HINT_SECONDS if apart or syncer is not actor or syncer.replicas > 1 else 0.0
    if not config.schedule.lag or not apart:
        return acting.on(parts.busy_cores) + learning.on(parts.busy_cores) + hints
    together = _Work(max(acting.seconds, learning.seconds), acting.cpu_seconds + learning.cpu_seconds)
    return together.on(parts.busy_cores) + hints


def _acting(policy: DistributionPolicy, config: RunConfig, parts: PartSeconds) -> _Work:
    steps, tiles = config.schedule.round_steps, config.environment.tiles
    actors, stepping = policy.role_of("act"), policy.role_of("env")
    own = -(-tiles // actors.replicas)
    if actors is stepping:
        of_tile, busy = steps * (parts.step + parts.infer), steps * (parts.step_cpu + parts.infer)
        if policy.pools == "torch" and parts.torch_round is not None:
            of_tile = busy = parts.torch_round
        return _Work(own * (of_tile + parts.write), tiles * (busy + parts.write))
    served = -(-tiles // stepping.replicas)
    inferring, stepped = own * (parts.infer + parts.message), served * (parts.step + parts.message)
    # With one tile, nothing else is in flight while its environments are stepped.
    step = inferring + stepped + parts.message if own == 1 else max(inferring, stepped)
    busy = steps * (parts.infer + parts.step_cpu + 2 * parts.message)
    return _Work(steps * step + own * parts.write, tiles * (busy + parts.write))


def _learning(policy: DistributionPolicy, config: RunConfig, parts: PartSeconds, sizes: Sizes) -> _Work:
    learners, rows = policy.learners, config.environment.num_envs * config.schedule.round_steps
    if policy.reduce == "agents":  # each learner has some of the losses, over all rows, and sends one message a round
        exchanged = learners if learners > 1 else 0
        return _Work(
            (parts.update + parts.update_row * rows) / learners + exchanged * parts.collective,
            parts.update_cpu + parts.update_row_cpu * rows + learners * exchanged * parts.collective_cpu,
        )
    # Rows are divided among learners, and nothing else: each plans all minibatches and has all parameters.
    own, busy = parts.update + parts.update_row * rows / learners, learners * parts.update_cpu
    busy += parts.update_row_cpu * rows
    if policy.reduce == "parameter_server":
        return _at_server(config, parts, sizes, learners, _Work(own, busy))
    sums = sizes.updates + 1 if learners > 1 else 0  # gradients, and the round's sums
    return _Work(own + sums * parts.collective, busy + learners * sums * parts.collective_cpu)


def _at_server(config: RunConfig, parts: PartSeconds, sizes: Sizes, learners: int, alone: _Work) -> _Work:
    """Return the learning whose optimizer is at a parameter server, from that of learners with one each.

    Without `max_staleness` all learners wait while the server takes a step. With it each waits for its own steps alone,
    and the server takes one for each learner: a round takes as long as a learner's chain or as all steps of the server.
    How much the bound gains where learners are slow in turn is not predicted, since their delays are not known.
    """
    stale = config.distribution.max_staleness is not None
    messages = sizes.updates + (sizes.stale_reply_vectors if stale else sizes.server_reply_vectors)
    sums = int(learners > 1)
    chain = alone.seconds + (messages + sums) * parts.collective
    steps = learners if stale else 1
    busy = alone.cpu_seconds - (learners - steps) * parts.optimizer
    busy += ((learners + 1) * messages + learners * sums) * parts.collective_cpu
    server = steps * (parts.optimizer + messages * parts.collective)
    return _Work(max(chain, server), busy)

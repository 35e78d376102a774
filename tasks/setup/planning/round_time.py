"""Predicts the seconds of a round under a policy from the times of its parts. Imports no torch.

More processes than cores share the cores. At lag 0 acting and learning take turns; at a greater lag they overlap
if they have separate processes.
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
    """Seconds of the parts of a round, each measured alone."""

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
    torch_round: float | None
    """A tile's whole round with environments in tensors; None if the learner's device can't step them."""
    update: float
    """Learning a round, without the part that grows with its rows."""
    update_row: float
    """Learning, per row of a round."""
    message: float
    """Half of a round trip over a link: a step's actions one way, its frame back."""
    collective: float
    """All-reduce of a gradient between two learners."""
    cores: int

    def to_json(self) -> dict[str, Any]:
        """Return the fields, for another process and for `run.json`."""
        return asdict(self)


def round_seconds(policy: DistributionPolicy, config: RunConfig, parts: PartSeconds, sizes: Sizes) -> float:
    """Return the predicted seconds of a round."""
    actor, learner, syncer = policy.role_of("act"), policy.role_of("learn"), policy.role_of("sync")
    acting = _acting_seconds(policy, config, parts)
    learning = _learning_seconds(policy, config, parts, sizes)
    apart = actor is not learner
    hints = 2 * _HINT_SECONDS if apart or syncer is not actor or syncer.replicas > 1 else 0.0
    if not config.schedule.lag or not apart:
        return acting + learning + hints
    together = acting * actor.replicas + learning * learner.replicas
    return max(acting, learning, together / parts.cores) + hints


def _acting_seconds(policy: DistributionPolicy, config: RunConfig, parts: PartSeconds) -> float:
    steps, tiles = config.schedule.round_steps, config.environment.tiles
    actors, stepping = policy.role_of("act"), policy.role_of("env")
    own = -(-tiles // actors.replicas)
    if actors is stepping:
        crowding = max(1.0, actors.replicas / parts.cores)
        of_tile = steps * (parts.step + parts.infer)
        if policy.pools == "torch":
            of_tile = of_tile if parts.torch_round is None else parts.torch_round
        return own * (of_tile + parts.write) * crowding
    served = -(-tiles // stepping.replicas)
    inferring, stepped = own * (parts.infer + parts.message), served * (parts.step + parts.message)
    # With one tile, nothing else is in flight while its environments are stepped.
    step = inferring + stepped + parts.message if own == 1 else max(inferring, stepped)
    busy = (inferring * actors.replicas + stepped * stepping.replicas) / parts.cores
    return steps * max(step, busy) + own * parts.write * max(1.0, actors.replicas / parts.cores)


def _learning_seconds(policy: DistributionPolicy, config: RunConfig, parts: PartSeconds, sizes: Sizes) -> float:
    learners = policy.learners
    rows = config.environment.num_envs * config.schedule.round_steps
    crowding = max(1.0, learners / parts.cores)
    if policy.reduce == "agents":  # each learner has some of the losses, over all rows, and sends one message a round
        own = (parts.update + parts.update_row * rows) / learners
        return own * crowding + (learners > 1) * learners * parts.collective
    seconds = (parts.update + parts.update_row * rows / learners) * crowding
    collectives = 0
    if policy.reduce == "parameter_server":
        collectives = sizes.updates + sizes.server_reply_vectors
    elif learners > 1:
        collectives = sizes.updates
    collectives += learners > 1  # the round's sums
    return seconds + collectives * parts.collective

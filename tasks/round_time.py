"""How long a round takes under a placement, predicted from what its parts took. Imports no torch.

Processes beyond the number of cores share these. At lag 0 acting and learning take turns; at a greater lag they overlap
where they have processes of their own.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tasks.config import RunConfig
    from tasks.cost import Sizes
    from tasks.policies import DistributionPolicy

_HINT_SECONDS = 0.002
"""From storing something to somebody in another process knowing it: a message through Dask."""


@dataclass(frozen=True, slots=True)
class PartSeconds:
    """What the parts of a round took when they were tried alone."""

    step: float
    """Stepping a tile's native environments once."""
    step_cpu: float
    """The same, as far as a processor is busy with it: an environment that waits needs less."""
    infer: float
    """Acting on a tile's observations once, rows written."""
    write: float
    """Making and storing a tile's shard and state."""
    take: float
    """Reading and verifying a tile's shard and making training rows of it, where it lies on this node."""
    torch_round: float | None
    """A tile's whole round with environments in torch; None if there are none."""
    update: float
    """Learning a round, beside what grows with its rows."""
    update_row: float
    """Learning, more for each row of a round."""
    message: float
    """Sending a step's message over a link and receiving the answer, half of it."""
    collective: float
    """A gradient's sum between two learners."""
    cores: int

    def to_json(self) -> dict[str, Any]:
        """For another process, and for `run.json`."""
        return asdict(self)


def round_seconds(policy: DistributionPolicy, config: RunConfig, parts: PartSeconds, sizes: Sizes) -> float:
    """Seconds of a round."""
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
    seconds = (parts.update + parts.update_row * rows / learners) * max(1.0, learners / parts.cores)
    collectives = 0
    if policy.reduce == "parameter_server":
        collectives = sizes.updates + sizes.returned
    elif learners > 1:
        collectives = sizes.updates
    collectives += learners > 1  # the round's sums
    return seconds + collectives * parts.collective

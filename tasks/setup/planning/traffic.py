"""Predicts the bytes and messages per round of every edge that crosses processes under a policy.

Sizes are measured in a round that is acted and learned beforehand (`run_calibration`); senders and frequencies follow
from the distribution. `timings/` has the counts (`edges`) in the same units: bytes and messages over all members,
counted at the sender. Imports no torch.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from penstock.tasks.setup.distribution.dataflow import crossings, is_stored

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.tasks.setup.config.run import RunConfig
    from penstock.tasks.setup.distribution.dataflow import CutEdge
    from penstock.tasks.setup.distribution.policies import DistributionPolicy


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes and numbers of the messages of a round; the same under every policy."""

    action_bytes: int
    """Bytes of one tile's actions in a step."""
    observation_bytes: int
    """Bytes of one tile's observations in a step."""
    frame_bytes: int
    """Bytes of a tile's other results of a step: reward, flags, episode ids."""
    end_bytes: int
    """Bytes of a tile's end-of-round message: ended episodes, bootstrap observations, the environments' state."""
    start_bytes: int
    """Bytes of the message that starts a tile: its seeds, or its stored state."""
    greeting_bytes: int
    """Bytes of the acting side's greeting on a new link."""
    welcome_bytes: int
    """Bytes of the answer to a greeting."""
    shard_bytes: int
    """Stored bytes of one tile's round."""
    state_bytes: int
    """Stored bytes of one tile's environments after a round."""
    snapshot_bytes: int
    """Stored bytes of a published version."""
    difference_bytes: int
    """Stored bytes of a version's difference from the one before; 0 unless the run stores them."""
    checkpoint_bytes: int
    """Stored bytes of the learner's state after a stage."""
    updates: int
    """Gradients a round: one a minibatch and loss."""
    gradient_bytes: int
    """Bytes of all gradients of a round, for one learner."""
    server_reply_vectors: int
    """Vectors a round that a parameter server sends back to one learner: parameters and targets."""
    server_reply_bytes: int
    """Bytes of these vectors."""
    arrivals: int
    """Times a round that a learner sends gradients to a server with `max_staleness`; each begins with a row count."""
    stale_reply_vectors: int
    """As `server_reply_vectors`, with `max_staleness`."""
    stale_reply_bytes: int
    sums: int
    """Messages a round in which learners exchange sums; 0 if there are none."""
    sums_bytes: int
    """Bytes of a round's global sums, of one learner."""
    priority_messages: int
    """Messages a round in which learners send the priorities of a minibatch's rows."""
    priority_bytes: int
    """Bytes of these messages, of one learner."""
    round_state_vectors: int
    """Vectors that change once a round, which the first learner sends to a parameter server and the other learners."""
    round_state_bytes: int
    """Bytes of these vectors."""
    owned_bytes: int
    """Bytes of what all losses train, with its optimizers' state: what learners that own agents send each other."""

    @property
    def version_read_bytes(self) -> int:
        """Return the bytes that a node reads for a version if it keeps the one before."""
        return self.difference_bytes or self.snapshot_bytes

    def to_json(self) -> dict[str, int]:
        """Return the sizes for another process."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class EdgeCost:
    """Traffic of all members over one edge that crosses processes."""

    crossing: CutEdge
    round_bytes: float
    round_messages: float
    stage_bytes: float = 0.0
    """Bytes that are sent once per stage, when links open."""
    stage_messages: float = 0.0

    @property
    def way(self) -> str:
        """Return its transport: `storage`, `link` or `collective`."""
        if is_stored(self.crossing):
            return "storage"
        return "link" if self.crossing.edge.granularity == "step" else "collective"

    def over(self, rounds: int) -> tuple[float, float]:
        """Return the bytes and messages of a stage with this number of rounds."""
        return self.stage_bytes + rounds * self.round_bytes, self.stage_messages + rounds * self.round_messages


def edge_costs(policy: DistributionPolicy, config: RunConfig, sizes: Sizes) -> list[EdgeCost]:
    """Return the traffic of every edge that crosses processes under a policy.

    Shards and snapshots are stored under every policy; they count here if another process reads them. Version 0, which
    is stored before the first round, and messages that are resent after a failure are left out.
    """
    return [EdgeCost(item, *_COSTS[item.edge.name](policy, config, sizes)) for item in crossings(policy)]


_Costs = tuple[float, ...]
_ROW_COUNT_BYTES = 8


def _actions(_: DistributionPolicy, config: RunConfig, sizes: Sizes) -> _Costs:
    messages = config.schedule.round_steps * config.environment.tiles
    tiles = config.environment.tiles
    return messages * sizes.action_bytes, messages, tiles * (sizes.start_bytes + sizes.greeting_bytes), 0


def _observations(_: DistributionPolicy, config: RunConfig, sizes: Sizes) -> _Costs:
    # The last step of a round sends no observation; the next one is part of the end-of-round message.
    tiles, steps = config.environment.tiles, config.schedule.round_steps
    return tiles * (steps - 1) * sizes.observation_bytes, tiles * steps, tiles * sizes.observation_bytes, tiles


def _steps(_: DistributionPolicy, config: RunConfig, sizes: Sizes) -> _Costs:
    tiles, steps = config.environment.tiles, config.schedule.round_steps
    once = tiles * (sizes.frame_bytes + sizes.welcome_bytes)
    return tiles * (steps * sizes.frame_bytes + sizes.end_bytes), tiles * steps, once, tiles


def _shards(_: DistributionPolicy, config: RunConfig, sizes: Sizes) -> _Costs:
    return config.environment.tiles * sizes.shard_bytes, config.environment.tiles


def _snapshots(_: DistributionPolicy, __: RunConfig, sizes: Sizes) -> _Costs:
    return sizes.snapshot_bytes, 1


def _gradients(policy: DistributionPolicy, config: RunConfig, sizes: Sizes) -> _Costs:
    nbytes, messages = sizes.gradient_bytes, sizes.updates
    if config.distribution.max_staleness is not None:
        nbytes, messages = nbytes + sizes.arrivals * _ROW_COUNT_BYTES, messages + sizes.arrivals
    if policy.reduce == "parameter_server":  # the server draws the same rows and starts rounds as learners do
        nbytes += _ROW_COUNT_BYTES + sizes.priority_bytes + sizes.round_state_bytes
        messages += 1 + sizes.priority_messages + sizes.round_state_vectors
    return policy.learners * nbytes, policy.learners * messages


def _parameters(policy: DistributionPolicy, config: RunConfig, sizes: Sizes) -> _Costs:
    if config.distribution.max_staleness is not None:
        return policy.learners * sizes.stale_reply_bytes, policy.learners * sizes.stale_reply_vectors
    return policy.learners * sizes.server_reply_bytes, policy.learners * sizes.server_reply_vectors


def _between_learners(policy: DistributionPolicy, _: RunConfig, sizes: Sizes) -> _Costs:
    if policy.reduce == "agents":  # each learner's part in one message to each of the others
        others = policy.learners - 1
        return others * sizes.owned_bytes, policy.learners * others
    nbytes, messages = sizes.sums_bytes, sizes.sums
    if policy.reduce == "allreduce":
        nbytes, messages = nbytes + sizes.priority_bytes, messages + sizes.priority_messages
    return policy.learners * nbytes, policy.learners * messages


_COSTS: dict[str, Callable[[DistributionPolicy, RunConfig, Sizes], _Costs]] = {
    "env -> act": _observations,
    "act -> env": _actions,
    "env -> collect": _steps,
    "collect -> buffer": _shards,
    "sync -> act": _snapshots,
    "learn -> sync": _gradients,
    "sync -> learn": _parameters,
    "learn -> learn": _between_learners,
}

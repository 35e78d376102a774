"""What a placement costs in messages: for every edge that crosses processes, bytes and messages a round, predicted.

Sizes of what is sent are those of a round that was acted and learned beforehand (`tasks.calibration`); how often it is
sent, and by whom, follows from the placement. `timings/` has what was counted (`edges`), in the same units: bytes and
messages over all members, counted where they leave. Imports no torch.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tasks.placement import crossings

if TYPE_CHECKING:
    from collections.abc import Callable

    from tasks.config import RunConfig
    from tasks.placement import CutEdge
    from tasks.policies import DistributionPolicy


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of what a loop moves, and how often it learns; the same under every policy."""

    action_bytes: int
    """Of one tile's actions in a step."""
    observation_bytes: int
    """Of one tile's observations in a step."""
    frame_bytes: int
    """Of all else that a step of a tile says: reward, flags, episode ids."""
    end_bytes: int
    """Of what follows a tile's round: ended episodes, bootstrap observations, the environments' state."""
    start_bytes: int
    """Of where a tile begins: a stored state."""
    greeting_bytes: int
    """Of a link's beginning, from who acts."""
    welcome_bytes: int
    """Of the answer."""
    shard_bytes: int
    """Of one tile's round, stored."""
    state_bytes: int
    """Of one tile's environments after a round, stored."""
    snapshot_bytes: int
    """Of a published version."""
    checkpoint_bytes: int
    """Of the learner's state after a stage, stored."""
    updates: int
    """Gradients a round: one a minibatch and loss."""
    gradient_bytes: int
    """Of all gradients of a round, for one learner."""
    returned: int
    """Vectors a round that a parameter server sends back to one learner: parameters and targets."""
    returned_bytes: int
    """Of all of them."""
    sums: int
    """Messages a round in which learners tell each other sums; 0 if there are none."""
    sums_bytes: int
    """Of a round's global sums, of one learner."""
    judged: int
    """Messages a round in which learners say what the rows of a minibatch are worth."""
    judged_bytes: int
    """Of all of them, of one learner."""
    followed: int
    """Vectors that change once a round, which the first learner tells a parameter server and the others."""
    followed_bytes: int
    """Of all of them."""

    def to_json(self) -> dict[str, Any]:
        """For another process."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class EdgeCost:
    """What crosses processes over one edge, over all members."""

    crossing: CutEdge
    round_bytes: float
    round_messages: float
    stage_bytes: float = 0.0
    """Once more in each stage: what links begin with."""
    stage_messages: float = 0.0

    @property
    def way(self) -> str:
        """How it travels."""
        granularity, fields = self.crossing.edge.granularity, self.crossing.edge.fields
        if fields in (("shard",), ("snapshot",)):
            return "storage"
        return "link" if granularity == "step" else "collective"

    def over(self, rounds: int) -> tuple[float, float]:
        """Bytes and messages of a stage of so many rounds."""
        return self.stage_bytes + rounds * self.round_bytes, self.stage_messages + rounds * self.round_messages


def edge_costs(policy: DistributionPolicy, config: RunConfig, sizes: Sizes) -> list[EdgeCost]:
    """Of every edge that crosses processes under a policy.

    Shards and snapshots are stored under every policy; they cost here where somebody elsewhere reads them. What is
    stored before the first round of a run (version 0) is left out, and so is what is sent again after a loss.
    """
    return [EdgeCost(item, *_COSTS[item.edge.name](policy, config, sizes)) for item in crossings(policy)]


_Costs = tuple[float, ...]


def _actions(_: DistributionPolicy, config: RunConfig, sizes: Sizes) -> _Costs:
    messages = config.schedule.round_steps * config.environment.tiles
    tiles = config.environment.tiles
    return messages * sizes.action_bytes, messages, tiles * (sizes.start_bytes + sizes.greeting_bytes), 0


def _observations(_: DistributionPolicy, config: RunConfig, sizes: Sizes) -> _Costs:
    # The last step of a round shows nothing; what is seen next comes with the end of the round.
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


def _gradients(policy: DistributionPolicy, _: RunConfig, sizes: Sizes) -> _Costs:
    nbytes, messages = sizes.gradient_bytes, sizes.updates
    if policy.reduce == "parameter_server":  # it draws the same rows as the learners, and begins rounds like them
        nbytes += sizes.judged_bytes + sizes.followed_bytes
        messages += sizes.judged + sizes.followed
    return policy.learners * nbytes, policy.learners * messages


def _parameters(policy: DistributionPolicy, _: RunConfig, sizes: Sizes) -> _Costs:
    return policy.learners * sizes.returned_bytes, policy.learners * sizes.returned


def _sums(policy: DistributionPolicy, _: RunConfig, sizes: Sizes) -> _Costs:
    nbytes, messages = sizes.sums_bytes, sizes.sums
    if policy.reduce == "allreduce":
        nbytes, messages = nbytes + sizes.judged_bytes, messages + sizes.judged
    return policy.learners * nbytes, policy.learners * messages


_COSTS: dict[str, Callable[[DistributionPolicy, RunConfig, Sizes], _Costs]] = {
    "env -> act": _observations,
    "act -> env": _actions,
    "env -> collect": _steps,
    "collect -> buffer": _shards,
    "sync -> act": _snapshots,
    "learn -> sync": _gradients,
    "sync -> learn": _parameters,
    "learn -> learn": _sums,
}

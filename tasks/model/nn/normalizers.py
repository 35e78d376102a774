"""Normalisers by running means and variances. Pure torch; an algorithm may import this.

A normaliser's state is in two places. Its moments (count, mean, variance; float64) are in `State.targets`. The mean and
the inverse deviation that it applies, in float32, are a parameter group that no loss trains: so they are in checkpoints
and snapshots, and `act`, `post` and losses of one version all use the same numbers. Both change in `after_round` alone,
by the sums of `stats`: the same on every learner, however the rows are distributed.

Moments are merged as by Chan, Golub and LeVeque 1983 (doi 10.1080/00031305.1983.10483115), so that a long run's
variance is not computed as a difference of huge sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from penstock.tasks.model.nn import kernels
from penstock.tasks.specs import ParameterGroup

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from penstock.tasks.specs import Batch, Params, State

_EPSILON = 1e-8

_CARRIED = "reward_sums"
"""Group of the environments' discounted sums at the end of the last round, 0 after a termination, and prefix of sums.

A group and no target, since `post` reads parameters alone."""
_ENDS, _LEFT = "reward_sum_of", "reward_sum"
"""Columns: the environment whose last row of the round it is, for other rows the number of environments; and the sum
that the next row continues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalizer:
    """One normaliser's structure; its state is the algorithm's."""

    group: str
    """Name of its parameter group, and the prefix of its moments' and sums' names."""
    shape: tuple[int, ...] = ()
    """Shape of a row; each number has its own moments."""
    centred: bool = True
    """True if the mean is subtracted; otherwise numbers are only scaled."""
    limit: float = 10.0
    """Largest magnitude of the result."""
    offset: float = 0.0
    """Added to the deviation before values are divided by it."""

    def init(self, state: State) -> None:
        """Add the normaliser to a fresh state. Before its first rows, numbers are only limited."""
        state.params[self.group] = ParameterGroup({"mean": torch.zeros(self.shape), "scale": torch.ones(self.shape)})
        state.targets |= {
            f"{self.group}/count": torch.zeros((), dtype=torch.float64),
            f"{self.group}/mean": torch.zeros(self.shape, dtype=torch.float64),
            f"{self.group}/variance": torch.zeros(self.shape, dtype=torch.float64),
        }

    def apply(self, params: Params, values: Tensor) -> Tensor:
        """Normalise and limit rows `[..., *shape]`, float32, without gradients."""
        group = params[self.group]
        found = kernels.normalise(values, group["mean"] if self.centred else None, group["scale"], self.limit)
        if found is not None:
            return found
        with torch.no_grad():
            if self.centred:
                values = values - group["mean"]
            return (values * group["scale"]).clamp(-self.limit, self.limit)

    def sums(self, values: Tensor, counted: Tensor | None = None) -> dict[str, Tensor]:
        """Return the sums for `Algorithm.stats` of raw rows `[rows, *shape]`: float64, a number and two `[*shape]`.

        `counted` is `[rows]`, 1 for rows that count and 0 for others, whose numbers must be finite; None counts all.
        """
        values = values.double()
        count = torch.full((), float(len(values)), dtype=torch.float64, device=values.device)
        if counted is not None:
            count, values = counted.double().sum(), values * counted.view(-1, *(1 for _ in self.shape))
        return {
            f"{self.group}/count": count,
            f"{self.group}/sum": values.sum(0),
            f"{self.group}/square": values.square().sum(0),
        }

    def update(self, state: State, stats: Mapping[str, Tensor]) -> None:
        """Merge a round's rows, by their sums over all tiles, in place; for `Algorithm.after_round`.

        Args:
            state: has the normaliser.
            stats: results of `sums`, added up; other names are ignored.
        """
        count, mean, variance = (state.targets[f"{self.group}/{name}"] for name in ("count", "mean", "variance"))
        rows, total, square = (stats[f"{self.group}/{name}"].to(count) for name in ("count", "sum", "square"))
        round_mean = total / rows
        round_variance = (square / rows - round_mean.square()).clamp(min=0.0)
        together = count + rows
        difference = round_mean - mean
        spread = count * variance + rows * round_variance + difference.square() * count * rows / together
        group, has_rows = state.params[self.group], rows > 0
        # Without rows, quotients are undefined and nothing changes. The host never asks: where rounds stay on a device,
        # it would wait for that.
        with torch.no_grad():
            mean.copy_(torch.where(has_rows, mean + difference * rows / together, mean))
            variance.copy_(torch.where(has_rows, spread / together, variance))
            count.copy_(together)
            group["mean"].copy_(torch.where(has_rows, mean, group["mean"]))
            scale = 1.0 / (variance.sqrt() + self.offset) if self.offset else (variance + _EPSILON).rsqrt()
            group["scale"].copy_(torch.where(has_rows, scale, group["scale"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalizers:
    """The normalisers of an algorithm: of observations, rewards, both or neither. Holds no state either.

    Rows keep raw observations; `act`, `post` and losses pass them through `normalized`, by the same numbers throughout
    a round.
    """

    observation: int = 0
    """Numbers of an observation, each normalised by itself; 0 leaves observations as they are."""
    reward: bool = False
    """True if rewards are scaled, by the deviation of `discounted_rewards`."""
    limit: float = 10.0
    """Largest magnitude of a normalised observation."""
    offset: float = 0.0
    """Added to the deviation of an observation."""
    carried_envs: int = 0
    """Environments of the run whose discounted sums continue over rounds; 0: every round begins with sums of 0."""

    @property
    def _observations(self) -> Normalizer:
        shape = (self.observation,)
        return Normalizer(group="observations", shape=shape, limit=self.limit, offset=self.offset)

    @property
    def _rewards(self) -> Normalizer:
        return Normalizer(group="rewards", centred=False)

    @property
    def actor_groups(self) -> tuple[str, ...]:
        """The parameter groups that acting needs."""
        return (self._observations.group,) if self.observation else ()

    def init(self, state: State) -> None:
        """Add the normalisers to a fresh state."""
        if self.observation:
            self._observations.init(state)
        if self.reward:
            self._rewards.init(state)
            if self.carried_envs:
                state.params[_CARRIED] = ParameterGroup({"sum": torch.zeros(self.carried_envs)})

    def normalized(self, params: Params, observation: Tensor) -> Tensor:
        """Normalise observations `[..., n]`, float32, for networks; without a normaliser they stay as they are."""
        return self._observations.apply(params, observation) if self.observation else observation

    def rewards(
        self,
        params: Params,
        rewards: Tensor,
        terminated: Tensor,
        truncated: Tensor,
        discount: float,
        first_env: int = 0,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Scale rewards `[T, B]` or `[T, B, agents]`, and return the columns that `sums` needs in the batch.

        Flags have the shape of the rewards, but for a last axis that may be 1. Sums that continue over rounds are for
        rewards `[T, B]`, of the environments from `first_env` on.
        """
        if not self.reward:
            return rewards, {}
        scaled = self._rewards.apply(params, rewards)
        if not self.carried_envs:
            return scaled, {"discounted_reward": discounted_rewards(rewards, terminated, truncated, discount)}
        envs = torch.arange(first_env, first_env + rewards.shape[1], device=rewards.device)
        before = params[_CARRIED]["sum"].detach()[first_env : first_env + rewards.shape[1]]
        # As in Gymnasium's NormalizeReward, a sum passes over truncations: nothing was lost there, only time.
        gathered = discounted_rewards(rewards, terminated, torch.zeros_like(truncated), discount, before)
        ends = torch.full(rewards.shape, self.carried_envs, device=rewards.device)
        ends[-1] = envs
        return scaled, {"discounted_reward": gathered, _ENDS: ends, _LEFT: gathered * (terminated == 0)}

    def sums(self, batch: Batch, counted: Tensor | None = None) -> dict[str, Tensor]:
        """Return the sums for `Algorithm.stats`, of raw `observation` `[..., n]` and the columns of `rewards`.

        `counted` is `[...]`, 1 for rows, or agents in them, that count and 0 for others; None counts all.
        """
        counted = None if counted is None else counted.flatten()
        found = self._observations.sums(batch["observation"].flatten(0, -2), counted) if self.observation else {}
        if self.reward:
            found |= self._rewards.sums(batch["discounted_reward"].flatten(), counted)
        if self.reward and self.carried_envs:
            found |= self._carried_sums(batch)
        return found

    def _carried_sums(self, batch: Batch) -> dict[str, Tensor]:
        """Return what continues in each environment of the run, `[envs]`, and 1 for those of this tile, otherwise 0."""
        left, places = batch[_LEFT].flatten().double(), batch[_ENDS].flatten()
        # Rows that are no environment's last one add up in a place of their own.
        nothing = left.new_zeros(self.carried_envs + 1)
        return {
            f"{_CARRIED}/sum": nothing.index_add(0, places, left)[:-1],
            f"{_CARRIED}/envs": nothing.index_add(0, places, torch.ones_like(left))[:-1],
        }

    def update(self, state: State, stats: Mapping[str, Tensor]) -> None:
        """Merge a round's totals, in place; for `Algorithm.after_round`."""
        if self.observation:
            self._observations.update(state, stats)
        if self.reward:
            self._rewards.update(state, stats)
        if self.reward and self.carried_envs:
            carried = state.params[_CARRIED]["sum"]
            with torch.no_grad():
                # With a quorum below 1, tiles may be missing: their environments keep their sums.
                there, found = (stats[f"{_CARRIED}/{name}"].to(carried.device) for name in ("envs", "sum"))
                carried.copy_(torch.where(there > 0, found.to(carried), carried))


def discounted_rewards(
    rewards: Tensor, terminated: Tensor, truncated: Tensor, discount: float, before: Tensor | None = None
) -> Tensor:
    """Compute each row's discounted sum so far: R_t = r_t + discount * R_{t-1}, anew after an episode's end.

    Rewards are scaled by its deviation. Gymnasium's NormalizeReward carries R from step to step, as `before` does from
    round to round. Without that it starts with 0 in every round, so that it is a function of one round's rows. A row
    whose episode began before the round then lacks discount ** (rows before it in the round, and itself) of its sum:
    little, where a round is long compared with 1 / (1 - discount) steps. In shorter rounds the variance is
    underestimated, by much the same factor in every round, which leaves rewards larger by a constant.

    Args:
        rewards: float `[T, B]`, or `[T, B, agents]`.
        terminated: `[T, B]`, nonzero where the episode ended so; the next row begins with 0. `[T, B, 1]` for agents.
        truncated: likewise.
        discount: gamma.
        before: `[B]`, what the sums continue; None: they begin with the rows.

    Returns:
        The sums, with shape and type of the rewards.
    """
    gathered = rewards.clone()
    if before is not None:
        gathered[0] += discount * before
    kept = ((terminated == 0) & (truncated == 0)).to(rewards.dtype) * discount
    rows, factors = gathered.unbind(0), kept.unbind(0)
    for step in range(1, len(rows)):
        rows[step].addcmul_(factors[step - 1], rows[step - 1])
    return gathered

"""The contract between an algorithm and whatever runs it: pure functions, typed rows, no rank, device or file.

The runtime calls the functions in this order::

    once        init(seed)
    step        act(params, carry, observation, noise)             one tile at a time, row-wise
    round       post(params, trajectory), stats(batch)             one tile at a time, environment-wise
                plan(generator, row_count)                         minibatches over the rows of all tiles
    minibatch   for loss in losses: gradient of loss.function by loss.group, then update(state, loss, gradient)
                after_minibatch(state)
    round       after_round(state, stats)                      for those that have it (`FollowsRounds`)

Why gradients and `update` are apart: between them lies the only place where learners have to talk to each other. Why
`stats` returns sums: sums can be added over tiles, processes and learners, means cannot (losses get the totals as
floats, `after_round` gets those of any shape). Why losses divide by a given count: a minibatch may be spread over
learners, and only the runtime knows how many rows it has in all.

`docs/algorithm.md` shows how recurrent PPO, SAC and prioritised DQN fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import torch
    from torch import Tensor

    from tasks.specs import Batch, NoiseSpec, Spec, State, Trajectory

    Params: TypeAlias = Mapping[str, Mapping[str, Tensor]]
    LossResult: TypeAlias = tuple[Tensor, dict[str, Tensor]]
    LossFunction: TypeAlias = Callable[
        [Params, Mapping[str, Tensor], Batch, Tensor | None, Mapping[str, float], int], LossResult
    ]


@dataclass(frozen=True, slots=True)
class Loss:
    """One objective: `function(params, targets, rows, noise, stats, count) -> (scalar, row outputs)`.

    The scalar is a sum over the given rows divided by `count`, the number of rows of the whole minibatch, so that the
    parts of a minibatch add up. Gradients are taken by the parameters of `group` alone; other groups are constants.
    Row outputs (`[rows]` each) are what is known of every row afterwards: priorities, and diagnostics whose mean over
    the round becomes a metric of that name.
    """

    name: str
    group: str
    function: LossFunction


DEFAULTED = ("initial_carry", "stats", "after_minibatch")
"""What a class that inherits from `Algorithm` may leave out."""


class Algorithm(Protocol):
    """What a trainable algorithm is made of. Implementations are immutable: everything that changes is in `State`."""

    @property
    def rows(self) -> Mapping[str, Spec]:
        """Columns that `act` returns and a shard stores, beside the environment's; `action` must be one of them."""

    @property
    def noise(self) -> NoiseSpec:
        """Random numbers that `act` gets for each row."""

    @property
    def losses(self) -> tuple[Loss, ...]:
        """Objectives, in the order in which every minibatch applies them."""

    @property
    def actor_groups(self) -> tuple[str, ...]:
        """Parameter groups that `act` reads; a snapshot holds these and nothing else."""

    def init(self, seed: int) -> State:
        """Fresh parameters and optimizer state; the same seed gives the same bytes."""

    def initial_carry(self, envs: int) -> Tensor | None:  # noqa: ARG002
        """Recurrent carry `[envs, ...]` at an episode's start; None for policies without memory."""
        return None

    def act(
        self, params: Params, carry: Tensor | None, observation: Tensor, noise: Tensor
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Act on observations `[B, ...]` with noise `[B, ...]`: the row columns `[B, ...]` and the next carry."""

    def post(self, params: Params, trajectory: Trajectory) -> Batch:
        """Turn one tile's round into training rows `[T * B, ...]`, in the order `t * B + b`."""

    def stats(self, batch: Batch) -> dict[str, Tensor]:  # noqa: ARG002
        """Global quantities as sums over the rows of one tile: numbers for losses, of any shape for `after_round`."""
        return {}

    def plan(self, generator: torch.Generator, row_count: int) -> Iterable[Tensor]:
        """Index arrays (int64) over the round's rows, one a minibatch, in order."""

    def update(self, state: State, loss: Loss, gradient: Tensor) -> State:
        """Apply one optimizer step to the group of `loss`; the gradient is `[P]`, in the order of its vector."""

    def after_minibatch(self, state: State) -> State:
        """Targets and schedules; called once after all losses of a minibatch."""
        return state


@runtime_checkable
class FollowsRounds(Protocol):
    """An algorithm whose state also changes once a round: normalisers. Who has no `after_round` changes nothing."""

    def after_round(self, state: State, stats: Mapping[str, Tensor]) -> State:
        """Take a round's totals into the state; called once after its last minibatch.

        All of the round (`post`, losses) was learned with the state before, and the next version has the one after. It
        may change targets and parameter groups that no loss trains, in place: a parameter server gets these.

        Args:
            state: after the round's minibatches.
            stats: totals of `stats` over all tiles, float64 on the host; the same on all learners.
        """

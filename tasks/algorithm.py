"""The contract between an algorithm and whatever runs it: pure functions, typed rows, no rank, device or file.

The runtime calls the functions in this order::

    once        init(seed)
    step        act(params, carry, observation, noise)             one tile at a time, row-wise
    round       post(params, trajectory), stats(batch)             one tile at a time, environment-wise
                plan(generator, window)                            minibatches over the rows of all tiles
    minibatch   for loss in losses: gradient of loss.function by loss.group, then update(state, loss, gradient)
                after_minibatch(state)
    round       after_round(state, stats)                      for those that have it (`FollowsRounds`)

Why gradients and `update` are apart: between them lies the only place where learners have to talk to each other. Why
`stats` returns sums: sums can be added over tiles, processes and learners, means cannot (losses get the totals as
floats, `after_round` gets those of any shape). Why losses divide by a given count: a minibatch may be spread over
learners, and only the runtime knows how many rows it has in all.

What rows a plan takes is the window: the round's own for an on-policy algorithm. An off-policy one also has an
attribute `window`, a `WindowSpec`, and its plan takes rows of many rounds.

`docs/algorithm.md` shows how all of it is used.
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


PRIORITY = "priority"
"""The row output that says what a row is worth to a prioritised window: at least 0, and 0 is never drawn again."""

WEIGHT = "weight"
"""The column, float32 `[rows]`, of what each drawn row counts so that sampling makes no bias."""


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """What an off-policy algorithm learns from: the newest whole rounds."""

    capacity_rows: int
    """At most so many rows, of all environments; a round at least."""
    priority_exponent: float = 0.0
    """How strongly priorities count (alpha of Schaul et al. 2016, arXiv 1511.05952); 0 draws uniformly."""


@dataclass(frozen=True, slots=True)
class Draw:
    """A minibatch that was drawn from a window."""

    rows: Tensor
    """int64 `[n]`, as a plan's index arrays."""
    weights: Tensor
    """float32 `[n]`, at most 1; the losses find them as the column `weight`."""


class Window(Protocol):
    """The rows that a plan takes from, numbered from 0, oldest first, by round, then tile, then `t * B + b`."""

    @property
    def round_rows(self) -> int:
        """How many of them the newest round has: the last ones."""

    @property
    def rows(self) -> int:
        """How many there are; of an on-policy algorithm those of the round."""

    def draw(self, generator: torch.Generator, count: int, correction: float = 1.0) -> Draw:
        """Draw `count` rows with replacement, one from each of as many equal shares of the sum of priorities.

        Priorities are those that losses have given so far, so draw each minibatch when its turn comes. A row that
        nobody has judged has the largest so far. `correction` is beta of prioritised replay: how strongly weights undo
        the priorities.
        """


@dataclass(frozen=True, slots=True)
class Loss:
    """One objective: `function(params, targets, rows, noise, stats, count) -> (scalar, row outputs)`.

    The scalar is a sum over the given rows divided by `count`, the number of rows of the whole minibatch, so that the
    parts of a minibatch add up. Gradients are taken by the parameters of `group` alone; other groups are constants.
    Row outputs (`[rows]` each) are what is known of every row afterwards: priorities, and diagnostics whose mean over
    the round becomes a metric of that name.

    A loss that needs random numbers declares `noise`. It is given as `[rows, *noise.shape]`, a function of (run seed,
    loss, round, minibatch, place of the row in it); otherwise None.
    """

    name: str
    group: str
    function: LossFunction
    noise: NoiseSpec | None = None
    alone: bool = False
    """Whether it reads no group that another loss of the algorithm trains, and may be called in two threads at once (a
    `torch.nn.Module` by `module_call` may not). Where a learner has a second CPU, blocks of such a loss are taken side
    by side, and so are losses if all are such."""


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
        """Turn one tile's round into training rows `[T * B, ...]`, in the order `t * B + b`.

        Of an off-policy algorithm, `params` are empty: rows stay in the window, and are made anew from the shards
        whenever they are needed again, so they may depend on nothing else.
        """

    def stats(self, batch: Batch) -> dict[str, Tensor]:  # noqa: ARG002
        """Global quantities as sums over the rows of one tile: numbers for losses, of any shape for `after_round`."""
        return {}

    def plan(self, generator: torch.Generator, window: Window) -> Iterable[Tensor | Draw]:
        """Index arrays (int64) over the window's rows, one a minibatch, in order; none learns nothing this round.

        It is taken lazily: of a prioritised window, each minibatch is asked for after the one before was learned. How
        many minibatches there are may not depend on priorities.
        """

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


def window_spec(algorithm: Algorithm) -> WindowSpec | None:
    """What an algorithm says of its window; None of an on-policy one."""
    spec: WindowSpec | None = getattr(algorithm, "window", None)
    return spec

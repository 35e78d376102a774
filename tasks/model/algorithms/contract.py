"""The contract between an algorithm and the runtime: pure functions, typed rows, no rank, device or file.

The runtime calls the functions in this order::

    once        init(seed)
    step        act(params, carry, observation, noise)             one tile at a time, row-wise
    round       post(params, trajectory), stats(batch)             one tile at a time, environment-wise
                plan(generator, window)                            minibatches over the rows of all tiles
    minibatch   for loss in losses that are due (`DelaysLosses`): gradient of loss.function(params, batch) with respect
                                    to loss.group,
                                    then update(state, loss, gradient)
                after_minibatch(state)
    round       after_round(state, stats)                      if the algorithm has it (`FollowsRounds`)

Gradients and `update` are separate because learners communicate between them, and only there. `stats` returns sums
because sums can be added over tiles, processes and learners, and means cannot (losses get the totals as numbers,
`after_round` gets those of any shape). Losses divide by a given count because a minibatch may be spread over learners,
and only the runtime knows how many rows it has in all.

A plan takes rows from the window: the round's rows for an on-policy algorithm. An off-policy one also has an attribute
`window`, a `WindowSpec`, and its plan takes rows of many rounds.

`docs/algorithm.md` shows how all of it is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import torch
    from torch import Tensor

    from penstock.tasks.specs import Batch, LossFunction, NoiseSpec, Params, Spec, State, Trajectory


PRIORITY = "priority"
"""The row output that is a row's priority in the window: at least 0, and a row with 0 is never drawn again."""
WEIGHT = "weight"
"""The column, float32 `[rows]`, of importance weights that correct the bias of prioritised sampling."""


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """The replay window of an off-policy algorithm: the newest whole rounds."""

    capacity_rows: int
    """Largest number of training rows, of all environments; a round at least."""
    priority_exponent: float = 0.0
    """The exponent of priorities (alpha of Schaul et al. 2016, arXiv 1511.05952); 0 draws uniformly."""
    steps_after: int = 0
    """Steps of the next round that `post` also gets once that has arrived, so that the rows of a round look beyond its
    end; a round at most. Until then, and where no step followed, the trajectory ends with the round."""
    row_steps: int = 1
    """Steps of an environment in a training row: more than 1 for sequences. A round is a whole number of rows."""


@dataclass(frozen=True, slots=True)
class RoundLimit:
    """Ends a round's update early: its remaining minibatches are left out."""

    output: str
    """The row output that is looked at."""
    most: float
    """The round ends once the output's mean over a minibatch, of all learners, is larger."""
    every: int
    """The minibatches from one that is looked at to the next; the first of these is number `every`."""


@dataclass(frozen=True, slots=True)
class Draw:
    """A minibatch drawn from a window."""

    rows: Tensor
    """int64 `[n]`, as a plan's index arrays."""
    weights: Tensor
    """float32 `[n]`, at most 1; the losses find them as the column `weight`."""


class Window(Protocol):
    """The rows that a plan may take, numbered from 0, oldest first: by round, then tile, then `t * B + b`."""

    @property
    def round_rows(self) -> int:
        """The number of rows of the newest round, which are the last ones."""

    @property
    def rounds(self) -> range:
        """The rounds that it has, counted over the run; the newest one is the last."""

    @property
    def rows(self) -> int:
        """The number of rows; of an on-policy algorithm those of the round."""

    def draw(self, generator: torch.Generator, count: int, correction: float = 1.0) -> Draw:
        """Draw `count` rows with replacement, one from each of as many equal shares of the sum of priorities.

        Priorities are those that losses have given so far, so draw each minibatch when its turn comes. A row without a
        priority yet has the largest so far. `correction` is beta of prioritised replay: 1 corrects the bias wholly.
        """


@dataclass(frozen=True, slots=True)
class Loss:
    """One objective: `function(params, batch) -> (scalar, row outputs)`, where `batch` is a `LossInputs`.

    The scalar is a sum over the given rows divided by `batch.count`, the number of rows of the whole minibatch, so that
    the parts of a minibatch add up; `batch.mean` does that. Gradients are taken with respect to the parameters of
    `group` alone; other groups are constants. Row outputs (`[rows]` each, detached) are priorities, and diagnostics
    whose mean over the round becomes a metric of that name.

    A loss that needs random numbers declares `noise`. `batch.noise` is then `[rows, *noise.shape]`, a function of (run
    seed, loss, round, minibatch, position of the row in it); otherwise None.
    """

    name: str
    group: str
    function: LossFunction
    noise: NoiseSpec | None = None
    independent: bool = False
    """True if it reads no group that another loss of the algorithm trains, and may be called in two threads at once (a
    `torch.nn.Module` by `module_call` may not). On a learner with a second CPU, blocks of such a loss are computed
    concurrently, and so are losses if all are independent."""
    agents: tuple[int, ...] | None = None
    """The agents whose parameters it trains, where agents have parameters of their own: then it reads no group that a
    loss of other agents trains, and the policy `agents` can give it to another learner. None: those of all together."""


DEFAULTED = ("initial_carry", "stats", "after_minibatch")
"""Members that a class may inherit from `Algorithm` as they are."""


class Algorithm(Protocol):
    """The members of a trainable algorithm. Implementations are immutable: everything that changes is in `State`."""

    @property
    def rows(self) -> Mapping[str, Spec]:
        """Columns that `act` returns and a shard stores, next to the environment's; `action` must be one of them."""

    @property
    def noise(self) -> NoiseSpec:
        """The random numbers that `act` gets for each row."""

    @property
    def losses(self) -> tuple[Loss, ...]:
        """The objectives, in the order in which every minibatch applies them."""

    @property
    def actor_groups(self) -> tuple[str, ...]:
        """The parameter groups that `act` reads; a snapshot holds these and nothing else."""

    def init(self, seed: int) -> State:
        """Return fresh parameters and optimizer state; the same seed gives the same bytes."""

    def initial_carry(self, _envs: int) -> Tensor | None:
        """Return the recurrent carry `[envs, ...]` at an episode's start; None for policies without memory."""
        return None

    def act(
        self, params: Params, carry: Tensor | None, observation: Tensor, noise: Tensor
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Act on observations `[B, ...]` with noise `[B, ...]`: the row columns `[B, ...]` and the next carry."""

    def post(self, params: Params, trajectory: Trajectory) -> Batch:
        """Turn one tile's round into training rows `[T * B, ...]`, in the order `t * B + b`.

        For an off-policy algorithm `params` are empty: rows stay in the window, and are recomputed from the shards
        after a restart, so they may depend on nothing else.
        """

    def stats(self, _batch: Batch) -> dict[str, Tensor]:
        """Return global quantities as sums over one tile's rows: numbers for losses, any shape for `after_round`."""
        return {}

    def plan(self, generator: torch.Generator, window: Window) -> Iterable[Tensor | Draw]:
        """Return index arrays (int64) over the window's rows, one a minibatch; no array means no update this round.

        It is evaluated lazily: with a prioritised window, each minibatch is requested after the one before was learned.
        The number of minibatches may not depend on priorities.
        """

    def update(self, state: State, loss: Loss, gradient: Tensor) -> State:
        """Apply one optimizer step to the group of `loss`; the gradient is `[P]`, in the order of its vector."""

    def after_minibatch(self, state: State) -> State:
        """Update targets and schedules; called once after all losses of a minibatch."""
        return state


@runtime_checkable
class FollowsRounds(Protocol):
    """An algorithm whose state also changes once a round, such as one with normalisers."""

    def after_round(self, state: State, stats: Mapping[str, Tensor]) -> State:
        """Merge a round's totals into the state; called once after its last minibatch.

        All of the round (`post`, losses) was learned with the state before; the next version has the one after. It may
        change targets and parameter groups that no loss trains, in place: a parameter server gets these.

        Args:
            state: after the round's minibatches.
            stats: totals of `stats` over all tiles, float64 on the host; the same on all learners. Where rounds stay on
                a device (`roles.learning.device_round`) they are there, too: `.to` brings them to the state's.
        """


@runtime_checkable
class SumsMinibatches(Protocol):
    """An on-policy algorithm whose losses need quantities of a whole minibatch, such as the mean of its advantages."""

    @property
    def summed_columns(self) -> tuple[str, ...]:
        """The columns of training rows that `minibatch_stats` gets; none: it is never called."""

    def minibatch_stats(self, rows: Batch) -> dict[str, Tensor]:
        """Return sums `[]` over some rows of a minibatch, maybe none, in float64.

        All minibatches are summed before the first is learned, so that learners exchange one message a round. The
        losses of a minibatch find its totals in `LossInputs.stats`, besides those of the round.
        """


class DelaysLosses(Protocol):
    """An algorithm some of whose losses take no step in some minibatches: their gradients are not computed there."""

    def is_due(self, loss: Loss, state: State) -> bool:
        """Return whether a loss takes a step in the minibatch that begins with this state.

        It depends on the state's targets alone, which are the same on all learners. Where learners may be apart
        (`max_staleness`) every loss is computed, so `update` must ignore the gradient of one that is not due.
        """


def due_losses(algorithm: Algorithm, losses: tuple[Loss, ...], state: State) -> tuple[Loss, ...]:
    """Return those of the losses that take a step in the minibatch that begins with this state, in order."""
    # Called for each minibatch: whether it is a `DelaysLosses` takes `isinstance` 8 to 10 us.
    is_due: Callable[[Loss, State], bool] | None = getattr(algorithm, "is_due", None)
    return losses if is_due is None else tuple(loss for loss in losses if is_due(loss, state))


def round_limit(algorithm: Algorithm) -> RoundLimit | None:
    """Return the limit at which an algorithm's rounds end early; None for one that learns all that it plans."""
    limit: RoundLimit | None = getattr(algorithm, "limit", None)
    return limit


def window_spec(algorithm: Algorithm) -> WindowSpec | None:
    """Return an off-policy algorithm's window; None for an on-policy one."""
    spec: WindowSpec | None = getattr(algorithm, "window", None)
    return spec

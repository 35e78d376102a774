"""Values that a critic learns: targets normalised by running moments, and limited errors. Pure torch.

An algorithm may import this. `ValueNormalizer` is ValueNorm of Yu et al. 2022 (arXiv 2103.01955), after PopArt (van
Hasselt et al. 2016, arXiv 1602.07714): the moments of the targets so far, of all rows alike or with exponentially
smaller weights for earlier rounds. The critic's outputs are values in these units; `restored` gives them their own
back. As in Yu et al.'s program by default, weights of the critic's last layer stay as they are when the moments change:
losses alone train them.

Moments change in `after_round`, by the sums of a round, so that one round is learned with one scale on every learner.
They are in `State.targets`, and what is applied is in a parameter group that no loss trains (`normalizers`). Before the
first round's end, values are in their own units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from penstock.tasks.model.nn import kernels
from penstock.tasks.model.nn.normalizers import Normalizer
from penstock.tasks.tape.operations import call

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.tasks.specs import Params, State


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueNormalizer:
    """The normaliser of value targets; its state is the algorithm's."""

    enabled: bool = True
    """False leaves values in their own units, and adds nothing to the state."""
    decay: float = 1.0
    """Factor on the weight of all rows so far at the end of a round, before its own are added: the moments are debiased
    exponential means, and with 1 plain ones."""

    @property
    def _targets(self) -> Normalizer:
        return Normalizer(group="value_targets", shape=(1,), limit=math.inf)

    def init(self, state: State) -> None:
        """Add the normaliser to a fresh state."""
        if self.enabled:
            self._targets.init(state)

    def normalized(self, params: Params, values: Tensor) -> Tensor:
        """Convert values `[...]` in units of the rewards to those of the critic's outputs, without gradients."""
        return self._targets.apply(params, values.unsqueeze(-1)).squeeze(-1) if self.enabled else values

    def restored(self, params: Params, outputs: Tensor) -> Tensor:
        """Convert the critic's outputs `[...]` to values in units of the rewards."""
        if not self.enabled:
            return outputs
        group = params[self._targets.group]
        return outputs / group["scale"] + group["mean"]

    def sums(self, targets: Tensor, counted: Tensor | None = None) -> dict[str, Tensor]:
        """Return the sums for `Algorithm.stats` of value targets `[...]`, in units of the rewards.

        `counted` is `[...]`, 1 for those that count and 0 for others; None counts all.
        """
        counted = None if counted is None else counted.flatten()
        return self._targets.sums(targets.reshape(-1, 1), counted) if self.enabled else {}

    def update(self, state: State, stats: Mapping[str, Tensor]) -> None:
        """Merge a round's totals, in place; for `Algorithm.after_round`."""
        if self.enabled:
            state.targets[f"{self._targets.group}/count"].mul_(self.decay)
            self._targets.update(state, stats)


def limited_value_error(
    outputs: Tensor, target: Tensor, before: Tensor | None, *, huber_delta: float, clip_range: float
) -> Tensor:
    """Return the error of values that change within limits: half the square, or Huber's.

    With a clip range it is the larger one of two errors, of the value and of the value held within that range of
    `before` (Yu et al. 2022, arXiv 2103.01955, appendix A). As with PPO's surrogate, a value that has left the range
    towards its target has no gradient.

    Args:
        outputs: `[..., n]`, of which the last is the value.
        target: `[...]`, without a gradient.
        before: `[...]`, values before the round's first minibatch; None without a clip range.
        huber_delta: the error beyond which the loss is linear (Huber 1964, doi 10.1214/aoms/1177703732); 0: nowhere.
        clip_range: the largest change of a value that lowers its error; 0: any.

    Returns:
        The error `[...]`.
    """
    if not clip_range:
        before = None
    elif before is None:
        raise ValueError(f"clip_range = {clip_range:g} without values before: give the values that it limits")
    tape, number = kernels.tape_for(outputs), kernels.level_number(outputs)
    is_plain = kernels.plain(outputs) and kernels.constant(target) and target.shape == outputs.shape[:-1]
    is_plain = is_plain and (before is None or (kernels.constant(before) and before.shape == target.shape))
    if tape is None or number is None or not is_plain:
        value = outputs[..., -1]
        error = _error(value - target, huber_delta)
        if before is None:
            return error
        held = before + (value - before).clamp(-clip_range, clip_range)
        return torch.maximum(error, _error(held - target, huber_delta))
    slope, found, sizes = torch.empty(target.shape), torch.empty(target.shape), (target.numel(), outputs.shape[-1])
    call(number, "limited_error", (outputs, target, before, slope, found), sizes, (huber_delta, clip_range))

    def back(gradients: Sequence[Tensor | None]) -> Sequence[Tensor]:
        to_outputs = torch.empty(outputs.shape)
        call(number, "half_square_back", (kernels.contiguous_or_none(gradients[0]), slope, to_outputs), sizes)
        return (to_outputs,)

    tape.record((outputs,), (found,), back)
    return found


def _error(difference: Tensor, delta: float) -> Tensor:
    """Return half the square of a difference, and beyond `delta`, unless that is 0, its tangent."""
    if not delta:
        return 0.5 * difference.square()
    slope = difference.detach().clamp(-delta, delta)
    return slope * (difference - 0.5 * slope)

"""Normalised value targets: the critic learns them with mean 0 and deviation 1. Pure torch; an algorithm may import it.

ValueNorm of Yu et al. 2022 (arXiv 2103.01955), after PopArt (van Hasselt et al. 2016, arXiv 1602.07714): the moments of
the targets so far, of all rows alike or with exponentially smaller weights for earlier rounds. The critic's outputs are
values in these units; `restored` gives them their own back. As in Yu et al.'s program by default, weights of the
critic's last layer stay as they are when the moments change: losses alone train them.

Moments change in `after_round`, by the sums of a round, so that one round is learned with one scale on every learner.
They are in `State.targets`, and what is applied in a parameter group that no loss trains (`normalizers`). Before the
first round's end, values are in their own units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.tasks.model.nn.normalizers import Normalizer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

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

    def sums(self, targets: Tensor) -> dict[str, Tensor]:
        """Return the sums for `Algorithm.stats` of value targets `[...]`, in units of the rewards."""
        return self._targets.sums(targets.reshape(-1, 1)) if self.enabled else {}

    def update(self, state: State, stats: Mapping[str, Tensor]) -> None:
        """Merge a round's totals, in place; for `Algorithm.after_round`."""
        if self.enabled:
            state.targets[f"{self._targets.group}/count"].mul_(self.decay)
            self._targets.update(state, stats)

"""The window of rounds from which a plan draws rows, and the rows' priorities; without the rows themselves.

Every learner and the server have the same window: it follows from the number of rounds, and from priorities that all of
them get. So all draw the same rows, whichever learner has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from penstock.storage.errors import ConfigError, DivergedError
from penstock.tasks.data.input.sampling import ReplayWindow
from penstock.tasks.model.algorithms.contract import Draw

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from penstock.tasks.model.algorithms.contract import WindowSpec


def training_rows(spec: WindowSpec, round_steps: int, stored_rows: int) -> int:
    """Return the training rows of a round that has so many stored ones.

    Raises:
        ConfigError: the steps of a round are not a whole number of training rows.
    """
    if round_steps % spec.row_steps:
        raise ConfigError(
            f"schedule.round_steps = {round_steps}: the algorithm's training rows have {spec.row_steps} steps each "
            f"(WindowSpec.row_steps), and a round is a whole number of them; change one of the two"
        )
    return stored_rows // spec.row_steps


class RoundWindow:
    """The newest whole rounds; a plan sees it as `penstock.tasks.model.algorithms.contract.Window`.

    Args:
        spec: of an off-policy algorithm; None: the window is one round.
        round_rows: training rows of a round, of all learners.
        rounds: that were learned before.
        kept: the result of `export` after these; nothing for a uniform window.

    Raises:
        ConfigError: a round is more than the window holds.
    """

    def __init__(
        self,
        spec: WindowSpec | None,
        round_rows: int,
        rounds: int = 0,
        kept: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        capacity_rounds = spec.capacity_rows // round_rows if spec else 1
        if not capacity_rounds:
            raise ConfigError(
                f"the window holds {spec.capacity_rows if spec else 0} rows, and a round has {round_rows}: raise "
                f"algorithm.window_rows, or shorten schedule.round_steps"
            )
        self.round_rows = round_rows
        self.prioritised = spec is not None and spec.priority_exponent > 0
        self._rounds = rounds
        self._window = ReplayWindow(capacity_rounds * round_rows, 0, exponent=spec.priority_exponent if spec else 0.0)
        held = min(rounds, capacity_rounds)
        if held:
            counters = np.array([(rounds - held) * round_rows, rounds * round_rows, 0.0, 1.0])
            self._window.restore(kept or {"counters": counters, "priorities": np.empty(0)}, [round_rows] * held)

    @classmethod
    def of_round(cls, rows: int, round_: int = 0) -> RoundWindow:
        """Return a window of one round, counted over the run, for an on-policy algorithm."""
        window = cls(None, rows)
        window._rounds = round_
        window.begin_round()
        return window

    @property
    def rows(self) -> int:
        """Return the number of rows in the window."""
        return len(self._window)

    @property
    def rounds(self) -> range:
        """Return the rounds in the window."""
        return range(self._rounds - len(self._window) // self.round_rows, self._rounds)

    def begin_round(self) -> None:
        """Add the next round; the oldest one leaves if there is no room."""
        self._window.take_in(self.round_rows)
        self._rounds += 1

    def draw(self, generator: torch.Generator, count: int, correction: float = 1.0) -> Draw:
        """Draw rows as `penstock.tasks.model.algorithms.contract.Window.draw`."""
        uniform = torch.rand(count, generator=generator, dtype=torch.float64).numpy()
        sample = self._window.sample(count, correction, uniform)
        return Draw(torch.from_numpy(sample.ids - self._window.first_id), torch.from_numpy(sample.weights))

    def update(self, rows: torch.Tensor, priorities: torch.Tensor) -> None:
        """Set the priorities of rows.

        Args:
            rows: int64 `[n]`, as drawn in this round.
            priorities: float64 `[n]`, the same in every process that has this window.

        Raises:
            DivergedError: a priority is not finite.
            ValueError: a priority is negative.
        """
        values = priorities.cpu().numpy()
        if not np.isfinite(values).all():
            raise DivergedError.of(
                f"round {self._rounds - 1} diverged: {np.count_nonzero(~np.isfinite(values))} of {len(values)} "
                f"priorities of a minibatch are not finite"
            )
        self._window.update(rows.numpy() + self._window.first_id, values)

    def export(self) -> dict[str, NDArray[Any]]:
        """Return the state for a checkpoint: empty unless the window is prioritised."""
        return self._window.export() if self.prioritised else {}

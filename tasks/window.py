"""The window of rounds that a plan takes rows from, and what each row is worth; without the rows themselves.

Every learner and the server have the same one: it follows from the number of rounds, and from priorities that all of
them get. So all draw the same rows, whoever has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from storage.errors import ConfigError
from tasks.algorithm import Draw
from tasks.sampling import ReplayWindow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from tasks.algorithm import WindowSpec


class RoundWindow:
    """The newest whole rounds; `tasks.algorithm.Window` is what a plan sees of it.

    Args:
        spec: of an off-policy algorithm; None: the window is one round.
        round_rows: training rows of a round, of all learners.
        rounds: that were learned before.
        kept: what `export` gave after these; of a uniform window nothing.

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
    def of_round(cls, rows: int) -> RoundWindow:
        """One round, of so many rows: what an on-policy algorithm learns from."""
        window = cls(None, rows)
        window.begin_round()
        return window

    @property
    def rows(self) -> int:
        """Rows in the window."""
        return len(self._window)

    @property
    def rounds(self) -> range:
        """Rounds in the window."""
        return range(self._rounds - len(self._window) // self.round_rows, self._rounds)

    def begin_round(self) -> None:
        """Take in the next round; the oldest one leaves if there is no room."""
        self._window.take_in(self.round_rows)
        self._rounds += 1

    def draw(self, generator: torch.Generator, count: int, correction: float = 1.0) -> Draw:
        """As `tasks.algorithm.Window.draw`."""
        uniform = torch.rand(count, generator=generator, dtype=torch.float64).numpy()
        sample = self._window.sample(count, correction, uniform)
        return Draw(torch.from_numpy(sample.ids - self._window.first_id), torch.from_numpy(sample.weights))

    def update(self, rows: torch.Tensor, priorities: torch.Tensor) -> None:
        """Say what rows are worth.

        Args:
            rows: int64 `[n]`, as drawn in this round.
            priorities: float64 `[n]`, the same for all who have this window.

        Raises:
            ValueError: a priority is negative or not finite.
        """
        self._window.update(rows.numpy() + self._window.first_id, priorities.cpu().numpy())

    def export(self) -> dict[str, NDArray[Any]]:
        """What a checkpoint has to hold of it: nothing, unless it is prioritised."""
        return self._window.export() if self.prioritised else {}

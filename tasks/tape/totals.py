"""The totals of a round, as the losses of its minibatches get them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from penstock.tasks.tape.capture import current_capture

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor


class RoundTotals(Mapping[str, float]):
    """Numbers by name, which kernels find at an address: a captured loss reads those of a later round there.

    Reading one as a Python number keeps a loss from being captured, since the number is another one in each round.
    """

    def __init__(self, values: Mapping[str, float]) -> None:
        self._values = dict(values)
        self.vector = torch.tensor(list(values.values()), dtype=torch.float64)
        """All of them, float64 `[n]`, in the order of the names."""
        self._places: dict[str, Tensor] = dict(zip(values, self.vector.split(1), strict=True)) if values else {}

    def __getitem__(self, name: str) -> float:
        capture = current_capture()
        if capture is not None:
            capture.fail(f"it reads the total '{name}' as a number")
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def place(self, name: str) -> Tensor:
        """Return the number of a name as float64 `[1]`, a part of the vector."""
        return self._places[name]

"""Samples a placement network, by default the untrained one, a hand-written rule, for what `placing.py` compares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from penstock import native
from penstock.native.floorplan import PlacementCost, load_environment, placing_order
from penstock.tasks.model.nn.placement_network import floorplan, init_floorplan
from penstock.tasks.specs import Facts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray
    from torch import Tensor

NOISE = 0.05  # of the rule's sampling, next to its logits


class RulePolicy:
    """Continues partial placements by the rule, or by a policy learned elsewhere, with little noise. A context manager.

    Args:
        start: the block; its fixed macros stand.
        seed: of the network's first parameters and of the noise.
        params: of a learned policy, whose network has 16 features; None: the untrained one's.
        noise: of its sampling, next to its logits.
    """

    def __init__(
        self, start: PlacementCost, seed: int, params: Mapping[str, Tensor] | None = None, noise: float = NOISE
    ) -> None:
        torch.set_num_threads(1)
        self._seed = seed
        self._macros = len(placing_order(start))
        self._pool = native.make(load_environment(start).environment_ids[0], 1, num_threads=1)
        self._facts = Facts(self._pool.environment["facts"])
        columns, rows = (int(number) for number in self._facts["grid"])
        self._cells = columns * rows
        self._generator = torch.Generator().manual_seed(seed)
        fresh = init_floorplan(self._facts, 16, (64,), self._cells + 1, 0.01, self._generator)
        self._params = fresh if params is None else params
        self._noise = noise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    @torch.inference_mode()
    def __call__(self, first: tuple[int, ...] = ()) -> list[int] | None:
        """Return the cells of all hard macros, the largest first, beginning with `first`; None where one finds none."""
        cells: list[int] = []
        observation, _ = self._pool.reset(seed=self._seed)
        while True:
            cells.append(first[len(cells)] if len(cells) < len(first) else self._cell(observation))
            if len(cells) == self._macros:  # not stepped: the step would place soft macros
                return cells
            observation, _, terminated, *_ = self._pool.step(np.array([cells[-1]]))
            if terminated[0]:
                return None

    def _cell(self, observation: NDArray[Any]) -> int:
        seen = torch.from_numpy(observation)
        logits = floorplan(self._params, self._facts, seen[:, self._cells :])[:, : self._cells]
        uniform = torch.rand(1, self._cells, generator=self._generator).clamp_min(1e-12)
        logits = logits - self._noise * torch.log(-torch.log(uniform))
        return int(logits.masked_fill(seen[:, : self._cells] == 0, -torch.inf).argmax())

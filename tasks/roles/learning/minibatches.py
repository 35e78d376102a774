"""Turns a plan into rows: a learner's share of a minibatch, its gathered rows, and their noise.

Rows are numbered over the rounds of a window, and in each round over the tiles of all learners. A learner has
contiguous tiles, and so the same range of every round; its own rows are numbered likewise, without the others'.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch

from penstock.native import fill_noise
from penstock.tasks.model.algorithms.contract import WEIGHT, Draw
from penstock.tasks.seeds import Purpose, seed_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import Tensor

    from penstock.tasks.specs import Batch, NoiseSpec


@dataclass(frozen=True, slots=True)
class Share:
    """A learner's share of a planned minibatch."""

    rows: Tensor
    """int64 `[n]`, rows of all learners: the minibatch as planned."""
    own: Tensor
    """int64 `[m]`, this learner's rows by their own numbers, in the plan's order."""
    places: Tensor
    """int64 `[m]`, their positions in the minibatch."""
    weights: Tensor | None
    """float32 `[m]`, if they were drawn with weights."""


def take_share(plan: Iterable[Tensor | Draw], own: range, round_rows: int) -> Iterator[Share]:
    """Yield this learner's share of each planned minibatch.

    Args:
        plan: rows of the window, one array a minibatch.
        own: this learner's rows of every round.
        round_rows: rows of a round, of all learners.
    """
    whole = len(own) == round_rows
    for planned in plan:
        rows, weights = (planned.rows, planned.weights) if isinstance(planned, Draw) else (planned, None)
        if whole:
            yield Share(rows, rows, _all_places(len(rows)), weights)
            continue
        offsets = rows % round_rows
        places = ((offsets >= own.start) & (offsets < own.stop)).nonzero().squeeze(-1)
        mine, offsets = rows[places], offsets[places]
        numbers = (mine - offsets) // round_rows * len(own) + offsets - own.start
        yield Share(rows, numbers, places, None if weights is None else weights[places])


@lru_cache(maxsize=16)
def _all_places(count: int) -> Tensor:
    """Return the positions of a minibatch's rows, which nobody changes."""
    return torch.arange(count)


def gather_minibatches(
    take: Callable[[Tensor], Batch], shares: Iterable[Share], gather_rows: int
) -> Iterator[tuple[Share, Batch]]:
    """Yield the planned minibatches as rows; gathers many small ones at once, which only moves the same bytes sooner.

    Args:
        take: returns the rows `[n, ...]` of numbers `[n]`, possibly none.
        shares: of the minibatches; consumed no sooner than needed.
        gather_rows: about so many rows at once; 0: each minibatch alone.
    """
    waiting: list[Share] = []
    waiting_rows = 0
    for share in shares:
        waiting.append(share)
        waiting_rows += len(share.own)
        if waiting_rows >= gather_rows:
            yield from _gather(take, waiting)
            waiting, waiting_rows = [], 0
    if waiting:
        yield from _gather(take, waiting)


def rows_of(batch: Batch, rows: Tensor) -> Batch:
    """Return rows `[n, ...]` of a batch by number `[n]`."""
    there = rows.to(next(iter(batch.values())).device)
    return {name: column.index_select(0, there) for name, column in batch.items()}


def _gather(take: Callable[[Tensor], Batch], shares: list[Share]) -> Iterator[tuple[Share, Batch]]:
    together = take(torch.cat([share.own for share in shares]))
    sizes = [len(share.own) for share in shares]
    columns = {name: torch.split(column, sizes) for name, column in together.items()}
    device = next(iter(together.values())).device
    for share, minibatch in zip(shares, zip(*columns.values(), strict=True), strict=True):
        rows = dict(zip(columns, minibatch, strict=True))
        if share.weights is not None:
            rows[WEIGHT] = share.weights.to(device)
        yield share, rows


def loss_noise(spec: NoiseSpec, run_seed: int, loss: int, round_: int, minibatch: int, places: Tensor) -> Tensor:
    """Return random numbers for a loss, float32 `[n, *spec.shape]`, the same whichever learner has the rows.

    Args:
        spec: of which kind.
        run_seed: of the run.
        loss: its number among the algorithm's.
        round_: of the run.
        minibatch: of the round.
        places: int64 `[n]`, of the rows in the minibatch.
    """
    out = np.empty((1, len(places), *spec.shape), dtype=np.float32)
    seed = _loss_seed(run_seed, loss, minibatch)
    fill_noise(spec.kind, seed, Purpose.LOSS, np.ascontiguousarray(places.numpy()), round_, out)
    return torch.from_numpy(out[0])


@lru_cache(maxsize=4096)
def _loss_seed(run_seed: int, loss: int, minibatch: int) -> int:
    """Return the seed of a loss's noise, which every round uses again."""
    return seed_of(run_seed, Purpose.LOSS, loss, minibatch)

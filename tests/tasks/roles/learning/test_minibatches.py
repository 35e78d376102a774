"""Minibatches and noise are the same, whichever learner has the rows."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from penstock.tasks.model.algorithms.contract import Draw
from penstock.tasks.roles.learning.minibatches import gather_minibatches, loss_noise, rows_of, take_share
from penstock.tasks.specs import NoiseSpec

ALL = range(40)


def batch_of(count: int) -> dict[str, torch.Tensor]:
    return {"observation": torch.randn(count, 3), "number": torch.arange(count)}


def whole(plan):
    return take_share(plan, ALL, len(ALL))


@pytest.mark.parametrize("gather_rows", [0, 1, 10, 16, 1000])
def test_gathering_equals_plain_indexing(gather_rows: int):
    """However many minibatches are gathered at once, each holds its planned rows in their order."""
    batch = batch_of(40)
    plan = list(torch.randperm(40, generator=torch.Generator().manual_seed(2)).split([7, 9, 1, 8, 15]))
    plan += [torch.tensor([3, 3, 0])]
    found = list(gather_minibatches(partial(rows_of, batch), whole(plan), gather_rows))
    assert len(found) == len(plan)
    for (share, rows), index in zip(found, plan, strict=True):
        assert rows.keys() == batch.keys()
        assert torch.equal(share.rows, index)
        for name, column in batch.items():
            assert torch.equal(rows[name], column[index]), name


def test_gathering_waits_for_no_more_than_it_needs():
    """The plan is taken lazily, so that it may be endless or depend on what was learned; for 0 rows, one by one."""
    taken = []

    def plan():
        for start in range(4):
            taken.append(start)
            yield torch.arange(start * 5, start * 5 + 5)

    minibatches = gather_minibatches(partial(rows_of, batch_of(40)), whole(plan()), 10)
    next(minibatches)
    assert taken == [0, 1]
    assert sum(1 for _ in minibatches) == 3
    taken.clear()
    next(gather_minibatches(partial(rows_of, batch_of(40)), whole(plan()), 0))
    assert taken == [0]


def test_no_plan_gives_no_minibatch():
    """An empty plan is no error."""
    assert list(gather_minibatches(partial(rows_of, batch_of(40)), whole([]), 10)) == []


def test_shares_make_up_the_minibatch():
    """Three rounds of 40 rows, of which three learners have unequal stretches: nothing is lost, doubled or mixed up."""
    generator = torch.Generator().manual_seed(1)
    plan = [torch.randint(120, (17,), generator=generator) for _ in range(5)]
    plan += [torch.tensor([0, 39, 40, 119]), torch.arange(10, 20)]
    columns = torch.arange(120)
    weights = torch.rand(120, generator=generator)
    found = [torch.full_like(index, -1) for index in plan]
    weighed = [torch.zeros(len(index)) for index in plan]
    for own in (range(10), range(10, 12), range(12, 40)):
        mine = torch.cat([columns[40 * round_ + own.start : 40 * round_ + own.stop] for round_ in range(3)])
        draws = [Draw(index, weights[index]) for index in plan]
        shares = list(gather_minibatches(partial(rows_of, {"row": mine}), take_share(draws, own, 40), 30))
        assert len(shares) == len(plan)
        for number, (share, rows) in enumerate(shares):
            assert (found[number][share.places] == -1).all()
            found[number][share.places] = rows["row"]
            weighed[number][share.places] = rows["weight"]
    for index, rows, weight in zip(plan, found, weighed, strict=True):
        assert torch.equal(rows, index)
        assert torch.equal(weight, weights[index])


def test_noise_belongs_to_a_place_in_a_minibatch():
    """A learner's part is that of the whole; loss, round, minibatch and seed each give other numbers."""
    spec, places = NoiseSpec("normal", (2,)), torch.arange(1000)
    noise = loss_noise(spec, 7, 1, 5, 3, places)
    assert noise.shape == (1000, 2)
    assert torch.equal(loss_noise(spec, 7, 1, 5, 3, places[::3]), noise[::3])
    assert abs(float(noise.mean())) < 0.1
    assert abs(float(noise.std()) - 1) < 0.1
    for other in ((8, 1, 5, 3), (7, 0, 5, 3), (7, 1, 4, 3), (7, 1, 5, 2)):
        assert not (loss_noise(spec, *other, places) == noise).any()

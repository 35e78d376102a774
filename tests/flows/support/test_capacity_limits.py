"""The numbers of actors that saturate a part, and of learners that keep up, agree with cases computed by hand."""

from dataclasses import replace

import pytest

from penstock.flows.support.capacity_limits import MOST_ACTORS, enough_learners, limits_of
from penstock.tasks.setup.planning.capacity_model import LEARNING, predict

from ...tasks.setup.planning.test_auto_policy import EVEN, SIZES
from ...tasks.setup.planning.test_capacity_model import FOUR, FREE

WIDE = replace(FOUR, actors=64, lag=1)
ACTED = replace(EVEN, step=0.01, step_cpu=1e-9, infer=1e-9, write=1e-9, take=1e-9, fetch=1e-12, update=1e-9)
ROUND_SECONDS = 2 * 64 * 0.01  # of an actor with two tiles
TILE_ROWS = 8 * 64


def _deployment(actors: int):
    return replace(WIDE, actors=actors)


def test_a_learner_is_saturated_where_it_learns_as_long_as_is_acted():
    """An actor's rows take 0.1 s to learn from: those of 13 take longer than 1.28 s of acting, those of 12 do not."""
    parts = replace(ACTED, update_row=0.1 / (2 * TILE_ROWS))
    found = limits_of(_deployment, SIZES, parts, FREE)["learner"]
    assert found is not None
    assert found.actors == 13
    assert found.steps_per_second == pytest.approx(2 * TILE_ROWS / 0.1, rel=1e-3)


def test_what_never_saturates_has_no_number():
    """A store without limits is saturated by no number of actors, a slow one by few; a slow learner changes neither."""
    parts = replace(ACTED, update_row=1.0)
    unlimited = FREE | {"writes_per_second": 1e12, "reads_per_second": 1e12}
    assert limits_of(_deployment, SIZES, parts, unlimited)["object store requests"] is None
    slow = limits_of(_deployment, SIZES, parts, FREE | {"writes_per_second": 100.0})["object store requests"]
    assert slow is not None
    assert 1 < slow.actors < MOST_ACTORS
    fewer = predict(_deployment(slow.actors - 1), SIZES, parts, FREE | {"writes_per_second": 100.0})
    assert fewer.parts["object store requests"] < 10 * ROUND_SECONDS


def test_as_few_learners_as_keep_up():
    """One learner fewer takes longer than acting; where sums cost more than they save, the fastest number is taken."""
    parts = replace(ACTED, update_row=0.11 / (2 * TILE_ROWS), collective=1e-9)
    enough = enough_learners(lambda count: replace(WIDE, learners=count), SIZES, parts, FREE)
    taken = [
        sum(predict(replace(WIDE, learners=count), SIZES, parts, FREE).parts[name] for name in LEARNING)
        for count in (enough - 1, enough)
    ]
    assert taken[1] <= 10 * ROUND_SECONDS * 1.001 < taken[0]
    costly = replace(parts, collective=100.0)
    assert enough_learners(lambda count: replace(WIDE, learners=count), SIZES, costly, FREE) == 1

"""Nobody gets further ahead of the slowest than the bound allows, nobody waits for ever, and only such orders pass."""

from __future__ import annotations

from dataclasses import asdict
from random import Random

import pytest

from penstock.tasks.roles.reducing.pace import Pace, StalenessTally, check_order

CASES = [(2, 5, 1, 0), (2, 5, 1, 1), (3, 7, 1, 2), (4, 6, 3, 1), (2, 4, 2, 100), (1, 3, 1, 0)]


def walk(learners: int, minibatches: int, parts: int, bound: int, random: Random) -> list[int]:
    """Let a random learner of those that may send go next, and check every step; returns the order."""
    pace = Pace(learners, minibatches, parts, bound)
    sent, may_send = [0] * learners, set(range(learners))
    order: list[int] = []
    while len(order) < pace.total:
        learner = random.choice(sorted(may_send))
        assert sent[learner] // parts - min(sent) // parts <= bound
        assert pace.part_of(learner) == sent[learner] % parts
        may_send.remove(learner)
        order.append(learner)
        sent[learner] += 1
        released = pace.arrive(learner)
        assert released == sorted(set(released))
        assert not may_send & set(released)
        may_send |= set(released)
        for one in released:
            assert pace.has_more(one) or min(sent) == minibatches * parts, "a round's last replies go to all at once"
        may_send = {one for one in may_send if pace.has_more(one)}
    assert sent == [minibatches * parts] * learners
    assert sorted(released) == list(range(learners)), "all end the round together"
    return order


@pytest.mark.parametrize(("learners", "minibatches", "parts", "bound"), CASES)
def test_nobody_gets_further_ahead_than_the_bound(learners, minibatches, parts, bound):
    """A hundred orders of arrival, by chance: each ends, keeps the bound, and is an order that is allowed."""
    for seed in range(100):
        order = walk(learners, minibatches, parts, bound, Random(seed))
        check_order(Pace(learners, minibatches, parts, bound), order)


def test_without_staleness_learners_go_in_lock_step():
    """Each sends a minibatch, in any order, before one sends the next."""
    for seed in range(20):
        order = walk(3, 4, 1, 0, Random(seed))
        assert [sorted(order[start : start + 3]) for start in range(0, 12, 3)] == [[0, 1, 2]] * 4


@pytest.mark.parametrize(
    ("arrivals", "said"),
    [
        ((0, 1, 1), "it has 3 arrivals, expected 4"),
        ((0, 0, 0, 1), "arrival 2 is impossible: learner 0 has sent all of its 2 minibatches"),
        ((0, 0, 1, 1), ""),
        ((0, 2, 1, 1), "there is no learner 2 among 2"),
        ((-1, 0, 1, 1), "there is no learner -1 among 2"),
    ],
)
def test_an_impossible_order_is_refused(arrivals, said):
    """The error says which arrival can't be, and why."""
    if not said:
        check_order(Pace(2, 2, 1, 1), arrivals)
        return
    with pytest.raises(ValueError, match=said):
        check_order(Pace(2, 2, 1, 1), arrivals)


def test_an_order_beyond_the_bound_is_refused():
    """It was made with another bound, or altered."""
    with pytest.raises(ValueError, match="learner 0 is 1 minibatches ahead, with 0 allowed"):
        check_order(Pace(2, 2, 1, 0), (0, 0, 1, 1))


def test_a_tally_has_the_greatest_and_the_mean():
    """Also before anything was counted."""
    tally = StalenessTally()
    assert asdict(tally.counts())["mean_lead"] == 0.0
    for lead, delay in ((0, 1), (2, 0), (1, 5)):
        tally.add(lead, delay)
    assert asdict(tally.counts()) == {
        "minibatches": 3, "greatest_lead": 2, "mean_lead": 1.0, "greatest_delay": 5, "mean_delay": 2.0
    }  # fmt: skip

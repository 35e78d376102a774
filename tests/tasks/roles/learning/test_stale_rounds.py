"""A server's rounds with `max_staleness` follow the stored order, or store theirs before anything can be published."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from penstock.storage.errors import StageMismatchError
from penstock.storage.refs import order_name
from penstock.storage.runs.continuing.arrival_orders import ArrivalOrder, store_order, stored_orders
from penstock.tasks.roles.learning import stale_rounds
from penstock.tasks.roles.learning.stale_rounds import StaleRounds
from penstock.tasks.roles.learning.window import RoundWindow
from penstock.tasks.runtime.metrics import EdgeTally

from ...conftest import first_stage_of

if TYPE_CHECKING:
    from penstock.tasks.runtime.run_context import RunContext

    from ...conftest import MakeContext

ORDER = (0, 1, 1, 0)


@pytest.fixture
def context(make_context: MakeContext) -> RunContext:
    """Two learners, and two minibatches a round."""
    return make_context(
        {
            "environment": {"num_envs": 4, "envs_per_tile": 2},
            "schedule": {"round_steps": 8},
            "algorithm": {"epochs": 1, "minibatches": 2},
            "distribution": {"policy": "central", "learn_tasks": 2, "max_staleness": 1},
        }
    )


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the orders that rounds were served in, by a server whose learners always arrive in `ORDER`."""
    orders: list[Any] = []

    class Served:
        def __init__(self, *_: object) -> None: ...

        def serve(self, state: Any, pace: Any, order: Any) -> tuple[Any, tuple[int, ...]]:
            assert pace.total == len(ORDER)
            orders.append(order)
            return state, ORDER if order is None else order

    monkeypatch.setattr(stale_rounds, "ArrivalServer", Served)
    return orders


def serve(context: RunContext, round_: int = 0) -> None:
    links: Any = ("of one learner", "of the other")
    rounds = StaleRounds(first_stage_of("server"), context, links, 1)
    group: Any = SimpleNamespace(size=3)
    window = RoundWindow.of_round(context.round_rows)
    rounds.serve(context.algorithm.init(1), round_, group, window, EdgeTally())


def test_a_round_that_is_served_again_follows_its_order(context, followed):
    """The order is stored when the round was served; a round without one is free."""
    store = context.run.store
    serve(context)
    name = order_name(0, 0, 0)
    assert ArrivalOrder.decode(store.read(name), name).arrivals == ORDER
    serve(context)
    serve(context, 1)
    assert followed == [None, ORDER, None]
    assert sorted(stored_orders(store, 0, 0)) == [0, 1]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{}", "was altered or cut short"),
        (ArrivalOrder(0, (0, 1)).encode(), "it has 2 arrivals, expected 4"),
        (ArrivalOrder(0, (0, 2, 1, 0)).encode(), "there is no learner 2 among 2"),
    ],
)
def test_an_order_that_can_not_be_followed_gives_the_attempt_up(context, followed, data, said):
    """The round can't be learned again to what was published of it, so the stage starts again in new folders."""
    context.run.store.write(order_name(0, 0, 0), [data])
    with pytest.raises(StageMismatchError, match=rf"{said}.*starts again"):
        serve(context)
    assert followed == []


def test_an_order_of_another_server_counts(context, followed, monkeypatch):
    """It was stored while this one served the round otherwise: nothing that follows may be published here."""
    real = store_order

    def store_second(store: Any, stage: int, attempt: int, order: ArrivalOrder) -> ArrivalOrder:
        real(store, stage, attempt, ArrivalOrder(order.round, (1, 0, 0, 1)))
        return real(store, stage, attempt, order)

    monkeypatch.setattr(stale_rounds, "store_order", store_second)
    with pytest.raises(StageMismatchError, match="another server stored an order of round 0"):
        serve(context)

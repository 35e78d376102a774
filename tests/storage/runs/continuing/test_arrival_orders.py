"""An order of arrivals is stored once, is what it was when it is read, and goes when its stage needs it no more."""

from __future__ import annotations

import json

import pytest

from penstock.storage.errors import CorruptObjectError
from penstock.storage.refs import order_name
from penstock.storage.runs.continuing.arrival_orders import ArrivalOrder, store_order, stored_orders
from penstock.storage.runs.copying import copy_run
from penstock.storage.runs.gc import collect
from penstock.storage.runs.run import RunFolder
from penstock.storage.runs.verification import repair, verify_run
from penstock.storage.stores.open import open_store

from ..test_gc import History

FIRST = ArrivalOrder(7, (0, 1, 1, 0))


def test_the_first_order_counts(tmp_path):
    """A second writer gets the first one's order, and nothing is overwritten; each attempt has its own."""
    store = open_store(tmp_path)
    assert store_order(store, 1, 0, FIRST) == FIRST
    assert store_order(store, 1, 0, ArrivalOrder(7, (1, 0, 0, 1))) == FIRST
    assert store_order(store, 1, 1, ArrivalOrder(7, (1, 0, 0, 1))).arrivals == (1, 0, 0, 1)
    store.write("orders/00000001/.DS_Store", [b"x"])
    assert stored_orders(store, 1, 0) == {7: order_name(1, 0, 7)}
    stored = json.loads(store.read(order_name(1, 0, 7)))
    assert len(stored.pop("digest")) == 32
    assert stored == {"format": "penstock-order/1", "round": 7, "arrivals": [0, 1, 1, 0]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]\n",
        FIRST.encode()[:-9],
        FIRST.encode().replace(b"7", b"8", 1),
        FIRST.encode().replace(b"[0,1,1,0]", b"[0,1,0,1]"),
        ArrivalOrder(7, ()).encode(),
        ArrivalOrder(8, (0, 1)).encode(),
        b'{"a":1}',
    ],
)
def test_an_order_that_was_altered_is_named(data):
    """An order that is truncated, of another round, empty, or with arrivals that changed places is never followed."""
    with pytest.raises(CorruptObjectError, match=order_name(1, 0, 7)):
        ArrivalOrder.decode(data, order_name(1, 0, 7))


def test_orders_are_verified_copied_and_collected_with_their_stage(tmp_path):
    """A damaged one is a fault that no commit names; a copy has all of them; those of committed stages are removed."""
    history = History(open_store(tmp_path / "runs"), real_shards=True)
    for stage in range(2):
        history.commit(stage)
    store = history.run.store
    for stage in range(3):
        store_order(store, stage, 0, ArrivalOrder(stage, (0, 1)))
    assert verify_run(history.run).faults == ()
    target = RunFolder(open_store(tmp_path / "copies"), "history")
    copy_run(history.run, target)
    assert target.store.list("orders/") == store.list("orders/") == [order_name(stage, 0, stage) for stage in range(3)]
    collect(history.run)
    assert store.list("orders/") == [order_name(2, 0, 2)]
    (tmp_path / "runs" / "history" / order_name(2, 0, 2)).write_bytes(b"{}")
    (fault,) = verify_run(history.run).faults
    assert (fault.name, fault.committed) == (order_name(2, 0, 2), False)
    assert repair(history.run, [fault]) == [fault.name]
    assert verify_run(history.run).faults == ()

"""The order of reading has every row once, is the same for any number of readers, and exact from any cursor."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.storage.errors import ConfigError
from penstock.storage.shards.epoch_order import EpochOrder, ReaderState, permutation

CASES = [
    {"shuffle": shuffle, "lanes": lanes, "window_shards": window, "batch_rows": batch_rows}
    for shuffle in ("none", "shards", "rows")
    for lanes, window, batch_rows in ((1, 1, 7), (3, 2, 5), (4, 3, 16), (8, 2, 64))
]
SHARD_ROWS = [9, 4, 1, 12, 7, 7, 0, 3, 20, 5, 11]


def read(order: EpochOrder, cursor: int = 0, reader: int = 0, readers: int = 1) -> dict[int, list[tuple[int, int]]]:
    """Return (shard, row) of every batch by its number, read with only the open windows in memory."""
    held, batches = {}, {}
    for plan in order.read(cursor, reader, readers):
        for window in plan.opens:
            key = (window.lane, window.index)
            assert key not in held, "opened while it was open"
            held[key] = np.array([(shard, row) for shard in window.shards for row in range(SHARD_ROWS[shard])])
        rows = [held[piece.window][order.rows(piece)] for piece in plan.pieces]
        batches[plan.index] = [tuple(row) for row in np.concatenate(rows).tolist()]
        for key in plan.closes:
            del held[key]
    return batches


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_epoch_is_every_row_once(case):
    """No row is missing or repeated, and batches are whole except for the last of each lane."""
    batches = read(EpochOrder(SHARD_ROWS, seed=3, epoch=1, **case))
    rows = [row for batch in batches.values() for row in batch]
    assert sorted(rows) == [(shard, row) for shard, count in enumerate(SHARD_ROWS) for row in range(count)]
    assert list(batches) == list(range(len(batches)))
    assert sum(len(batch) != case["batch_rows"] for batch in batches.values()) <= case["lanes"]


@pytest.mark.parametrize("readers", [1, 2, 3, 8])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_several_readers_read_the_rows_of_one(case, readers):
    """From any cursor on, the parts are disjoint, and their union is the rest of the epoch."""
    order = EpochOrder(SHARD_ROWS, seed=3, epoch=1, **case)
    whole = read(order)
    for cursor in range(len(order) + 1):
        parts = [read(order, cursor, reader, readers) for reader in range(readers)]
        assert sum(map(len, parts)) == len(order) - cursor
        union = {index: batch for part in parts for index, batch in part.items()}
        assert union == {index: batch for index, batch in whole.items() if index >= cursor}


def test_readers_that_divide_the_lanes_share_no_shard():
    """Each shard is opened by one of two readers of four lanes as long as all lanes have rows, and so read once."""
    order = EpochOrder([8] * 12, batch_rows=4, shuffle="shards", lanes=4)
    opened = [
        {shard for plan in order.read(0, reader, 2) for window in plan.opens for shard in window.shards}
        for reader in range(2)
    ]
    assert opened[0] | opened[1] == set(range(12))
    assert opened[0] & opened[1] == set()


def test_without_shuffling_rows_come_as_they_were_stored():
    """The log's order, row by row, across shards."""
    batches = read(EpochOrder(SHARD_ROWS, batch_rows=10))
    assert [row for batch in batches.values() for row in batch] == [
        (shard, row) for shard, count in enumerate(SHARD_ROWS) for row in range(count)
    ]


def test_epochs_and_seeds_have_different_orders():
    """Another epoch or seed gives another order; the same ones give the same order."""
    orders = [
        read(EpochOrder(SHARD_ROWS, batch_rows=8, shuffle="rows", window_shards=4, seed=seed, epoch=epoch))
        for seed, epoch in ((0, 0), (0, 1), (1, 0), (0, 0))
    ]
    assert orders[0] == orders[3]
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_a_permutation_is_the_same_everywhere():
    """These numbers are part of what a cursor means: they must never change."""
    assert permutation(10, 1, 2, 3).tolist() == PERMUTED
    assert sorted(permutation(1000, 5).tolist()) == list(range(1000))
    assert permutation(0, 1).tolist() == []


PERMUTED = [1, 8, 2, 4, 6, 5, 0, 9, 7, 3]


def test_short_batches_can_be_left_out():
    """With `drop_last` every batch is whole."""
    batches = read(EpochOrder(SHARD_ROWS, batch_rows=6, lanes=2, drop_last=True))
    assert {len(batch) for batch in batches.values()} == {6}


def test_an_empty_log_has_no_batches():
    """Reading it ends at once."""
    for rows in ([], [0, 0]):
        order = EpochOrder(rows, batch_rows=4, shuffle="rows", lanes=3)
        assert (len(order), list(order.read())) == (0, [])


@pytest.mark.parametrize("wrong", [{"batch_rows": 0}, {"lanes": 0}, {"window_shards": 0}, {"shuffle": "all"}], ids=str)
def test_invalid_settings_are_refused(wrong):
    """The error names the setting."""
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        EpochOrder([4], **{"batch_rows": 2, **wrong})


def test_a_readers_state_makes_a_round_trip_as_json():
    """Anything else is refused."""
    state = ReaderState(commit=3, epoch=1, seed=7, cursor=120)
    assert ReaderState.from_json(state.to_json()) == state
    for damaged in ({}, {**state.to_json(), "more": 1}, {**state.to_json(), "cursor": "120"}):
        with pytest.raises(ValueError, match="not a reader's state"):
            ReaderState.from_json(damaged)

"""Sampling over stored rows: as likely as priorities say, within the window, and the same sequence after a resume."""

import threading

import numpy as np
import pytest

from penstock.storage.errors import StoreError
from penstock.storage.refs import ShardRef
from penstock.tasks.data.input.row_cache import ShardRows, StoredRows
from penstock.tasks.data.input.sampling import ReplayWindow, SumTree

NOTHING = np.empty(0, np.int64)


def shards(count, rows=None, nbytes=800):
    sizes = rows or [100] * count
    return [ShardRef(f"shards/{index}", "0" * 32, nbytes, index, 0, sizes[index]) for index in range(count)]


@pytest.mark.parametrize("leaves", [1, 2, 3, 7, 8, 1000])
@pytest.mark.parametrize("seed", range(3))
def test_the_tree_equals_a_running_sum(leaves, seed):
    """Against NumPy's cumulative sum, with zeros among the values, after any order of updates."""
    generator = np.random.default_rng(seed)
    tree, values = SumTree(leaves), np.zeros(leaves)
    for _ in range(20):
        indices = generator.choice(leaves, size=min(leaves, 5), replace=False)
        values[indices] = generator.integers(0, 4, len(indices))
        tree.put(indices, values[indices].astype(np.float64))
        assert tree.total == values.sum()
        if tree.total:
            sums = generator.uniform(0, tree.total, 50)
            np.testing.assert_array_equal(tree.find(sums), np.searchsorted(np.cumsum(values), sums, side="right"))


def test_the_tree_depends_on_its_leaves_alone():
    """However its values came about: otherwise a resumed run would draw other rows."""
    generator = np.random.default_rng(1)
    values = generator.uniform(0, 1, 777)
    at_once, one_by_one = SumTree(777), SumTree(777)
    at_once.put(np.arange(777), values)
    for index in generator.permutation(777):
        one_by_one.put(np.array([index]), np.array([9.9]))
        one_by_one.put(np.array([index]), values[[index]])
    assert at_once.total == one_by_one.total
    sums = generator.uniform(0, at_once.total, 1000)
    np.testing.assert_array_equal(at_once.find(sums), one_by_one.find(sums))


def test_rounding_leads_to_no_row_that_is_worth_nothing():
    """The largest sum below the total, over values of very different size."""
    tree = SumTree(8)
    tree.put(np.arange(8), np.array([1e16, 1.0, 0.0, 3e-9, 0.0, 0.0, 0.0, 0.0]))
    found = tree.find(np.nextafter(np.array([tree.total, 1e16]), 0.0))
    assert (tree.get(found) > 0).all()


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_priorities_that_are_none_are_refused(bad, exponent):
    """By value, before anything is changed; also where a power would hide the sign."""
    window = ReplayWindow(200, 1, exponent=exponent)
    window.extend(shards(2))
    before = window.export()["priorities"]
    with pytest.raises(ValueError, match="priorities"):
        window.update(np.array([3, 4]), np.array([1.0, bad]))
    np.testing.assert_array_equal(window.export()["priorities"], before)


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_rows_are_drawn_as_often_as_their_priorities_say(seed, exponent):
    """Frequencies are within 5 standard deviations of p^alpha / sum, and weights undo them."""
    window = ReplayWindow(512, seed, exponent=exponent)
    window.extend(shards(4, rows=[100, 50, 100, 50]))
    priorities = np.random.default_rng(seed).uniform(0.1, 3.0, 300)
    window.update(np.arange(300), priorities)
    draws, count = 400, 64
    samples = [window.sample(count) for _ in range(draws)]
    drawn = np.bincount(np.concatenate([sample.ids for sample in samples]), minlength=300)
    chances = priorities**exponent / (priorities**exponent).sum()
    expected = draws * count * chances
    assert (np.abs(drawn - expected) < 5 * np.sqrt(expected)).all()
    for sample in samples[:5]:
        unbiased = 1 / chances[sample.ids]
        np.testing.assert_allclose(sample.weights, unbiased / unbiased.max(), rtol=1e-5)


@pytest.mark.parametrize("exponent", [0.0, 0.7])
@pytest.mark.parametrize("cut", [1, 7, 19])
def test_a_restored_window_resumes_with_the_same_sequence(exponent, cut):
    """Rows, weights and what is exported are the same to the byte, with shards that come and leave meanwhile."""
    refs = shards(24, rows=[30 + 7 * (index % 5) for index in range(24)])

    def step(window, index):
        window.extend(refs[4 + index : 5 + index])
        sample = window.sample(32)
        window.update(sample.ids, np.abs(np.sin(sample.ids * 1.7)) + 0.01 * index)
        return sample

    whole = ReplayWindow(300, 9, exponent=exponent)
    whole.extend(refs[:4])
    before = [step(whole, index) for index in range(cut)]
    exported = {name: value.copy() for name, value in whole.export().items()}
    after = [step(whole, index) for index in range(cut, 20)]
    resumed = ReplayWindow(300, 9, exponent=exponent)
    resumed.restore(exported, [ref.rows for ref in refs[: 4 + cut]])
    assert len(before) == cut
    for index, expected in zip(range(cut, 20), after, strict=True):
        found = step(resumed, index)
        np.testing.assert_array_equal(found.ids, expected.ids)
        np.testing.assert_array_equal(found.weights, expected.weights)
    for name, value in whole.export().items():
        np.testing.assert_array_equal(resumed.export()[name], value)


def test_only_shards_that_give_the_window_restore_it():
    """Others would lead to rows that were never drawn."""
    window = ReplayWindow(300, 9, exponent=1.0)
    window.extend(shards(5))
    with pytest.raises(ValueError, match="rows 250 to 500, expected 200 to 500"):
        ReplayWindow(300, 9, exponent=1.0).restore(window.export(), [50, 150, 50])
    with pytest.raises(ValueError, match="0 priorities for 300 rows"):
        ReplayWindow(300, 9, exponent=1.0).restore(window.export() | {"priorities": np.empty(0)}, [100] * 5)


@pytest.mark.parametrize("exponent", [0.0, 1.0])
def test_the_window_holds_the_newest_shards_and_no_more_rows(exponent):
    """Whole shards leave, oldest first; rows that left are neither drawn nor updated."""
    window = ReplayWindow(250, 3, exponent=exponent)
    refs = shards(30, rows=[20 + 11 * (index % 7) for index in range(30)])
    starts = np.cumsum([0, *(ref.rows for ref in refs)])
    for index, ref in enumerate(refs):
        window.extend([ref])
        assert len(window) <= 250
        assert window.next_id == starts[index + 1]
        assert window.first_id in starts
        assert len(window) + refs[np.searchsorted(starts, window.first_id) - 1].rows > 250 or not window.first_id
        window.update(np.array([0, window.next_id - 1]), np.array([5.0, 5.0]))
        sample = window.sample(40)
        assert ((sample.ids >= window.first_id) & (sample.ids < window.next_id)).all()
    with pytest.raises(ValueError, match="251 rows"):
        window.extend(shards(1, rows=[251]))
    with pytest.raises(ValueError, match="0 can't be drawn"):
        ReplayWindow(10, 1).sample(1)


def rows_of(ref):
    """32 bytes a row, and as many that were fetched."""
    generator = np.random.default_rng(ref.round)
    columns = {"observation": generator.normal(size=(ref.rows, 3)), "action": generator.integers(0, 9, ref.rows)}
    return ShardRows(("observation", "action"), columns, 1, NOTHING, NOTHING, 32 * ref.rows)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("budget_bytes", [1, 3_500, 10_000, 10**9])
def test_rows_are_gathered_within_the_budget(budget_bytes, threads):
    """In the order asked for, whatever is held; what is held and read never takes more, but for one shard alone."""
    refs = shards(10, rows=[49 - index for index in range(10)], nbytes=40 * 32)
    parts = [rows_of(ref).columns for ref in refs]
    everything = {name: np.concatenate([part[name] for part in parts]) for name in ("observation", "action")}
    rows = StoredRows(rows_of, budget_bytes, threads)
    rows.number(refs, 0)
    generator = np.random.default_rng(0)
    for turn in range(20):
        first = 3 * (turn // 10)
        start = sum(ref.rows for ref in refs[:first])
        rows.number(refs[first:], start)
        ids = generator.integers(start, len(everything["action"]), 64)
        found = rows.gather(ids)
        for name, value in found.items():
            np.testing.assert_array_equal(value, everything[name][ids])
        assert rows.held_bytes <= budget_bytes
    assert rows.peak_bytes <= max(budget_bytes, 2 * 32 * 49)
    if budget_bytes == 10**9:
        assert rows.reads == 10
        assert rows.hits > 0
        assert rows.held_bytes == 32 * sum(ref.rows for ref in refs[3:]), "shards that left are let go"
    rows.close()
    assert rows.held_bytes == 0


def test_missing_shards_are_read_at_once():
    """As many as there are threads and room for: this reader answers nobody before three have asked."""
    together = threading.Barrier(3)

    def read(ref):
        if ref.round:
            together.wait(150)
        return rows_of(ref)

    rows = StoredRows(read, 10**9, 3)
    rows.number(shards(7), 0)
    assert len(rows.gather(np.arange(700))["action"]) == 700
    rows.close()


def test_after_a_read_that_failed_rows_are_gathered_as_before():
    """Nothing that was under way is counted for ever."""
    broken = [True]

    def read(ref):
        if ref.round == 3 and broken[0]:
            raise StoreError("gone")
        return rows_of(ref)

    rows = StoredRows(read, 20_000, 4)
    rows.number(shards(8), 0)
    for _ in range(10):
        with pytest.raises(StoreError, match="gone"):
            rows.gather(np.arange(800))
    broken[0] = False
    for _ in range(2):
        rows.gather(np.arange(800))
    assert 3 * 3200 <= rows.held_bytes <= rows.peak_bytes <= 20_000
    rows.close()


def test_rows_that_are_not_there_are_refused():
    """By number."""
    rows = StoredRows(rows_of, 1000)
    rows.number(shards(2), 50)
    with pytest.raises(IndexError, match="rows 55 to 250, expected 50 to 249"):
        rows.gather(np.array([55, 250]))
    with pytest.raises(IndexError, match="no rows"):
        rows.gather(NOTHING)

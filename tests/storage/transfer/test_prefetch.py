"""Prefetching keeps order and budget, raises failures at the right item, and never hangs."""

import threading
import time
from dataclasses import dataclass

import pytest

from penstock.storage.stores.open import open_store
from penstock.storage.transfer.prefetch import Prefetcher


@dataclass(frozen=True)
class Wanted:
    index: int
    nbytes: int = 10


def in_thread(function, *args):
    thread = threading.Thread(target=function, args=args, daemon=True)
    thread.start()
    return thread


def submit_all(prefetcher, count, nbytes=10):
    def submit():
        for index in range(count):
            prefetcher.submit(Wanted(index, nbytes))

    return in_thread(submit)


def taken(prefetcher):
    """Take the next item's value, and release it at once."""
    held = prefetcher.take()
    held.release()
    return held.value


def eventually(condition):
    deadline = time.monotonic() + 150
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_items_are_taken_in_the_order_of_submission():
    """Later items are loaded before earlier ones here, and are still taken later."""
    gates = [threading.Event() for _ in range(4)]

    def load(ref):
        if ref.index < 3:
            assert gates[ref.index + 1].wait(150)
        gates[ref.index].set()
        return ref.index

    with Prefetcher(load, budget_bytes=1000, threads=4) as prefetcher:
        submit_all(prefetcher, 4)
        assert [taken(prefetcher) for _ in range(4)] == [0, 1, 2, 3]
        assert prefetcher.reads == 4


def test_stored_objects_are_read_ahead(tmp_path):
    """Two threads read all objects of a real store, in order."""
    store = open_store(str(tmp_path))
    for index in range(20):
        store.write(f"objects/{index}", [bytes([index]) * 100])
    with Prefetcher(lambda ref: bytes(store.view(f"objects/{ref.index}")), budget_bytes=250) as prefetcher:
        submit_all(prefetcher, 20, nbytes=100)
        assert [taken(prefetcher) for _ in range(20)] == [bytes([index]) * 100 for index in range(20)]
        assert prefetcher.wait_seconds >= 0


@pytest.mark.parametrize(("nbytes", "held"), [(10, 3), (35, 1), (1000, 1), (0, 4)])
def test_untaken_items_stay_within_the_budget(nbytes, held):
    """A budget of 35 bytes holds three items of ten; one always passes; of unknown size, two per thread."""
    loaded = []
    most = 0

    def load(ref):
        loaded.append(ref.index)
        return ref.index

    with Prefetcher(load, budget_bytes=35, threads=2) as prefetcher:
        submitting = submit_all(prefetcher, 12, nbytes)
        for index in range(12):
            eventually(lambda index=index: len(loaded) >= min(index + held, 12))
            most = max(most, len(loaded) - index)
            assert taken(prefetcher) == index
        submitting.join(150)
        assert not submitting.is_alive()
    assert most == held


def test_sizes_known_after_loading_are_charged():
    """A reference without a size is charged its loaded item's size."""
    loaded = []

    def load(ref):
        loaded.append(ref.index)
        return b"x" * 10

    with Prefetcher(load, budget_bytes=100, threads=1, size_of=len) as prefetcher:
        submit_all(prefetcher, 40, nbytes=0)
        # 50 bytes are set aside for what isn't loaded yet, so loaded ones of ten fill the other half, and then some.
        eventually(lambda: len(loaded) >= 6)
        assert len(loaded) <= 10
        assert [taken(prefetcher) for _ in range(40)] == [b"x" * 10] * 40


def test_an_error_of_one_item_is_raised_where_the_item_is_taken():
    """The items before and after it are taken as usual."""

    def load(ref):
        if ref.index == 1:
            raise OSError("the disk is gone")
        return ref.index

    with Prefetcher(load, budget_bytes=1000) as prefetcher:
        submit_all(prefetcher, 3)
        assert taken(prefetcher) == 0
        with pytest.raises(OSError, match="the disk is gone"):
            taken(prefetcher)
        assert taken(prefetcher) == 2
        assert prefetcher.reads == 2


def test_a_failure_of_the_submitter_is_raised_after_the_items_before_it():
    """It is raised again by every later take; the first failure counts."""
    with Prefetcher(lambda ref: ref.index, budget_bytes=1000) as prefetcher:
        submit_all(prefetcher, 2).join(150)
        prefetcher.fail(LookupError("no more shards"))
        prefetcher.fail(KeyError("a later one"))
        assert [taken(prefetcher), taken(prefetcher)] == [0, 1]
        for _ in range(2):
            with pytest.raises(LookupError, match="no more shards"):
                taken(prefetcher)


def test_a_failure_wakes_a_reader_that_waits():
    """The learner does not wait until the run ends when the submitter dies."""
    prefetcher = Prefetcher(lambda ref: ref.index, budget_bytes=10)
    caught = []

    def take():
        try:
            taken(prefetcher)
        except LookupError as error:
            caught.append(error)

    taking = in_thread(take)
    prefetcher.fail(LookupError("gone"))
    taking.join(150)
    assert len(caught) == 1
    prefetcher.close()


def test_close_wakes_all_waiting_threads():
    """A submitter blocked by the budget returns, a reader gets an error, the threads end; closing again is fine."""
    prefetcher = Prefetcher(lambda ref: ref.index, budget_bytes=10)
    submitting = submit_all(prefetcher, 5)
    eventually(lambda: prefetcher.reads == 1)
    empty = Prefetcher(lambda ref: ref.index, budget_bytes=10)
    messages = []

    def take():
        try:
            taken(empty)
        except RuntimeError as error:
            messages.append(str(error))

    taking = in_thread(take)
    for one in (prefetcher, empty, empty):
        one.close()
    for thread in (submitting, taking, *prefetcher._threads, *empty._threads):
        thread.join(150)
        assert not thread.is_alive()
    assert "closed" in messages[0]
    prefetcher.submit(Wanted(9))
    with pytest.raises(RuntimeError, match="closed"):
        taken(prefetcher)


def test_close_does_not_wait_for_a_load_that_hangs(monkeypatch):
    """A store that never answers can't keep a stage from ending."""
    monkeypatch.setattr("penstock.storage.transfer.prefetch._CLOSE_SECONDS", 0.05)
    never, begun = threading.Event(), threading.Event()

    def load(ref):
        begun.set()
        never.wait(150)

    prefetcher = Prefetcher(load, budget_bytes=10)
    prefetcher.submit(Wanted(0))
    assert begun.wait(150)
    prefetcher.close()
    assert any(thread.is_alive() for thread in prefetcher._threads)
    never.set()
    for thread in prefetcher._threads:
        thread.join(150)
        assert not thread.is_alive()


def test_a_load_may_close_the_prefetcher():
    """Closing from one of its own threads doesn't wait for itself."""
    closed = threading.Event()

    def load(ref):
        prefetcher.close()
        closed.set()

    prefetcher = Prefetcher(load, budget_bytes=10)
    prefetcher.submit(Wanted(0))
    assert closed.wait(150)


@pytest.mark.parametrize(("budget_bytes", "threads"), [(0, 1), (1, 0)])
def test_invalid_settings_are_refused(budget_bytes, threads):
    """They would hang."""
    with pytest.raises(ValueError):
        Prefetcher(lambda ref: ref, budget_bytes, threads)


def test_taken_items_count_until_they_are_released():
    """Three kept items of ten fill a budget of 30, except for the one that must pass."""
    loaded = []

    def load(ref):
        loaded.append(ref.index)
        return ref.index

    with Prefetcher(load, budget_bytes=30) as prefetcher:
        submit_all(prefetcher, 8)
        held = [prefetcher.take() for _ in range(3)]
        eventually(lambda: len(loaded) == 4)
        assert (prefetcher.held_bytes, prefetcher.peak_held_bytes) == (40, 40)
        for item in held:
            item.release()
            item.release()
        eventually(lambda: len(loaded) == 6)
        assert prefetcher.held_bytes == 30
        assert [taken(prefetcher) for _ in range(5)] == [3, 4, 5, 6, 7]
        assert (prefetcher.held_bytes, prefetcher.peak_held_bytes) == (0, 40)


def test_a_reader_that_holds_everything_still_gets_the_next_item():
    """It never waits for bytes that it alone could release."""
    with Prefetcher(lambda ref: ref.index, budget_bytes=10) as prefetcher:
        submit_all(prefetcher, 20)
        assert [prefetcher.take().value for _ in range(20)] == list(range(20))


def test_the_queue_depth_counts_loaded_items():
    """Two are loaded at the first take, one at the second."""
    with Prefetcher(lambda ref: ref.index, budget_bytes=20) as prefetcher:
        submit_all(prefetcher, 2).join(150)
        eventually(lambda: prefetcher.reads == 2)
        prefetcher.take()
        prefetcher.take()
        assert (prefetcher.takes, prefetcher.depth_sum) == (2, 3)


def test_submit_returns_false_after_closing():
    """The submitter then need not search for the next reference."""
    prefetcher = Prefetcher(lambda ref: ref.index, budget_bytes=20)
    assert prefetcher.submit(Wanted(0))
    prefetcher.close()
    assert not prefetcher.submit(Wanted(1))


def test_items_that_need_no_loading_are_taken_in_their_turn():
    """They are ready when they are submitted, wait for an item before them, and count like others."""
    gate = threading.Event()

    def load(ref):
        assert gate.wait(150)
        return -ref.index

    odd = {"at_once": lambda ref: ref.index if ref.index % 2 else None}
    with Prefetcher(load, budget_bytes=40, **odd) as prefetcher:
        assert prefetcher.submit(Wanted(1))
        assert prefetcher._threads == []
        assert (taken(prefetcher), prefetcher.held_bytes) == (1, 0)
        submitting = submit_all(prefetcher, 6)
        # 1 and 3 are ready, and 5 waits for room.
        eventually(lambda: (prefetcher.held_bytes, prefetcher.reads) == (40, 3))
        gate.set()
        assert [taken(prefetcher) for _ in range(6)] == [0, 1, -2, 3, -4, 5]
        submitting.join(150)
        assert (prefetcher.reads, prefetcher.peak_held_bytes, prefetcher.held_bytes) == (7, 40, 0)


def test_threads_start_with_the_first_item():
    """An unused prefetcher leaves nothing running; a closed one starts nothing."""
    prefetcher = Prefetcher(lambda ref: ref.index, budget_bytes=20, threads=3)
    assert prefetcher._threads == []
    prefetcher.submit(Wanted(0))
    assert len(prefetcher._threads) == 3
    prefetcher.close()
    unused = Prefetcher(lambda ref: ref.index, budget_bytes=20)
    unused.close()
    assert not unused.submit(Wanted(0))
    assert unused._threads == []


def test_a_reference_is_charged_by_charge_of():
    """The charge may exceed the reference's size: three of ten bytes, not one of 30, would fit into this budget."""
    loaded = []

    def load(ref):
        loaded.append(ref.index)
        return ref.index

    with Prefetcher(load, budget_bytes=35, charge_of=lambda ref: 3 * ref.nbytes) as prefetcher:
        submit_all(prefetcher, 5)
        eventually(lambda: prefetcher.reads == 1)
        assert prefetcher.peak_held_bytes == 30
        for index in range(5):
            eventually(lambda index=index: len(loaded) == index + 1)
            assert taken(prefetcher) == index
        # The next one may pass before the last one is released, which is charged its own size by then.
        assert prefetcher.peak_held_bytes in {30, 40}

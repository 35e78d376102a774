"""Uploads behind: several at once, within their budget, in an order that can be relied on, no failure in silence."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from storage.errors import StoreError
from storage.store import open_store
from storage.uploads import Uploads

from .faulty import Fault, FaultyStore

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_SECONDS = 60


@pytest.fixture
def uploads() -> Iterator[Uploads]:
    uploads = Uploads(4, 100)
    yield uploads
    uploads.close()


def test_pieces_run_at_once(uploads: Uploads):
    """Four pieces that wait for each other all end: one after the other, none would."""
    together = threading.Barrier(4)
    for _ in range(4):
        uploads.submit(1, lambda: together.wait(PATIENCE_SECONDS) and None)
    uploads.finish()


def test_a_piece_may_wait_for_those_before_it(uploads: Uploads):
    """However many there are, and with fewer threads than pieces: they begin in order."""
    done: list[int] = []
    before = uploads.submit(0, lambda: None)
    for number in range(200):

        def work(number: int = number, before=before) -> None:
            before.result(PATIENCE_SECONDS)
            done.append(number)

        before = uploads.submit(0, work)
    uploads.finish()
    assert done == list(range(200))


def test_what_is_on_its_way_stays_within_the_budget(uploads: Uploads):
    """Who submits beyond it waits until something is done; a piece larger than the budget goes alone."""
    held, go = [], threading.Event()

    def work() -> None:
        go.wait(PATIENCE_SECONDS)
        held.append(uploads.held_bytes)

    for _ in range(3):
        uploads.submit(33, work)
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(uploads.submit, 33, work)
        assert uploads.held_bytes == 99
        assert not waiting.done()
        go.set()
        waiting.result(PATIENCE_SECONDS)
    uploads.finish()
    uploads.submit(1000, work)
    uploads.submit(1, work)
    uploads.finish()
    assert len(held) == 6
    assert max(held[:4]) <= 100
    assert held[4:] == [1000, 1]
    assert uploads.held_bytes == 0


@pytest.mark.parametrize("threads", [0, 1, 4])
def test_a_failure_is_told_for_ever_and_stops_what_has_not_begun(threads: int, tmp_path):
    """The first error comes out of later submissions and of the end; nothing is written after it was seen."""
    store = FaultyStore(open_store(tmp_path / "store"), [Fault("drop", ("write",), "second", calls=None)])
    uploads = Uploads(threads, 100)
    uploads.submit(1, lambda: store.write("first", [b""])).result(PATIENCE_SECONDS)
    with pytest.raises(StoreError, match="'second'"):
        uploads.submit(1, lambda: store.write("second", [b""])).result(PATIENCE_SECONDS)
    for _ in range(2):
        with pytest.raises(StoreError, match="'second'"):
            uploads.submit(1, lambda: store.write("third", [b""]))
        with pytest.raises(StoreError, match="'second'"):
            uploads.finish()
    uploads.close()
    assert store.list() == ["first"]


def test_who_waits_for_room_hears_of_a_failure(uploads: Uploads):
    """It does not wait for bytes that never become free."""
    go = threading.Event()

    def fail() -> None:
        go.wait(PATIENCE_SECONDS)
        raise StoreError("gone")

    uploads.submit(100, fail)
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(uploads.submit, 100, lambda: None)
        go.set()
        with pytest.raises(StoreError, match="gone"):
            waiting.result(PATIENCE_SECONDS)


@pytest.mark.parametrize(("threads", "budget_bytes"), [(-1, 1), (1, 0)])
def test_senseless_settings_are_refused(threads: int, budget_bytes: int):
    """They would hang."""
    with pytest.raises(ValueError, match="expected"):
        Uploads(threads, budget_bytes)

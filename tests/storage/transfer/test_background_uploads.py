"""Background uploads run concurrently, within their budget, in order, and report every failure."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from penstock.storage.errors import StoreError
from penstock.storage.stores.open import open_store
from penstock.storage.transfer.background_uploads import Uploads

from ...support.stored.faulty import Fault, FaultyStore

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_SECONDS = 150


@pytest.fixture
def uploads() -> Iterator[Uploads]:
    uploads = Uploads(4, 100)
    yield uploads
    uploads.close()


def test_tasks_run_concurrently(uploads: Uploads):
    """Four tasks that wait for each other all end: one after the other, none would."""
    together = threading.Barrier(4)
    for _ in range(4):
        uploads.submit(1, lambda: together.wait(PATIENCE_SECONDS) and None)
    uploads.finish()


def test_a_task_may_wait_for_earlier_ones(uploads: Uploads):
    """This holds for any number, with fewer threads than tasks: they start in order."""
    done: list[int] = []
    before = uploads.submit(0, lambda: None)
    for number in range(200):

        def work(number: int = number, before=before) -> None:
            before()
            done.append(number)

        before = uploads.submit(0, work)
    uploads.finish()
    assert done == list(range(200))


def test_unfinished_tasks_stay_within_the_budget(uploads: Uploads):
    """A submission beyond it waits until a task is done; a task larger than the budget runs alone."""
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
def test_a_failure_is_raised_by_all_later_calls_and_cancels_unstarted_tasks(threads: int, tmp_path):
    """Later submissions and `finish` raise the first error; nothing is written after it."""
    store = FaultyStore(open_store(tmp_path / "store"), [Fault("drop", ("write",), "second", calls=None)])
    uploads = Uploads(threads, 100)
    uploads.submit(1, lambda: store.write("first", [b""]))()
    with pytest.raises(StoreError, match="'second'"):
        uploads.submit(1, lambda: store.write("second", [b""]))()
    for _ in range(2):
        with pytest.raises(StoreError, match="'second'"):
            uploads.submit(1, lambda: store.write("third", [b""]))
        with pytest.raises(StoreError, match="'second'"):
            uploads.finish()
    uploads.close()
    assert store.list() == ["first"]


def test_a_failure_wakes_a_submission_that_waits_for_the_budget(uploads: Uploads):
    """It does not wait for bytes that are never released."""
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


@pytest.mark.parametrize("running", [0, 1])
def test_a_task_for_which_no_thread_can_be_started_is_not_done(
    uploads: Uploads, running: int, monkeypatch: pytest.MonkeyPatch
):
    """Its submission raises the reason, and it holds no bytes; no other thread does it, and `finish` returns."""
    done, go = list[str](), threading.Event()

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    for _ in range(running):
        uploads.submit(10, lambda: go.wait(PATIENCE_SECONDS) and None)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            uploads.submit(90, lambda: done.append("refused"))
    assert uploads.held_bytes == 10 * running
    go.set()
    uploads.submit(90, lambda: done.append("later"))()
    uploads.close()
    assert (done, uploads.held_bytes) == (["later"], 0)
    uploads.finish()


@pytest.mark.parametrize(("threads", "budget_bytes"), [(-1, 1), (1, 0)])
def test_invalid_settings_are_refused(threads: int, budget_bytes: int):
    """They would hang."""
    with pytest.raises(ValueError, match="expected"):
        Uploads(threads, budget_bytes)


@pytest.mark.parametrize("threads", [0, 1])
def test_the_first_failure_is_told_at_once(threads: int):
    """The one that submits may wait for something that only a stored object can bring about."""
    told: list[BaseException] = []
    heard = threading.Event()

    def tell(error: BaseException) -> None:
        told.append(error)
        heard.set()

    def fail() -> None:
        raise StoreError("the disk is full")

    uploads = Uploads(threads, 100, tell)
    if threads:
        uploads.submit(1, fail)
    else:
        with pytest.raises(StoreError):
            uploads.submit(1, fail)
    assert heard.wait(150)
    with pytest.raises(StoreError, match="the disk is full"):
        uploads.submit(1, lambda: None)
    uploads.close()
    assert [str(error) for error in told] == ["the disk is full"]

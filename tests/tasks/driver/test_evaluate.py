"""An evaluation is waited for as long as a worker runs it, and leaves its worker when nobody waits for it any more."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, cast

import pytest
from distributed import Client, get_worker

from penstock.storage.errors import GangError
from penstock.storage.refs import SnapshotRef
from penstock.tasks.driver.prefect_tasks import Evaluation, evaluate
from penstock.tasks.driver.worker_slots import is_running, read_slots
from penstock.tasks.runtime.membership import is_cancelled

from ...support.services.worker_here import worker_here
from ..conftest import first_stage_of

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_SECONDS = 150.0


class Future:
    """The future of an evaluation, and the client that submits it: answers what it is given, in order."""

    key = "evaluate"

    def __init__(self, answers: list[object], *running: bool) -> None:
        self.answers, self.running = answers, list(running)
        self.cancelled = False

    def submit(self, *_: object, **__: object) -> Future:
        return self

    def run_on_scheduler(self, asked: object, key: str) -> bool:
        assert (asked, key) == (is_running, self.key)
        return self.running.pop(0)

    def result(self, timeout: float | None = None) -> object:
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def done(self) -> bool:
        return not self.running

    def cancel(self) -> None:
        self.cancelled = True


def evaluated(future: Future) -> dict[str, float]:
    ref = SnapshotRef("snapshots/0", "00", 1, 2)
    return evaluate.fn(3, Evaluation(cast("Client", future), first_stage_of("act"), {}, ref, 5, 600.0))


def test_an_evaluation_that_runs_is_waited_for():
    """However long its episodes are: its stage would be learned again, and end the same way."""
    future = Future([TimeoutError(), TimeoutError(), {"mean_return": 1.0}], True, True)
    assert evaluated(future) == {"mean_return": 1.0}
    assert not future.cancelled


def test_an_evaluation_that_no_worker_runs_ends_the_stage():
    future = Future([TimeoutError(), TimeoutError()], True, False)
    with pytest.raises(GangError, match="no worker runs the evaluation of stage 3 after 600 s"):
        evaluated(future)
    assert future.cancelled


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("an environment's")], ids=repr)
def test_an_evaluation_that_is_given_up_is_cancelled(error: BaseException):
    future = Future([error])
    with pytest.raises(type(error)):
        evaluated(future)
    assert future.cancelled


def test_a_time_out_of_the_environment_is_no_missing_worker():
    """One behind a socket may raise it; the task has ended, and no scheduler is asked."""
    with pytest.raises(TimeoutError, match="the simulator"):
        evaluated(Future([TimeoutError("the simulator")] * 2))


@pytest.fixture
def client() -> Iterator[Client]:
    """A worker with one slot, in this process."""
    with worker_here(nthreads=1, resources={"actor": 1.0}) as client:
        yield client


began, left = threading.Event(), threading.Event()


def work_until_cancelled() -> None:
    worker = get_worker()
    task = worker.get_current_task()
    began.set()
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not is_cancelled(worker, task) and time.monotonic() < give_up_at:
        left.wait(0.001)
    if is_cancelled(worker, task):
        left.set()


def has_left() -> bool:
    return left.is_set()


def test_a_cancelled_task_notices_it(client: Client):
    """Its slot counts as free at once, and the next task there waits for it."""
    future: Any = client.submit(work_until_cancelled, resources={"actor": 1.0}, pure=False)
    assert began.wait(PATIENCE_SECONDS)
    while not client.run_on_scheduler(is_running, key=future.key):
        time.sleep(0.01)
    future.cancel()
    while client.run_on_scheduler(read_slots)[0]["free"] != {"actor": 1.0}:
        time.sleep(0.01)
    assert client.submit(has_left, resources={"actor": 1.0}, pure=False).result(PATIENCE_SECONDS)

"""A preempted worker hands its members back, which counts as no failure."""

import os
import threading
from collections.abc import Iterator

import dask
import psutil
import pytest
from distributed import Client, LocalCluster, Scheduler, SpecCluster, Worker, get_worker

from penstock.tasks.runtime import shutdown
from penstock.tasks.runtime.events import Preempted, decode_event
from penstock.tasks.runtime.mailbox import MAILBOX
from penstock.tasks.runtime.shutdown import is_ending

PATIENCE_SECONDS = 150.0
TOPIC = "penstock/run/0.0/gang"
began = threading.Event()


@pytest.fixture
def client() -> Iterator[Client]:
    """Two workers with a place each, and a scheduler that gives a task up when one worker is lost under it."""
    here = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
    worker = {"cls": Worker, "options": {**here, "nthreads": 1, "resources": {"actor": 1.0}}}
    scheduler = {"cls": Scheduler, "options": {**here, "protocol": "inproc://", "allowed_failures": 0}}
    with (
        dask.config.set({"distributed.admin.system-monitor.gil.enabled": False}),
        SpecCluster(workers={0: worker, 1: worker}, scheduler=scheduler, silence_logs=50) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.wait_for_workers(2, timeout=PATIENCE_SECONDS)
        yield client


def play() -> str:
    """A member: where it begins first it works until it is told to leave, elsewhere it is done at once."""
    worker = get_worker()
    MAILBOX.open(TOPIC)
    try:
        shutdown.install(worker)
        if not began.is_set():
            began.set()
            assert MAILBOX.wait(TOPIC, lambda hints: "leave" in hints, PATIENCE_SECONDS)
            assert is_ending(worker)
        return str(worker.address)
    finally:
        MAILBOX.close(TOPIC)


@pytest.mark.parametrize("how", ["closed", "retired"])
def test_a_preempted_member_resumes_on_another_worker(client: Client, how: str):
    """It leaves, Dask runs it on the other worker as if for the first time, and the flow is notified."""
    began.clear()
    heard, told = threading.Event(), list[Preempted]()

    def hear(stamped: tuple[float, object]) -> None:
        if isinstance(event := decode_event(stamped[1]), Preempted):
            told.append(event)
            heard.set()

    client.subscribe_topic(TOPIC, hear)
    future = client.submit(play, key=f"act-0 {TOPIC} run", resources={"actor": 1.0}, pure=False)
    assert began.wait(PATIENCE_SECONDS)
    first = next(worker for worker in client.cluster.workers.values() if worker.active_threads)
    assert not is_ending(first)
    if how == "closed":  # as a nanny does it that gets SIGTERM
        client.cluster.sync(first.close, timeout=8, nanny=False)
    else:
        client.retire_workers([first.address])
    assert future.result(PATIENCE_SECONDS) not in {None, first.address}
    assert heard.wait(PATIENCE_SECONDS), "what is told may come after the result"
    assert set(told) == {Preempted("act-0", first.address)}


def wait_in_a_thread(end_seconds: float) -> int:
    """Start a thread that waits forever, which closing a worker cannot end; return the process's id."""
    shutdown.install(get_worker(), end_seconds)
    threading.Thread(target=threading.Event().wait).start()
    return os.getpid()


def test_a_closed_worker_ends_within_its_deadline(capfd: pytest.CaptureFixture[str]):
    """Its process ends, and dumps its threads' stacks; without a deadline it stays as long as they block."""
    with (
        LocalCluster(2, threads_per_worker=1, dashboard_address="127.0.0.1:0", silence_logs=50) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        waiting = {}
        for address, seconds in zip(client.scheduler_info()["workers"], (0.1, 600.0), strict=True):
            pid = client.submit(wait_in_a_thread, seconds, workers=[address], pure=False).result(PATIENCE_SECONDS)
            waiting[seconds] = psutil.Process(pid)
        client.retire_workers(list(client.scheduler_info()["workers"]), close_workers=True)
        waiting[0.1].wait(PATIENCE_SECONDS)
        assert waiting[600.0].is_running()
        waiting[600.0].kill()
    assert ", in wait_in_a_thread" not in (said := capfd.readouterr().err)
    assert "threading.py" in said

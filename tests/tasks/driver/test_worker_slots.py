"""Places on a cluster: counted from tasks, and a member that cannot run where it was put is moved, alone."""

import itertools
import os
import time
from collections.abc import Iterator

import dask
import pytest
from distributed import Client, Event, Nanny, Scheduler, SpecCluster

from penstock.tasks.driver.worker_slots import read_load, read_slots, reschedule_blocked, unschedulable_tasks

PATIENCE_SECONDS = 150.0
_numbers = itertools.count()


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A cluster of one worker with one place to act; tests bring more."""
    with dask.config.set({"distributed.scheduler.work-stealing": False}):
        scheduler = {
            "cls": Scheduler,
            "options": {"host": "127.0.0.1", "port": 0, "dashboard": False, "dashboard_address": "127.0.0.1:0"},
        }
        with SpecCluster(workers={0: worker()}, scheduler=scheduler) as cluster, Client(cluster) as client:
            yield client


def worker() -> dict:
    options = {"host": "127.0.0.1", "nthreads": 2, "resources": {"actor": 1.0}, "dashboard_address": "127.0.0.1:0"}
    return {"cls": Nanny, "options": {**options, "dashboard": False}}


def play(name: str, folder: str) -> str:
    """A member: leaves a trace of each time that it begins, and stays until it is let go."""
    with open(f"{folder}/{name}", "a") as file:  # noqa: PTH123
        file.write(f"{os.getpid()}\n")
    Event(f"{name}-began").set()
    assert Event("done").wait(PATIENCE_SECONDS)
    return name


def begins(folder, name):
    path = folder / name
    return path.read_text().split() if path.exists() else []


def test_the_load_of_an_idle_cluster_is_its_workers_and_slots(client):
    """All slots are free, and no state has a task that is not there."""
    load = client.run_on_scheduler(read_load)
    assert load == {"tasks": {}, "workers": 1, "slots": {"actor": (1.0, 1.0)}}


def test_a_member_that_waits_on_a_full_worker_is_moved_and_no_other(client, tmp_path):
    """Whichever of the two tasks the scheduler happens to list first: the one that runs stays, and runs once.

    The other is without a place as long as there is no room for it.
    """
    cluster = client.cluster
    for attempt in range(3):
        topic = f"topic-{next(_numbers)}"
        running, blocked = f"act-0-{attempt}", f"act-1-{attempt}"
        Event("done", client=client).clear()

        def submit(name, topic=topic):
            return client.submit(
                play, name, str(tmp_path), key=f"{name} {topic} run", resources={"actor": 1}, pure=False
            )

        futures = [submit(running)]
        assert Event(f"{running}-began", client=client).wait(PATIENCE_SECONDS)
        futures.append(submit(blocked))
        # One place, two tasks on it, as the scheduler has it; nowhere to go yet.
        deadline = time.monotonic() + PATIENCE_SECONDS
        while [place["free"] for place in client.run_on_scheduler(read_slots)] != [{"actor": -1.0}]:
            assert time.monotonic() < deadline
        (full,) = client.run_on_scheduler(read_slots)
        assert full["threads"] == 2
        assert client.run_on_scheduler(reschedule_blocked, topic=topic) == []
        while client.run_on_scheduler(unschedulable_tasks, topic=topic) != [f"{blocked} {topic} run"]:
            assert time.monotonic() < deadline
        cluster.worker_spec[1] = worker()
        cluster.sync(cluster._correct_state)
        client.wait_for_workers(2, timeout=PATIENCE_SECONDS)
        assert client.run_on_scheduler(reschedule_blocked, topic="another") == []
        assert client.run_on_scheduler(unschedulable_tasks, topic=topic) == []
        moved = []
        while not moved:
            assert time.monotonic() < deadline
            moved = client.run_on_scheduler(reschedule_blocked, topic=topic)
        assert moved == [f"{blocked} {topic} run"]
        assert Event(f"{blocked}-began", client=client).wait(PATIENCE_SECONDS)
        assert client.run_on_scheduler(reschedule_blocked, topic=topic) == []
        Event("done", client=client).set()
        assert client.gather(futures) == [running, blocked]
        assert len(begins(tmp_path, running)) == len(begins(tmp_path, blocked)) == 1
        assert begins(tmp_path, running) != begins(tmp_path, blocked)
        del cluster.worker_spec[1]
        cluster.sync(cluster._correct_state)
        while len(client.scheduler_info(n_workers=-1)["workers"]) > 1:
            assert time.monotonic() < deadline + PATIENCE_SECONDS
            time.sleep(0.02)

"""Gangs that have ended leave nothing in Dask's client and scheduler, however many there are."""

import gc
import time
from collections.abc import Iterator

import pytest
from distributed import Client, Lock, Scheduler, SpecCluster, Worker, span

from penstock.tasks.driver.admission import _locked
from penstock.tasks.driver.cluster import Cluster, Clusters
from penstock.tasks.driver.forgetting import SPAN, EndedGangs, forget

LONG_SECONDS = 150.0


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    options = {"host": "127.0.0.1", "port": 0, "dashboard": False, "dashboard_address": "127.0.0.1:0"}
    workers = {0: {"cls": Worker, "options": {"host": "127.0.0.1", "nthreads": 1, "dashboard": False}}}
    with SpecCluster(workers, {"cls": Scheduler, "options": options}) as cluster, Client(cluster) as client:
        yield client


@pytest.fixture
def clusters(client: Client) -> Clusters:
    told = client.scheduler_info(n_workers=0)
    return Clusters({"act": (Cluster(client, told["id"], told["address"]),)})


def topics(dask_scheduler: Scheduler) -> list[str]:
    return [topic for topic in dask_scheduler._broker._topics if topic.startswith("penstock/")]


def spans(dask_scheduler: Scheduler) -> list[str]:
    return [found.name[0] for found in dask_scheduler.extensions["spans"].root_spans]


def run_gang(client: Client, topic: str) -> None:
    """Do what a gang does with Dask: a topic, a task, a message."""
    client.subscribe_topic(topic, lambda _: None)
    with span(SPAN):
        future = client.submit(abs, -1, key=f"act-0 {topic} task-run", pure=False)
    assert future.result(LONG_SECONDS) == 1
    client.log_event(topic, "a message")
    client.unsubscribe_topic(topic)


def test_only_the_newest_gang_is_remembered(client, clusters):
    """Its last messages may be on their way; those of the gangs before have arrived."""
    ended = EndedGangs()
    gangs = [f"penstock/run/{stage}.0/gang" for stage in range(4)]
    for topic in gangs:
        run_gang(client, topic)
        ended.add(clusters, topic)
    assert set(client._event_handlers) & set(gangs) == {gangs[-1]}
    assert set(client.run_on_scheduler(topics)) <= {gangs[-1]}


def test_spans_of_ended_gangs_are_removed_and_others_stay(client):
    """Those of the last two minutes stay too: workers may still report metrics of theirs."""
    run_gang(client, "penstock/run/9.0/gang")
    assert client.submit(abs, -2, key="somebody-else", pure=False).result(LONG_SECONDS) == 2
    client.run_on_scheduler(forget, topic="")
    assert SPAN in client.run_on_scheduler(spans)
    # A task is done for the scheduler's span when the scheduler has forgotten it.
    deadline = time.monotonic() + LONG_SECONDS
    while SPAN in client.run_on_scheduler(spans):
        assert time.monotonic() < deadline
        client.run_on_scheduler(forget, topic="", kept_seconds=0.0)
    assert client.run_on_scheduler(spans) == ["default"]


def test_an_admission_leaves_no_lock(clusters):
    """Dask's locks renew themselves until they are told to stop, and would be one more with each stage."""
    (cluster,) = clusters.every
    for _ in range(3):
        with _locked(cluster, time.monotonic() + LONG_SECONDS) as held:
            assert held
    deadline = time.monotonic() + LONG_SECONDS
    while any(type(found) is Lock for found in gc.get_objects()):
        assert time.monotonic() < deadline
        gc.collect()
        time.sleep(0.01)

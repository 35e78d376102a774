"""A gang's roster reaches its members, once for all that ask together, and an error names few of many members."""

import threading
import time
from collections.abc import Iterator, Mapping

import dask
import pytest
from distributed import Client, Scheduler, SpecCluster, Worker

from penstock.storage.errors import GangError, MemberStoppedError, StageMismatchError
from penstock.tasks.driver.cluster import Cluster, Clusters
from penstock.tasks.driver.gang import Gang
from penstock.tasks.runtime.events import Preempted, Reported, encode_event
from penstock.tasks.runtime.mailbox import MAILBOX
from penstock.tasks.setup.distribution.policies import single_learner_coarse

from ..conftest import first_stage_of

MEMBERS = 500
LONG_SECONDS = 150.0


@pytest.fixture
def here() -> Iterator[SpecCluster]:
    """Start a scheduler and a worker in this process, whose mailbox is that of the members."""
    options = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
    workers = {0: {"cls": Worker, "options": {**options, "nthreads": 1}}}
    scheduler = {"cls": Scheduler, "options": {**options, "protocol": "inproc://"}}
    with (
        dask.config.set({"distributed.admin.system-monitor.gil.enabled": False}),
        SpecCluster(workers, scheduler, silence_logs=50) as cluster,
    ):
        yield cluster


@pytest.fixture
def gang(here: SpecCluster) -> Iterator[Gang]:
    """Return a gang of many members and a learner, none of which has reported."""
    with Client(here, set_as_default=False) as client:
        client.wait_for_workers(1, timeout=LONG_SECONDS)
        told = client.scheduler_info(n_workers=0)
        cluster = Cluster(client, told["id"], told["address"])
        clusters = Clusters({"act": (cluster,), "learn": (cluster,)})
        gang = Gang(clusters, single_learner_coarse(MEMBERS), first_stage_of("act", MEMBERS), lambda _: None)
        gang.allocation = {"act": [cluster] * MEMBERS, "learn": [cluster]}
        gang.listen()
        yield gang
        gang.close()


def report_all(gang: Gang, here: SpecCluster) -> None:
    """Report every member, as one that waits for its roster does."""
    cluster = gang.clusters.every[0]
    for name in gang.expected:
        gang._reported(cluster, Reported(name, here.workers[0].address, "host", 1, {}))


def test_members_that_report_together_get_one_roster(gang: Gang, here: SpecCluster):
    """Each of 501 members repeats its report after the start: they get rosters, but not one for every report."""
    broadcasts: list[float] = []
    handler = here.scheduler.handlers["broadcast"]

    async def counted(*arguments: object, **options: object) -> object:
        broadcasts.append(time.monotonic())
        return await handler(*arguments, **options)

    topic = gang.template.topic
    MAILBOX.open(topic)
    try:
        report_all(gang, here)
        gang.start(LONG_SECONDS)
        assert MAILBOX.wait(topic, lambda entries: len(entries.get("roster", ())) == MEMBERS + 1, LONG_SECONDS)
        here.scheduler.handlers["broadcast"] = counted
        MAILBOX.post(topic, {"roster": {}})
        report_all(gang, here)
        assert MAILBOX.wait(topic, lambda entries: len(entries["roster"]) == MEMBERS + 1, LONG_SECONDS)
        while any(thread.name in {"gang-roster", "gang-broadcast"} for thread in threading.enumerate()):
            time.sleep(0.01)
        assert 1 <= len(broadcasts) < MEMBERS / 10
    finally:
        MAILBOX.close(topic)


def test_an_error_about_many_missing_members_names_some(gang: Gang):
    """A message with thousands of names would hide what to do."""
    with pytest.raises(GangError, match=r"act-0, act-1, .*act-19 and 481 more did not report within 0.01 s; 0 of 501"):
        gang.start(0.01)


def test_the_error_of_the_member_that_failed_counts_whichever_is_heard_first(gang: Gang):
    """Others of its process leave at the same moment; the stage starts again only for the error of the one."""

    def fail(error: Exception) -> None:
        raise error

    client = gang.clusters.every[0].client
    cause, told = StageMismatchError("round 2 is stored otherwise"), MemberStoppedError("act-1 leaves stage 0")
    gang._futures = [client.submit(fail, error, pure=False) for error in (cause, told)]
    for future in gang._futures:
        future.exception(LONG_SECONDS)
    with pytest.raises(StageMismatchError, match="stored otherwise"):
        gang.results(gang._futures[1:])


def test_members_are_told_to_leave_until_they_have(gang: Gang, here: SpecCluster, monkeypatch: pytest.MonkeyPatch):
    """A message may be lost, and a member that did not hear it would keep its stage from its end for ever."""
    lost: list[object] = []
    deliver = Gang._deliver

    def lossy(self: Gang, cluster: Cluster, addresses: list[str], entries: Mapping[str, object]) -> None:
        if "leave" in entries and len(lost) < 2:
            lost.append(entries)
        else:
            deliver(self, cluster, addresses, entries)

    monkeypatch.setattr(Gang, "_deliver", lossy)
    topic = gang.template.topic
    MAILBOX.open(topic)
    try:
        report_all(gang, here)
        gang.start(LONG_SECONDS)
        gang.fail(GangError("act-1 failed"))
        assert MAILBOX.wait(topic, lambda entries: entries.get("leave") == "act-1 failed", LONG_SECONDS)
        assert len(lost) == 2
    finally:
        MAILBOX.close(topic)


def test_a_role_that_can_not_be_submitted_fails_the_gang_at_once(gang: Gang, monkeypatch: pytest.MonkeyPatch):
    """The others would wait for its members, and the error would be that they did not report."""

    def closed(*_: object, **__: object) -> None:
        raise OSError("the client is closed")

    monkeypatch.setattr(gang.clusters.every[0].client, "map", closed)
    with pytest.raises(OSError, match="closed"):
        gang.submit(gang.policy.roles[0], "")
    with pytest.raises(GangError, match="the client is closed"):
        gang.start(LONG_SECONDS)


def test_a_member_that_is_said_to_leave_twice_leaves_once(gang: Gang, here: SpecCluster):
    """Its worker and the member itself say so, one of them perhaps when the successor has reported from elsewhere."""
    cluster, member = gang.clusters.every[0], "act-0"
    left = (0.0, encode_event(Preempted(member, here.workers[0].address)))
    report_all(gang, here)
    gang._on_message(cluster, left)
    gang._on_message(cluster, left)
    assert gang._ended == {member}
    gang._reported(cluster, Reported(member, "tcp://10.0.0.7:40001", "host", 2, {}))
    gang._on_message(cluster, left)
    assert not gang._ended
    assert gang._whole()

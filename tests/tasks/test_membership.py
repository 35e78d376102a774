"""Members of one process wait as one: a single look into storage serves all of them."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import dask
import pytest
from distributed import Client, Scheduler, SpecCluster, Worker

from storage.errors import GangError
from storage.store import open_store
from tasks.assignment import Assignment
from tasks.config import build_config, merge
from tasks.mailbox import MAILBOX
from tasks.membership import Membership

from .conftest import SMALL, first_stage_of

PATIENCE_SECONDS = 60.0
MEMBERS = 8
FOUND_AFTER_LOOKS = 3
KEY = "snapshot/1"
POLICY = build_config(
    merge(SMALL, {"environment": {"num_envs": 3 * MEMBERS}, "placement": {"act_tasks": MEMBERS}})
).policy


@pytest.fixture
def client() -> Iterator[Client]:
    """A worker in this process, with a place for every member."""
    here = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
    worker = {"cls": Worker, "options": {**here, "nthreads": MEMBERS}}
    scheduler = {"cls": Scheduler, "options": {**here, "protocol": "inproc://"}}
    with (
        dask.config.set({"distributed.admin.system-monitor.gil.enabled": False}),
        SpecCluster(workers={0: worker}, scheduler=scheduler, silence_logs=50) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.wait_for_workers(1, timeout=PATIENCE_SECONDS)
        yield client


class Storage:
    """Where the object is found when it was looked for often enough."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.looks: list[float] = []

    def look(self) -> bool:
        with self.lock:
            self.looks.append(time.monotonic())
            return len(self.looks) >= FOUND_AFTER_LOOKS


storages: dict[int, Storage] = {}
"""What each member looks into; the worker is in this process."""


def wait_for_the_same(member: dict[str, Any]) -> Any:
    """A member that says to the others what it has found."""
    assignment = Assignment.from_json(member)
    with Membership(assignment, open_store(assignment.store), POLICY) as membership:

        def look() -> bool:
            found = storages[assignment.replica].look()
            if found:
                membership.found(KEY, "it")
            return found

        membership.wait(lambda hints: KEY in hints, look, of_all=KEY)
        return membership.hinted(KEY)


def wait_for_its_own(member: dict[str, Any]) -> int:
    """A member of which nobody else knows what it waits for."""
    assignment = Assignment.from_json(member)
    storage = storages[assignment.replica]
    with Membership(assignment, open_store(assignment.store), POLICY) as membership:
        membership.wait(lambda hints: False, storage.look)
        return len(storage.looks)


def play(client: Client, url: str, work: Callable[[dict[str, Any]], Any], **said: str) -> list[Any]:
    """Begin all members, say to them that all are there, and what else is said; have what `work` returned for each."""
    members = [first_stage_of("act", MEMBERS, replica=replica, store=url, gang="g") for replica in range(MEMBERS)]
    topic, reported = members[0].topic, set[str]()
    client.subscribe_topic(topic, lambda stamped: reported.add(stamped[1]["member"]))
    futures = [client.submit(work, member.to_json(), pure=False) for member in members]
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while len(reported) < len(members):
        assert time.monotonic() < give_up_at, reported
        time.sleep(0.01)
    (address,) = client.scheduler_info()["workers"]
    MAILBOX.post(topic, {"roster": {member.member: address for member in members}, "offers": {}})
    MAILBOX.post(topic, said)
    return client.gather(futures)


def test_one_of_a_process_looks_for_all_that_wait_for_the_same(client: Client, tmp_path):
    """Eight wait; each look is one for all of them, and what it finds ends everybody's wait."""
    storage = Storage()
    storages.update(dict.fromkeys(range(MEMBERS), storage))
    assert play(client, str(tmp_path), wait_for_the_same) == ["it"] * MEMBERS
    assert len(storage.looks) == FOUND_AFTER_LOOKS
    between = [later - earlier for earlier, later in itertools.pairwise(storage.looks)]
    assert min(between) >= 0.25, "no sooner than one who waits alone"


def test_who_waits_for_something_else_looks_alone(client: Client, tmp_path):
    """A look that is not for all is each member's own."""
    storages.update({replica: Storage() for replica in range(MEMBERS)})
    assert play(client, str(tmp_path), wait_for_its_own) == [FOUND_AFTER_LOOKS] * MEMBERS


@pytest.mark.parametrize("reason", ["its flow ends", ""])
def test_who_is_told_to_leave_never_takes_that_for_what_it_waits_for(client: Client, tmp_path, reason: str):
    """However little is said with it: an interrupt of the flow has no text."""
    storages.update({replica: Storage() for replica in range(MEMBERS)})
    with pytest.raises(GangError, match=f"act-\\d leaves stage 0: {reason}$"):
        play(client, str(tmp_path), wait_for_its_own, leave=reason)

"""Members of one process share their polls: one poll of storage serves all that wait for the same object."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from distributed import Client

from penstock.storage.errors import GangError, StoreError
from penstock.storage.stores.open import open_store
from penstock.tasks.runtime.assignment import Assignment
from penstock.tasks.runtime.mailbox import MAILBOX
from penstock.tasks.runtime.membership import Membership
from penstock.tasks.setup.config.loading import build_config, merge

from ...support.services.worker_here import worker_here
from ..conftest import SMALL, first_stage_of

PATIENCE_SECONDS = 150.0
MEMBERS = 8
FOUND_AFTER_POLLS = 3
KEY = "snapshot/1"
POLICY = build_config(
    merge(SMALL, {"environment": {"num_envs": 3 * MEMBERS}, "distribution": {"act_tasks": MEMBERS}})
).make_policy()


@pytest.fixture
def client() -> Iterator[Client]:
    """Start a worker in this process, with a slot for every member."""
    with worker_here(nthreads=MEMBERS) as client:
        yield client


class Storage:
    """Storage in which the object is found after enough polls."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.polls: list[float] = []

    def poll(self) -> bool:
        with self.lock:
            self.polls.append(time.monotonic())
            return len(self.polls) >= FOUND_AFTER_POLLS


storages: dict[int, Storage] = {}
"""The storage that each member polls; the worker is in this process."""


def wait_for_the_same(member: dict[str, Any]) -> Any:
    """A member that says to the others what it has found."""
    assignment = Assignment.from_json(member)
    with Membership(assignment, open_store(assignment.store), POLICY) as membership:

        def poll() -> bool:
            found = storages[assignment.replica].poll()
            if found:
                membership.share(KEY, "it")
            return found

        membership.wait(lambda entries: KEY in entries, poll, of_all=KEY)
        return membership.latest(KEY)


def wait_for_its_own(member: dict[str, Any]) -> int:
    """A member of which nobody else knows what it waits for."""
    assignment = Assignment.from_json(member)
    storage = storages[assignment.replica]
    with Membership(assignment, open_store(assignment.store), POLICY) as membership:
        membership.wait(lambda entries: False, storage.poll)
        return len(storage.polls)


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
    MAILBOX.post(topic, {"roster": {member.member: address for member in members}, "advertised": {}})
    MAILBOX.post(topic, said)
    return client.gather(futures)


def test_one_member_of_a_process_polls_for_all(client: Client, tmp_path):
    """Eight members wait; each poll serves all of them, and a found object ends every wait."""
    storage = Storage()
    storages.update(dict.fromkeys(range(MEMBERS), storage))
    assert play(client, str(tmp_path), wait_for_the_same) == ["it"] * MEMBERS
    assert len(storage.polls) == FOUND_AFTER_POLLS
    between = [later - earlier for earlier, later in itertools.pairwise(storage.polls)]
    assert min(between) >= 0.25, "no sooner than one who waits alone"


def test_members_that_wait_for_different_objects_poll_separately(client: Client, tmp_path):
    """A poll without `of_all` is not shared."""
    storages.update({replica: Storage() for replica in range(MEMBERS)})
    assert play(client, str(tmp_path), wait_for_its_own) == [FOUND_AFTER_POLLS] * MEMBERS


@pytest.mark.parametrize("reason", ["its flow ends", ""])
def test_leave_message_does_not_satisfy_a_wait(client: Client, tmp_path, reason: str):
    """Not even with an empty reason: an interrupt of the flow has no text."""
    storages.update({replica: Storage() for replica in range(MEMBERS)})
    with pytest.raises(GangError, match=f"act-\\d leaves stage 0: {reason}$"):
        play(client, str(tmp_path), wait_for_its_own, leave=reason)


def wait_while_an_upload_fails(member: dict[str, Any]) -> str:
    """A member that waits for what only its own failed upload could have brought about."""
    assignment = Assignment.from_json(member)
    with Membership(assignment, open_store(assignment.store), POLICY) as membership:
        membership.fail(StoreError("the disk is full"))
        try:
            membership.wait(lambda entries: False, lambda: False)
        except StoreError as error:
            return str(error)
    return "it waited in vain"


def test_a_failure_in_the_background_ends_a_wait(client: Client, tmp_path):
    assert play(client, str(tmp_path), wait_while_an_upload_fails) == ["the disk is full"] * MEMBERS

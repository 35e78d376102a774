"""A publisher stores each attempt's versions apart, announces what is stored, and reports what could not be stored."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from penstock.storage.errors import StoreError
from penstock.storage.refs import DIFFERENCES, SnapshotRef, difference_name
from penstock.storage.runs.run import RunFolder
from penstock.tasks.data.snapshots import exchange

from ....support.stored.faulty import Fault, FaultyStore
from .test_exchange import TOPIC, Members, publish, state_of, two_nodes
from .test_exchange_of_differences import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .test_exchange import Node


@pytest.fixture
def members() -> Members:
    return Members()


@pytest.fixture
def learner(tmp_path: Path, members: Members) -> Iterator[Node]:
    """Yield the learner's node of a run with differences, on a store that is not local, and can fail."""
    nodes = two_nodes(str(tmp_path / "runs"), tmp_path, members, SETTINGS)
    node, _ = next(nodes)
    run = RunFolder(FaultyStore(node.context.run.root), node.context.run.name)
    node.context = replace(node.context, run=run)
    yield node
    assert next(nodes, None) is None


def announced(members: Members, version: int) -> Any:
    return members.latest(f"snapshot/{version}")


def test_an_attempt_publishes_beside_the_versions_of_another(learner: Node):
    """Each has its own folder, and neither is compared with what the other learned differently."""
    refs = {}
    for attempt in (1, 0, 2, 12):
        with learner.publisher(attempt=attempt) as publisher:
            refs[attempt] = publisher.publish(4, state_of(learner.context, attempt))
    folders = {attempt: ref.name.rpartition("/")[0] for attempt, ref in refs.items()}
    assert folders == {attempt: f"snapshots/attempt-{attempt}" if attempt else "snapshots" for attempt in refs}
    assert sorted(learner.context.run.store.list("snapshots/")) == sorted(ref.name for ref in refs.values())


def test_a_version_that_was_stored_before_is_announced_again(learner: Node, members: Members):
    """Actors may have missed the word of a learner that was restarted since; nothing is stored a second time."""
    ref = publish(learner, 1, state_of(learner.context, 1))
    members.mailbox.close(TOPIC)
    members.mailbox.open(TOPIC)
    assert announced(members, 1) is None
    with learner.publisher() as again:
        again.publish(1, state_of(learner.context, 1))
    assert announced(members, 1) == ref.to_json()
    assert (again.published, again.published_bytes) == (0, 0)


def test_a_version_is_announced_once_its_difference_is_stored_too(
    learner: Node, members: Members, monkeypatch: pytest.MonkeyPatch
):
    """An actor that hears of a version reads the difference at once, and would read the whole one without it."""
    heard, stored, encode = threading.Event(), list[bool](), exchange.encode_difference
    ref = publish(learner, 0, state_of(learner.context, 1))

    def slowly(*contents: Any) -> bytes | None:
        heard.wait(0.1)
        return encode(*contents)

    def notify(fragment: str, key: str, value: Any) -> None:
        stored.append(learner.context.run.store.exists(difference_name(SnapshotRef.from_json(value))))
        heard.set()

    monkeypatch.setattr(exchange, "encode_difference", slowly)
    monkeypatch.setattr(members, "notify", notify)
    with learner.publisher(ref) as publisher:
        publisher.publish(1, state_of(learner.context, 1))
    assert stored == [True]


@pytest.mark.parametrize("failing", ["snapshots/*", f"{DIFFERENCES}*"])
def test_a_version_that_could_not_be_stored_ends_the_task(learner: Node, members: Members, failing: str):
    """The last one too, which no later version waits for; it is not announced, and the gang is told."""
    ref = publish(learner, 0, state_of(learner.context, 1))
    learner.context.run.store.add(Fault("drop", ("write",), f"small/{failing}", calls=None))
    with pytest.raises(StoreError, match="failed by a test"), learner.publisher(ref) as publisher:
        publisher.publish(1, state_of(learner.context, 1))
    assert announced(members, 1) is None
    assert isinstance(members.failed, StoreError)


def test_an_error_of_the_task_is_not_replaced_by_that_of_an_upload(learner: Node):
    """The task's own error is raised, though a version could not be stored meanwhile."""
    learner.context.run.store.add(Fault("drop", ("write",), "small/snapshots/*", calls=None))

    def learn() -> None:
        with learner.publisher() as publisher:
            publisher.publish(0, state_of(learner.context, 1))
            raise ZeroDivisionError("of the algorithm")

    with pytest.raises(ZeroDivisionError, match="of the algorithm"):
        learn()

"""Snapshots reach an actor through its node's cache, early where they are announced, and right whatever was said."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from penstock.storage.errors import StageMismatchError
from penstock.storage.refs import SnapshotRef
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store
from penstock.tasks.data.snapshots.exchange import SnapshotPublisher, SnapshotReader, load_snapshot
from penstock.tasks.data.snapshots.handed_versions import HandedVersions
from penstock.tasks.runtime.assignment import Assignment
from penstock.tasks.runtime.mailbox import Mailbox
from penstock.tasks.runtime.run_context import RunContext, _load
from penstock.tasks.setup.config.loading import build_config, merge

from ...conftest import SMALL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PATIENCE_SECONDS = 150.0
TOPIC = "gang"


class Members:
    """A gang without a cluster: hints go through the same mailbox, at once, unless they are kept back."""

    def __init__(self) -> None:
        self.mailbox = Mailbox()
        self.mailbox.open(TOPIC)
        self.silent = False

    def notify(self, fragment: str, key: str, value: Any) -> None:
        assert fragment == "act"
        if not self.silent:
            self.mailbox.post(TOPIC, {key: value})

    def fail(self, error: BaseException) -> None:
        self.failed = error

    def latest(self, key: str) -> Any:
        return self.mailbox.get(TOPIC, key)

    def share(self, key: str, value: Any) -> None:
        self.mailbox.post(TOPIC, {key: value})

    def wait(self, hinted: Callable[[Any], bool], look: Callable[[], bool], *, of_all: str) -> float:
        assert of_all
        while not self.mailbox.wait(TOPIC, hinted, 0.05) and not look():
            pass
        return 0.0

    def wait_notification(self, ready: Callable[[Any], bool], timeout_seconds: float) -> bool:
        return self.mailbox.wait(TOPIC, ready, timeout_seconds)

    def wake(self) -> None:
        self.mailbox.post(TOPIC, {})


class Node:
    """A run as one node sees it: with a cache of its own."""

    def __init__(self, url: str, folder: Path, members: Members) -> None:
        self.context: RunContext = _load(url, "small", "", str(folder))
        self.before: Any = None
        self._assignment = Assignment(
            store=url,
            run="small",
            stage=0,
            attempt=0,
            generation=1,
            gang="",
            role="act",
            replica=0,
            replicas=1,
            task_run="",
            cache_folder=str(folder),
            device="cpu",
        )
        self._members: Any = members

    def reader(self, handed: HandedVersions | None = None) -> SnapshotReader:
        return SnapshotReader(self._assignment, self.context, self._members, self.before, handed)

    def handed(self, lag: int = 0) -> HandedVersions:
        """Return the exchange with a learner in the process of this node's actor."""
        dtype = self.context.config.distribution.snapshot_dtype
        groups = self.context.algorithm.actor_groups
        return HandedVersions(groups, dtype, torch.device("cpu"), lag, self._members.wake)

    def publisher(self, before: SnapshotRef | None = None, attempt: int = 0) -> SnapshotPublisher:
        assignment = replace(self._assignment, attempt=attempt)
        return SnapshotPublisher(assignment, self.context, self._members, before)


def two_nodes(url: str, folder: Path, members: Members, settings: dict[str, Any]) -> Iterator[tuple[Node, Node]]:
    """The learner's node and the actors' node of a run with settings merged over `SMALL`."""
    config = build_config(merge(SMALL, settings))
    run = RunFolder(open_store(url), "small")
    run.create({"config": config.model_dump(mode="json", exclude={"store", "cluster"})})
    yield Node(url, folder / "learner", members), Node(url, folder / "actors", members)
    _load.cache_clear()


@pytest.fixture
def members() -> Members:
    return Members()


@pytest.fixture(params=["float32", "bfloat16", "int8"])
def nodes(request: pytest.FixtureRequest, s3_url: str, tmp_path: Path, members: Members) -> Iterator[tuple[Node, Node]]:
    """The learner's node and the actors' node, on an object store."""
    yield from two_nodes(s3_url, tmp_path, members, {"distribution": {"snapshot_dtype": request.param}})


def publish(node: Node, version: int, state: Any) -> SnapshotRef:
    """Until it is stored and announced."""
    with node.publisher() as publisher:
        return publisher.publish(version, state)


def state_of(context: RunContext, seed: int) -> Any:
    return context.algorithm.init(seed)


def expected(node: Node, ref: SnapshotRef) -> dict[str, torch.Tensor]:
    return dict(load_snapshot(node.context.run.store.view(ref.name), ref)["policy"])


def assert_equal(params: Any, wanted: dict[str, torch.Tensor]) -> None:
    assert set(params) == {"policy"}
    assert set(params["policy"]) == set(wanted)
    for name, value in wanted.items():
        assert torch.equal(params["policy"][name], value)


def wait_until(there: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not there():
        assert time.monotonic() < give_up_at
        time.sleep(0.005)


def test_an_announced_snapshot_is_there_before_it_is_asked_for(nodes: tuple[Node, Node], members: Members):
    """While actors act with version 0, the announced version 1 comes to their node: then it needs no store any more."""
    learner, actors = nodes
    reader = actors.reader()
    first = publish(learner, 0, state_of(learner.context, 1))
    assert_equal(reader.get(0)[0], expected(actors, first))
    second = publish(learner, 1, state_of(learner.context, 2))
    wanted = expected(actors, second)
    wait_until((actors.context.cache.folder / second.digest).exists)
    actors.context.run.store.delete([second.name])
    assert_equal(reader.get(1)[0], wanted)
    assert reader.tally.downloads == 2
    assert reader.tally.origin_bytes == first.nbytes + second.nbytes
    reader.close()


def test_a_lost_announcement_costs_time_alone(nodes: tuple[Node, Node], members: Members):
    """Without a word from the learner, versions are found in the store."""
    learner, actors = nodes
    members.silent = True
    reader = actors.reader()
    for version in range(3):
        ref = publish(learner, version, state_of(learner.context, version))
        assert_equal(reader.get(version)[0], expected(actors, ref))
    assert reader.tally.downloads == 3
    reader.close()


def test_an_announcement_of_nothing_does_no_harm(nodes: tuple[Node, Node], members: Members):
    """A failed prefetch leaves the error to the read that needs the version."""
    learner, actors = nodes
    reader = actors.reader()
    missing = SnapshotRef("snapshots/nothing", "0" * 32, 1, 7)
    members.notify("act", "snapshot/7", missing.to_json())
    wait_until(lambda: reader.tally.misses == 1)
    ref = publish(learner, 8, state_of(learner.context, 1))
    assert_equal(reader.get(8)[0], expected(actors, ref))
    reader.close()


def test_actors_beside_the_learner_download_nothing(nodes: tuple[Node, Node], members: Members):
    """A published version is in its node's cache already."""
    learner, _ = nodes
    reader = learner.reader()
    ref = publish(learner, 0, state_of(learner.context, 1))
    assert_equal(reader.get(0)[0], expected(learner, ref))
    assert reader.tally.downloads == reader.tally.origin_bytes == 0
    reader.close()


def test_a_closed_reader_leaves_no_thread(nodes: tuple[Node, Node], members: Members):
    """Its thread ends when the task ends, not when the process does."""
    before = set(threading.enumerate())
    reader = nodes[1].reader()
    (thread,) = set(threading.enumerate()) - before
    members.mailbox.close(TOPIC)
    reader.close()
    members.mailbox.open(TOPIC)
    reader.close()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def test_publishing_changes_nothing_of_the_learner(nodes: tuple[Node, Node], members: Members):
    """Whatever actors get, the learner goes on with its own numbers; publishing them again is the same object."""
    learner, _ = nodes
    state = state_of(learner.context, 1)
    before = {name: group.flat.clone() for name, group in state.params.items()}
    ref = publish(learner, 1, state)
    assert all(torch.equal(group.flat, before[name]) for name, group in state.params.items())
    again = learner.publisher()
    assert again.publish(1, state) == ref
    with torch.no_grad():
        state.params["policy"].flat.add_(1.0)
    with pytest.raises(StageMismatchError, match="version 1"):
        again.publish(1, state)


def test_a_version_that_is_handed_over_equals_the_stored_one(nodes: tuple[Node, Node]):
    """Bit for bit, rounded as it is; it is a copy, and the actor has it before anything is stored."""
    learner, actors = nodes
    handed = actors.handed()
    reader, state = actors.reader(handed), state_of(learner.context, 2)
    handed.put(1, state.params)
    params, _ = reader.get(1)
    assert learner.context.run.store.list("snapshots/") == []
    ref = publish(learner, 1, state)
    wanted = expected(learner, ref)
    assert {name: value.dtype for name, value in params["policy"].items()} == {
        name: value.dtype for name, value in wanted.items()
    }
    with torch.no_grad():
        state.params["policy"].flat.add_(1)
    assert_equal(params, wanted)
    reader.confirm(1)
    reader.close()


def test_nothing_is_stored_of_a_version_before_the_version_is(nodes: tuple[Node, Node]):
    """Confirming waits until the version is announced or found in storage; one that was read needs no wait."""
    learner, actors = nodes
    handed = actors.handed()
    reader, state = actors.reader(handed), state_of(learner.context, 2)
    reader.confirm(0)
    handed.put(1, state.params)
    reader.get(1)
    confirming = [threading.Thread(target=reader.confirm, args=(1,), daemon=True) for _ in range(2)]
    for thread in confirming:
        thread.start()
    confirming[0].join(0.2)
    assert all(thread.is_alive() for thread in confirming)
    publish(learner, 1, state)
    for thread in confirming:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
    reader.close()


def test_a_handed_version_that_the_stored_one_contradicts_is_refused(nodes: tuple[Node, Node]):
    """A learner whose parameters differ from the published ones: its actor's rounds are not stored."""
    learner, actors = nodes
    handed = actors.handed()
    reader = actors.reader(handed)
    handed.put(1, state_of(learner.context, 2).params)
    reader.get(1)
    ref = publish(learner, 1, state_of(learner.context, 3))
    for _ in range(2):
        with pytest.raises(StageMismatchError, match=f"version 1 is stored as '{ref.name}'.*the stage starts again"):
            reader.confirm(1)
    reader.close()


@pytest.mark.parametrize("lag", [0, 2])
def test_versions_that_nobody_acts_with_are_dropped(nodes: tuple[Node, Node], lag: int):
    """A learner that learns stored rounds again hands versions over that no actor takes."""
    learner, actors = nodes
    handed = actors.handed(lag)
    for version in range(1, 8):
        handed.put(version, state_of(learner.context, 2).params)
    assert [version for version in range(1, 8) if handed.holds(version)] == list(range(7 - lag, 8))
    assert handed.take(1) is None
    assert handed.take(7) is not None
    assert not handed.holds(7)

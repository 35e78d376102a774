"""Nodes that keep a version read the difference to the next one; whatever is wrong with it, they get right bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch

from penstock.storage.refs import DIFFERENCES, difference_name

from .test_exchange import Members, assert_equal, expected, state_of, two_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.storage.refs import SnapshotRef
    from penstock.tasks.data.snapshots.exchange import SnapshotReader
    from penstock.tasks.specs import State

    from .test_exchange import Node

SETTINGS = {
    "algorithm": {"hidden": [64, 64]},
    "distribution": {"snapshot_dtype": "bfloat16", "snapshot_differences": True},
}


@dataclass(frozen=True)
class Before:
    """As much of the commit before a stage as a reader needs."""

    snapshots: tuple[SnapshotRef, ...]


@pytest.fixture
def members() -> Members:
    """Without announcements: nothing is prefetched, and so it is certain which reads there are."""
    members = Members()
    members.silent = True
    return members


@pytest.fixture
def nodes(s3_url: str, tmp_path: Path, members: Members) -> Iterator[tuple[Node, Node]]:
    yield from two_nodes(s3_url, tmp_path, members, SETTINGS)


def state_at(node: Node, version: int) -> State:
    """Return the parameters of a version, each a small step from those before."""
    state: State = state_of(node.context, 1)
    steps = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for _ in range(version % 10):
            flat = state.params["policy"].flat
            flat.add_(1e-3 * flat * torch.randn(flat.shape, generator=steps))
    return state


def publish(node: Node, *versions: int, before: SnapshotRef | None = None) -> list[SnapshotRef]:
    """Publish versions as one learn task does."""
    with node.publisher(before) as publisher:
        return [publisher.publish(version, state_at(node, version)) for version in versions]


def read(reader: SnapshotReader, node: Node, *refs: SnapshotRef) -> None:
    """Act with some versions in turn; each has the parameters of the stored snapshot."""
    for ref in refs:
        assert_equal(reader.get(ref.version)[0], expected(node, ref))


def difference_bytes(node: Node, *refs: SnapshotRef) -> int:
    return sum(len(node.context.run.store.read(difference_name(ref))) for ref in refs)


def stored(node: Node) -> dict[str, bytes]:
    store = node.context.run.store
    return {name: store.read(name) for kind in ("snapshots/", DIFFERENCES) for name in store.list(kind)}


def test_a_node_reads_one_whole_snapshot_and_then_differences(nodes: tuple[Node, Node]):
    """Three actors of a node act with four versions: the node reads each difference once, less than half the bytes."""
    learner, actors = nodes
    refs = publish(learner, 0, 1, 2, 3)
    readers = [actors.reader() for _ in range(3)]
    for ref in refs:
        for reader in readers:
            read(reader, actors, ref)
    assert sum(reader.tally.downloads for reader in readers) == 4
    fetched = difference_bytes(actors, *refs[1:])
    assert sum(reader.tally.origin_bytes for reader in readers) == refs[0].nbytes + fetched
    assert fetched < 3 * refs[0].nbytes / 2
    for reader in readers:
        reader.close()


def test_announced_differences_are_prefetched(nodes: tuple[Node, Node], members: Members):
    """As whole versions are: what comes while an actor acts is at its node when it is needed."""
    members.silent = False
    learner, actors = nodes
    reader = actors.reader()
    before, total = None, 0
    for version in range(4):
        (ref,) = publish(learner, version, before=before)
        read(reader, actors, ref)
        total += difference_bytes(actors, ref) if version else ref.nbytes
        before = ref
    assert reader.tally.origin_bytes == total
    reader.close()


def test_a_stage_begins_with_a_difference_too(nodes: tuple[Node, Node]):
    """From the version that the commit names: the learner's node and the actors' node have it."""
    learner, actors = nodes
    (first,) = publish(learner, 0)
    reader = actors.reader()
    read(reader, actors, first)
    reader.close()
    actors.before = Before((first,))
    (second,) = publish(learner, 1, before=first)
    reader = actors.reader()
    read(reader, actors, first, second)
    assert reader.tally.origin_bytes == difference_bytes(actors, second)
    reader.close()


def test_the_version_that_a_commit_names_is_read_by_its_difference(nodes: tuple[Node, Node]):
    """The version before it, which no commit names, is at the node from the stage before, and is found in the store."""
    learner, actors = nodes
    refs = publish(learner, 0, 1)
    reader = actors.reader()
    read(reader, actors, refs[0])
    reader.close()
    actors.before = Before((refs[1],))
    reader = actors.reader()
    read(reader, actors, refs[1])
    assert reader.tally.origin_bytes == difference_bytes(actors, refs[1])
    reader.close()


def test_a_node_without_the_version_before_reads_the_whole_one(nodes: tuple[Node, Node]):
    """A host that joins late needs no chain of differences."""
    learner, actors = nodes
    refs = publish(learner, 0, 1, 2)
    reader = actors.reader()
    read(reader, actors, refs[2])
    assert reader.tally.origin_bytes == refs[2].nbytes
    reader.close()


@pytest.mark.parametrize("fault", ["missing", "empty", "cut", "altered", "of another version", "not of zstd"])
def test_a_difference_that_gives_other_bytes_is_not_used(
    nodes: tuple[Node, Node], fault: str, caplog: pytest.LogCaptureFixture
):
    """The whole snapshot is read instead, and kept, and the next difference is from that; damage is logged."""
    learner, actors = nodes
    refs, store = publish(learner, 0, 1, 2), actors.context.run.store
    name = difference_name(refs[1])
    data = bytearray(store.read(name))
    if fault == "missing":
        store.delete([name])
    elif fault == "altered":
        data[-3] ^= 0x40
    faulty: dict[str, Any] = {
        "empty": b"", "cut": data[: len(data) // 2], "altered": data, "not of zstd": b"x" * 1000,
        "of another version": store.read(difference_name(refs[2])),
    }  # fmt: skip
    if fault in faulty:
        store.write(name, [faulty[fault]])
    reader = actors.reader()
    read(reader, actors, *refs)
    nbytes = sum(ref.nbytes for ref in refs[:2]) + len(faulty.get(fault, b"")) + difference_bytes(actors, refs[2])
    assert reader.tally.origin_bytes == nbytes
    logged = f"'{refs[1].name}' is downloaded, because what was made here instead is not right" in caplog.text
    assert logged == (fault != "missing")
    reader.close()


@pytest.mark.parametrize("interrupted", ["between versions", "before the snapshot of a difference"])
def test_a_restarted_learner_stores_the_same_differences(nodes: tuple[Node, Node], interrupted: str):
    """Versions that are published again have the names and bytes that they had, and so have their differences."""
    learner, _ = nodes
    refs, store = publish(learner, 0, 1, 2, 3), learner.context.run.store
    whole = stored(learner)
    assert [name for name in whole if name.startswith(DIFFERENCES)] == [difference_name(ref) for ref in refs[1:]]
    lost = [ref.name for ref in refs[2:]]
    store.delete(
        lost if interrupted == "before the snapshot of a difference" else [*lost, *map(difference_name, refs[2:])]
    )
    publish(learner, 0, 1, 2, 3)
    assert stored(learner) == whole


def test_versions_whose_files_differ_in_size_have_no_difference(nodes: tuple[Node, Node]):
    """A version whose number gets another digit may have another size, and is then read whole."""
    learner, actors = nodes
    refs = publish(learner, 99_999_999, 100_000_000)
    there = bool(learner.context.run.store.list(DIFFERENCES))
    assert there == (refs[0].nbytes == refs[1].nbytes)
    reader = actors.reader()
    read(reader, actors, *refs)
    reader.close()


def test_a_folder_needs_no_differences(tmp_path: Path, members: Members):
    """Its files are mapped where they are."""
    nodes = two_nodes(str(tmp_path / "runs"), tmp_path, members, SETTINGS)
    learner, actors = next(nodes)
    refs = publish(learner, 0, 1, 2)
    assert learner.context.run.store.list(DIFFERENCES) == []
    reader = actors.reader()
    read(reader, actors, *refs)
    reader.close()
    assert next(nodes, None) is None


def test_no_differences_are_stored_unless_they_are_asked_for(s3_url: str, tmp_path: Path, members: Members):
    """The default: a run's folder has what it always had."""
    nodes = two_nodes(s3_url, tmp_path, members, {"distribution": {"snapshot_dtype": "bfloat16"}})
    learner, actors = next(nodes)
    refs = publish(learner, 0, 1, 2)
    assert learner.context.run.store.list(DIFFERENCES) == []
    reader = actors.reader()
    read(reader, actors, *refs)
    assert reader.tally.origin_bytes == sum(ref.nbytes for ref in refs)
    reader.close()
    assert next(nodes, None) is None

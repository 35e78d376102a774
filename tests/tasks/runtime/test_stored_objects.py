"""Stored objects of an attempt are found by name, apart from other attempts, and never with two contents."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.storage.digest import digest
from penstock.storage.errors import StageMismatchError
from penstock.storage.refs import ShardRef, shard_name, snapshot_name, state_name
from penstock.storage.stores.open import open_store
from penstock.storage.stores.protocol import Store
from penstock.tasks.runtime.stored_objects import (
    Listing,
    SharedListing,
    snapshot_folder,
    stored_shards,
    stored_snapshot,
    stored_snapshots,
    stored_states,
)

ONE, TWO = digest(b"one"), digest(b"two")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


def put(store: Store, *names: str) -> None:
    for name in names:
        store.write(name, [b"x"])


def test_nothing_is_stored_at_first(store: Store):
    """An attempt that has not begun has neither shards nor states nor snapshots."""
    assert stored_shards(store, 0, 0) == {}
    assert stored_states(store, 0, 0) == {}
    assert stored_snapshot(store, 0, 0) is None


def test_shards_are_found_by_round_and_tile(store: Store):
    """Only objects of the attempt and stage are found; a reference reads the right object."""
    names = {(round_, tile): shard_name(3, 0, round_, tile, ONE) for round_ in (30, 31) for tile in (0, 1, 11)}
    put(
        store, *names.values(), shard_name(3, 1, 30, 0, TWO), shard_name(4, 0, 40, 0, TWO), state_name(3, 0, 30, 0, TWO)
    )
    found = stored_shards(store, 3, 0)
    assert {key: ref.name for key, ref in found.items()} == names
    assert {(ref.round, ref.tile, ref.digest) for ref in found.values()} == {(*key, ONE) for key in names}
    assert set(stored_shards(store, 3, 0, 31)) == {(31, 0), (31, 1), (31, 11)}
    assert {key: ref.digest for key, ref in stored_shards(store, 3, 1).items()} == {(30, 0): TWO}


def test_states_are_found_by_round_and_tile(store: Store):
    """As shards are."""
    put(store, state_name(3, 0, 30, 1, ONE), state_name(3, 2, 30, 1, TWO), shard_name(3, 0, 30, 1, TWO))
    assert {key: ref.digest for key, ref in stored_states(store, 3, 0).items()} == {(30, 1): ONE}
    assert {key: ref.digest for key, ref in stored_states(store, 3, 2).items()} == {(30, 1): TWO}


def test_snapshots_are_found_by_version(store: Store):
    """Later attempts publish in a folder of their own and are never taken for the first."""
    assert snapshot_folder(0) != snapshot_folder(1) != snapshot_folder(2)
    later = f"{snapshot_folder(1)}/{snapshot_name(7, TWO).rsplit('/', 1)[1]}"
    put(store, snapshot_name(7, ONE), snapshot_name(70, TWO), later)
    first, second = stored_snapshot(store, 7, 0), stored_snapshot(store, 7, 1)
    assert first is not None
    assert second is not None
    assert (first.name, first.digest, first.version) == (snapshot_name(7, ONE), ONE, 7)
    assert (second.name, second.digest, second.version) == (later, TWO, 7)
    assert stored_snapshot(store, 8, 0) is None


@pytest.mark.parametrize(
    "versions",
    [
        range(5),
        range(7, 8),
        range(12_340, 12_345),
        range(998, 1_003),
        range(9_998, 10_003),
        range(99_950, 100_071),
        range(150, 4_451),
        range(99_999_998, 100_000_003),
    ],
    ids=str,
)
def test_a_stage_finds_its_snapshots_among_those_of_a_long_run(
    store: Store, versions: range, monkeypatch: pytest.MonkeyPatch
):
    """Few others can be listed: a learner does it at each stage's beginning. Other attempts' are not taken."""
    others = {versions.start - 1, versions.stop, *range(0, 200_000, 500), *range(99_999_000, 100_001_000, 10)}
    put(store, *(snapshot_name(version, TWO) for version in others - {-1, *versions}))
    expected = {version: snapshot_name(version, ONE) for version in versions}
    put(store, *expected.values(), f"{snapshot_folder(1)}/{snapshot_name(versions.start, TWO).rsplit('/', 1)[1]}")
    asked: list[str] = []
    list_ = type(store).list

    def listed(self: Store, prefix: str = "") -> list[str]:
        asked.append(prefix)
        return list_(self, prefix)

    monkeypatch.setattr(type(store), "list", listed)
    assert stored_snapshots(store, versions, 0) == expected
    most = sum(10 ** (8 - len(prefix.removeprefix("snapshots/"))) for prefix in asked)
    assert most <= max(1000, 10 * len(versions))
    assert len(asked) <= 2
    assert list(stored_snapshots(store, versions, 1)) == [versions.start]


def test_two_shards_for_one_round_and_tile_are_a_mismatch(store: Store):
    """Both are named, so that a reader can find the non-deterministic part."""
    put(store, shard_name(3, 0, 30, 1, ONE), shard_name(3, 0, 30, 1, TWO), shard_name(3, 0, 30, 0, ONE))
    for round_ in (None, 30):
        with pytest.raises(StageMismatchError, match=r"00000030-0001") as caught:
            stored_shards(store, 3, 0, round_)
        assert ONE in str(caught.value)
        assert TWO in str(caught.value)
    assert stored_shards(store, 3, 0, 31) == {}


def test_two_states_for_one_round_and_tile_are_a_mismatch(store: Store):
    """As with shards."""
    put(store, state_name(3, 0, 30, 1, ONE), state_name(3, 0, 30, 1, TWO))
    with pytest.raises(StageMismatchError):
        stored_states(store, 3, 0)


def test_two_snapshots_for_one_version_are_a_mismatch(store: Store):
    """As with shards; other versions are not in the way."""
    put(store, snapshot_name(7, ONE), snapshot_name(7, TWO), snapshot_name(8, ONE))
    with pytest.raises(StageMismatchError):
        stored_snapshot(store, 7, 0)
    assert stored_snapshot(store, 8, 0) is not None


def test_members_that_begin_together_share_a_listing(store: Store):
    """Seven threads ask while one lists: one of them lists for all, and at most one more for those that were late."""
    put(store, shard_name(3, 0, 30, 0, ONE))
    shared: SharedListing[ShardRef] = SharedListing()
    lists, all_asked, moments = [], threading.Event(), iter(shared._moments)

    class Moments:
        """Tells when the first has begun, all others have asked, and one of these has begun."""

        def __next__(self) -> int:
            moment = next(moments)
            if moment == 2 + 7:
                all_asked.set()
            return moment

    shared._moments = Moments()
    first, go = threading.Event(), threading.Event()

    def listed() -> Listing[ShardRef]:
        lists.append(1)
        first.set()
        assert (go if len(lists) == 1 else all_asked).wait(150)
        return stored_shards(store, 3, 0)

    with ThreadPoolExecutor(8) as threads:
        leader = threads.submit(shared.get, (3, 0), listed)
        assert first.wait(150)
        others = [threads.submit(shared.get, (3, 0), listed) for _ in range(7)]
        go.set()
        found = [other.result(150) for other in others]
    assert set(leader.result()) == {(30, 0)}
    assert all(set(listing) == {(30, 0)} for listing in found)
    assert 2 <= len(lists) <= 3


def test_a_shared_listing_is_never_older_than_its_request(store: Store):
    """An answer has all that was stored when its member asked, although an older listing is still in use."""
    shared: SharedListing[ShardRef] = SharedListing()
    put(store, shard_name(3, 0, 30, 0, ONE))
    before = shared.get((3, 0), lambda: stored_shards(store, 3, 0))
    put(store, shard_name(3, 0, 31, 0, ONE))
    assert set(shared.get((3, 0), lambda: stored_shards(store, 3, 0))) == {(30, 0), (31, 0)}
    assert set(before) == {(30, 0)}


def test_a_listing_that_failed_is_not_shared(store: Store):
    """The next member lists itself; and nothing keeps a listing that no member uses."""
    shared: SharedListing[ShardRef] = SharedListing()

    def fail() -> Listing[ShardRef]:
        raise StageMismatchError("two contents")

    with pytest.raises(StageMismatchError):
        shared.get((3, 0), fail)
    assert shared.get((3, 0), lambda: stored_shards(store, 3, 0)) == {}
    gc.collect()
    assert shared._newest is not None
    assert shared._newest[2]() is None

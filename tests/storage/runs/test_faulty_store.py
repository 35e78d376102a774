"""Storage on a store that delays, loses, repeats, truncates and refuses requests: right results or a clear error."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from penstock.storage.cache.node_cache import NodeCache
from penstock.storage.digest import digest
from penstock.storage.errors import CommitConflictError, CorruptObjectError, LeaseHeldError, StoreError
from penstock.storage.refs import Ref
from penstock.storage.runs.commits import CommitLog
from penstock.storage.runs.latest import LATEST
from penstock.storage.runs.lease import acquire
from penstock.storage.stores.open import open_store
from penstock.storage.stores.probe import probe
from penstock.storage.transfer.prefetch import Prefetcher

from ...support.stored.faulty import Fault, FaultyStore, now_and_then
from .test_commits import GENESIS, make_commit

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.storage.stores.protocol import Store


@pytest.fixture
def inner(tmp_path: Path) -> Store:
    return open_store(tmp_path / "store")


@pytest.mark.parametrize("fault", [Fault("lose", ("create",)), Fault("repeat", ("create",))], ids=lambda it: it.kind)
def test_a_commit_with_a_lost_answer_is_recognised_as_own(inner, fault):
    """The error, or the refusal of the repeated request, is judged by what is stored: ours, so the stage happened."""
    log = CommitLog(FaultyStore(inner, [fault]))
    commit = make_commit(0, GENESIS)
    log.append(commit)
    assert CommitLog(inner).newest() == commit


@pytest.mark.parametrize("fault", [Fault("lose", ("create",)), Fault("repeat", ("create",))], ids=lambda it: it.kind)
def test_a_lost_answer_does_not_hide_another_commit(inner, fault):
    """If another commit is stored there, the error names it and nothing is overwritten."""
    CommitLog(inner).append(make_commit(0, GENESIS))
    with pytest.raises(CommitConflictError, match="is another commit"):
        CommitLog(FaultyStore(inner, [fault])).append(make_commit(0, digest(b"other")))
    assert CommitLog(inner).newest() == make_commit(0, GENESIS)


def test_a_commit_that_never_arrived_is_an_error_and_can_be_done_again(inner):
    """The error names the store, the log is as before, and the next try succeeds."""
    log = CommitLog(FaultyStore(inner, [Fault("drop", ("create",))]))
    with pytest.raises(StoreError, match=inner.url):
        log.append(make_commit(0, GENESIS))
    assert log.newest() is None
    log.append(make_commit(0, GENESIS))
    assert log.newest() == make_commit(0, GENESIS)


@pytest.mark.parametrize("kind", ["drop", "lose", "truncate"])
def test_the_hint_and_the_rollup_may_fail(inner, kind, caplog):
    """Both only save requests: the log reads the same without them, or with half of them."""
    store = FaultyStore(inner, [Fault(kind, ("write",), LATEST, calls=None), Fault(kind, ("write",), "*rollup*")])
    log = CommitLog(store, rollup_interval=2)
    for stage in range(3):
        log.append(make_commit(stage, log.digest_of(stage - 1) if stage else GENESIS))
    store.heal()
    assert {kind_ for kind_, call in store.met if "rollup" in call.name} == {kind}
    assert log.newest().stage == 2
    assert len(list(log.shard_refs())) == 6
    assert log.verify(GENESIS) == 3


def test_an_object_that_is_cut_on_its_way_is_never_cached(inner, tmp_path):
    """The error names it, and the next reader gets the whole."""
    content = b"content" * 100
    inner.write("object", [content])
    store, cache = FaultyStore(inner, [Fault("truncate", ("view",))]), NodeCache(tmp_path / "cache", 10_000)
    ref = Ref("object", digest(content), len(content))
    with pytest.raises(CorruptObjectError, match="'object'"):
        cache.get_buffer(store, ref)
    assert bytes(cache.get_buffer(store, ref)) == content
    assert bytes(cache.get_buffer(store, ref)) == content
    assert [call.operation for call in store.calls] == ["view", "view"]


def test_reading_ahead_keeps_its_order_despite_transient_faults(inner):
    """Delays change no order; a failed read is raised where its item is taken, and those after it come through."""
    names = [f"object-{index:02d}" for index in range(40)]
    for name in names:
        inner.write(name, [name.encode()])
    slow, failing = Fault("delay", ("read",), calls=None, chance=0.3, seconds=0.01), Fault("drop", ("read",), names[7])
    store = FaultyStore(inner, [slow, failing])
    taken: list[bytes | str] = []
    with Prefetcher(lambda ref: store.read(ref.name), 1 << 20, threads=4) as reader:
        for name in names:
            reader.submit(Ref(name, "", len(name)))
        for _ in names:
            try:
                taken.append(reader.take().value)
            except StoreError as error:
                taken.append(str(error))
    assert names[7] in str(taken[7])
    assert [item for index, item in enumerate(taken) if index != 7] == [
        name.encode() for name in names if name != names[7]
    ]


def test_a_lease_survives_transient_faults(inner, caplog):
    """Failed and repeated renewals end no lease within its ttl; a second driver is refused all the while."""
    store = FaultyStore(inner)
    with (
        acquire(store, "driver", 3600.0) as keeper,
        caplog.at_level(logging.WARNING, logger="penstock.storage.runs.lease"),
    ):
        store.add(*now_and_then(3, 0.2, "drop", "lose", "repeat"))
        for _ in range(50):
            keeper.renew()
            keeper.check()
        store.heal()
        assert {kind for kind, _ in store.met} >= {"drop", "lose", "repeat"}
        assert "not renewed" in caplog.text
        with pytest.raises(LeaseHeldError):
            acquire(inner, "second", 3600.0)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault("refuse", ("write",)), "failed by a test"),
        (Fault("truncate", ("write",)), "returned 16 bytes"),
        (Fault("truncate", ("read",)), "returned 16 bytes"),
        (Fault("drop", ("list",)), "failed by a test"),
    ],
    ids=lambda value: f"{value.kind}-{value.operations[0]}" if isinstance(value, Fault) else "",
)
def test_a_store_that_keeps_no_data_is_refused_before_a_run_starts(inner, fault, said):
    """The probe names the store, and leaves nothing behind."""
    with pytest.raises(StoreError, match=said) as refused:
        probe(FaultyStore(inner, [fault]))
    assert inner.url in str(refused.value)
    assert inner.list() == []

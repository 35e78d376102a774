"""The store that fails on purpose follows its rules, and without any it is a store like the others."""

import pickle
from pathlib import Path

import pytest

from penstock.storage.errors import ObjectExistsError, StoreError
from penstock.storage.stores.open import open_store
from penstock.storage.stores.protocol import Store
from penstock.storage.testing import StoreContract

from ...support.stored.faulty import READS, REQUESTS, Fault, FaultyStore, now_and_then


class TestWithoutFaults(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return FaultyStore(open_store(tmp_path / "store"))


class TestRepeating(StoreContract):
    """Everything except a create may be done twice without a difference."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        twice = tuple(operation for operation in REQUESTS if operation != "create")
        return FaultyStore(open_store(tmp_path / "store"), [Fault("repeat", twice, calls=None)])


@pytest.fixture
def inner(tmp_path: Path) -> Store:
    return open_store(tmp_path / "store")


@pytest.mark.parametrize(("kind", "done"), [("drop", False), ("lose", True), ("refuse", False)])
def test_a_failed_write_was_done_or_not(inner: Store, kind: str, done: bool):
    """The error names the store; the rule decides what is stored afterwards, and the next call succeeds."""
    store = FaultyStore(inner, [Fault(kind, ("write",), "*/b")])
    store.write("x/a", [b"content"])
    with pytest.raises(StoreError, match=f"'x/b' in the store '{inner.url}'"):
        store.write("x/b", [b"content"])
    assert inner.exists("x/b") is done
    store.write("x/b", [b"content"])
    assert [(kind_, call.name) for kind_, call in store.met] == [(kind, "x/b")]


def test_a_repeated_create_finds_its_own_object(inner: Store):
    """It is refused as on S3, where a retry follows a lost answer."""
    store = FaultyStore(inner, [Fault("repeat", ("create",))])
    with pytest.raises(ObjectExistsError):
        store.create("commit", b"mine")
    assert inner.read("commit") == b"mine"
    with pytest.raises(ObjectExistsError, match="by a test"):
        FaultyStore(inner, [Fault("refuse")]).create("other", b"")
    assert not inner.exists("other")


def test_a_late_request_is_done_when_it_lands(inner: Store):
    """Its caller has an error by then. A create that lands late is refused, unless the store ignores conditions."""
    store = FaultyStore(inner, [Fault("late", ("create", "write"), calls=3), Fault("forget", ("create",), first=2)])
    for create in (store.create, store.create):
        with pytest.raises(StoreError, match="done later"):
            create("commit", b"late")
    with pytest.raises(StoreError, match="done later"):
        store.write("other", [b"late"])
    store.create("commit", b"mine")
    assert inner.list() == ["commit"]
    store.land()
    assert [inner.read("commit"), inner.read("other")] == [b"late", b"late"]
    inner.write("commit", [b"mine"])
    store.land()
    assert inner.read("commit") == b"mine"


def test_a_store_that_forgets_conditions_replaces(inner: Store):
    """As a server does that does not know `If-None-Match`."""
    store = FaultyStore(inner, [Fault("forget", ("create",), calls=None)])
    store.create("commit", b"first")
    store.create("commit", b"second")
    assert inner.read("commit") == b"second"


def test_truncated_reads_and_writes_stay_truncated(inner: Store):
    """Reads of all kinds return a part, and a write stores one."""
    inner.write("object", [b"0123456789"])
    store = FaultyStore(inner, [Fault("truncate", READS, calls=None, share=0.5)])
    assert store.read("object") == store.view("object") == b"01234"
    assert store.read_range("object", 2, 8) == b"234"
    FaultyStore(inner, [Fault("truncate", ("write",), share=0.2)]).write("object", [b"01234", b"56789"])
    assert inner.read("object") == b"01"


def test_random_faults_do_not_depend_on_the_order_of_calls(inner: Store):
    """A seed hits the same calls of the same names in any order, about as many as its probability."""
    names = [f"object-{index}" for index in range(200)]

    def hit(names: list[str], seed: int) -> set[str]:
        store = FaultyStore(inner, now_and_then(seed, 0.25, "delay"))
        for name in [*names, *names]:
            store.exists(name)
        return {call.name for _, call in store.met}

    assert hit(names, 1) == hit(names[::-1], 1) != hit(names, 2)
    assert 70 <= len(hit(names, 1)) <= 130  # of 400 calls, never two of one name in a row


def test_rules_are_pickled_and_apply_to_folders(inner: Store):
    """A copy by pickle fails alike; stores below a folder share rules, and are counted under the whole name."""
    store = FaultyStore(inner, [Fault("drop", ("write",), "run/*", first=2)])
    copy = pickle.loads(pickle.dumps(store))
    for root in (store, copy):
        below = root.at("run")
        below.write("first", [b""])
        with pytest.raises(StoreError):
            below.write("second", [b""])
        below.write("third", [b""])
    store.add(Fault("drop", ("exists",)))
    with pytest.raises(StoreError):
        store.exists("run/first")
    store.add(Fault("drop", calls=None))
    store.heal()
    assert store.at("run").list() == ["first", "third"]

"""The counting store: the contract of every store, and what it counts."""

import pytest

from penstock.storage.errors import ObjectNotFoundError, StoreError
from penstock.storage.stores.counted import CountedStore, StoreTally, calls_since
from penstock.storage.stores.local import LocalStore
from penstock.storage.testing import StoreContract

from ...support.stored.faulty import Fault, FaultyStore


class TestCountedStore(StoreContract):
    """A counted store is a store."""

    @pytest.fixture
    def store(self, tmp_path):
        return CountedStore(LocalStore(tmp_path), StoreTally())


def test_calls_bytes_and_errors_are_counted_by_operation(tmp_path):
    """Folders below count too; a missing object is an answer, and a failure of the store an error."""
    tally = StoreTally()
    faulty = FaultyStore(LocalStore(tmp_path), [Fault("drop", ("read",), "b")])
    store = CountedStore(faulty, tally)
    store.at("folder").write("a", [b"12", memoryview(b"345")])
    before = tally.counts()
    assert store.read("folder/a") == b"12345"
    assert bytes(store.read_range("folder/a", 1, 3)) == b"23"
    with pytest.raises(ObjectNotFoundError):
        store.read("missing")
    with pytest.raises(StoreError):
        store.read("b")
    counts = {name: (calls.calls, calls.bytes, calls.errors) for name, calls in tally.counts().items()}
    assert counts == {"write": (1, 5, 0), "read": (3, 5, 1), "read_range": (1, 2, 0)}
    assert set(calls_since(before, tally.counts())) == {"read", "read_range"}

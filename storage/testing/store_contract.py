"""The contract of every store, as a test class.

A subclass provides a `store` fixture, a fresh and empty store for each test, and pytest does the rest:

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self, tmp_path):
            return open_store(f"mine://{tmp_path}")
"""

from __future__ import annotations

import pickle
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock.storage.errors import ObjectExistsError, ObjectNotFoundError
from penstock.storage.stores.open import open_store

if TYPE_CHECKING:
    from penstock.storage.stores.protocol import Store


class StoreContract:
    """The tests; a class of tests that inherits them provides the `store` fixture."""

    def test_parts_are_stored_as_one_object(self, store: Store) -> None:
        """Parts of any kind of buffer, empty ones too, come back as one object."""
        arrays: list[Any] = [np.arange(6, dtype=np.int16).reshape(2, 3), np.zeros((0, 4))]
        parts = [b"", b"head", *arrays, memoryview(b"tail")]
        store.write("shards/00000001/a.arrow", parts)
        expected = b"head" + np.arange(6, dtype=np.int16).tobytes() + b"tail"
        assert store.read("shards/00000001/a.arrow") == expected
        assert bytes(store.view("shards/00000001/a.arrow")) == expected

    def test_empty_objects(self, store: Store) -> None:
        """An object may be empty."""
        store.write("empty", [])
        assert store.exists("empty")
        assert store.read("empty") == b""
        assert len(store.view("empty")) == 0

    def test_write_replaces_and_is_never_seen_half_done(self, store: Store) -> None:
        """While an object is replaced again and again, readers see one whole content or another."""
        size = 300_000
        store.write("hint", [bytes([0]) * size])
        done = threading.Event()

        def write() -> None:
            for value in range(1, 20):
                store.write("hint", [bytes([value]) * (size // 2), bytes([value]) * (size // 2)])
            done.set()

        with ThreadPoolExecutor(1) as threads:
            writing = threads.submit(write)
            while not done.is_set():
                content = store.read("hint")
                assert len(content) == size
                assert len(set(content)) == 1
                if writing.done():
                    break
            writing.result()
        assert store.read("hint") == bytes([19]) * size
        assert store.list() == ["hint"]

    def test_create_refuses_what_exists(self, store: Store) -> None:
        """A second create is refused, names the object, and changes nothing."""
        store.create("commits/00000001.json", b"first")
        with pytest.raises(ObjectExistsError, match=r"commits/00000001\.json"):
            store.create("commits/00000001.json", b"second")
        assert store.read("commits/00000001.json") == b"first"
        assert store.list() == ["commits/00000001.json"]

    def test_views_are_private_and_writable(self, store: Store) -> None:
        """Writing to a view changes neither the object nor other views of it."""
        store.write("object", [b"abcd"])
        view, other = store.view("object"), store.view("object")
        array = np.frombuffer(view, dtype=np.uint8)
        assert array.flags.writeable
        array[0] = 0
        assert bytes(view) == b"\0bcd"
        assert bytes(other) == b"abcd"
        assert store.read("object") == b"abcd"

    def test_views_survive_replacement_and_deletion(self, store: Store) -> None:
        """A view keeps its content when its object is replaced or deleted."""
        store.write("object", [b"old" * 5000])
        view = store.view("object")
        store.write("object", [b"new"])
        store.delete(["object"])
        assert bytes(view) == b"old" * 5000

    @pytest.mark.parametrize("size", [1_000, 5 << 20])
    def test_ranges_are_those_of_the_object(self, store: Store, size: int) -> None:
        """A range is that slice of the object: from its start, out of its middle, to its end, and cut off beyond it."""
        content = np.random.default_rng(1).bytes(size)
        store.write("folder/object", [content])
        ranges = [(0, size), (0, 1), (0, 100), (7, 901), (size - 3, size), (size - 3, size + 50), (1, size)]
        ranges += [(size, size + 1), (size + 10, size + 20), (0, 0), (5, 5), (size, size), (size + 5, size + 5)]
        for start, stop in ranges:
            assert store.read_range("folder/object", start, stop) == content[start:stop], (start, stop)
        store.write("empty", [])
        for start, stop in ((0, 0), (0, 10), (10, 20)):
            assert bytes(store.read_range("empty", start, stop)) == b""

    @pytest.mark.parametrize("size", [100, 5 << 20])
    def test_ranges_are_private_and_writable(self, store: Store, size: int) -> None:
        """Writing to a range changes neither the object nor other ranges; it outlives the object."""
        store.write("object", [bytes(size)])
        one, other = store.read_range("object", 10, size), store.read_range("object", 10, size)
        np.frombuffer(one, dtype=np.uint8)[:] = 7
        assert one.format == "B"
        assert bytes(other) == bytes(size - 10)
        assert store.read("object") == bytes(size)
        store.write("object", [b"new"])
        store.delete(["object"])
        assert bytes(one) == b"\7" * (size - 10)

    def test_ranges_that_are_none_are_refused(self, store: Store) -> None:
        """Negative or reversed bounds are refused by every store."""
        store.write("object", [b"content"])
        for start, stop in ((-3, 5), (0, -1), (5, 4), (-5, -2)):
            with pytest.raises(ValueError, match="no range"):
                store.read_range("object", start, stop)

    def test_missing_objects_are_named(self, store: Store) -> None:
        """Reading a missing object raises an error with its name and the store; a folder is not an object."""
        store.write("folder/object", [b"content"])
        for name in ("nothing", "folder", "folder/nothing", "folder/object/below"):
            assert not store.exists(name)
            with pytest.raises(ObjectNotFoundError, match=rf"'{name}' in the store '.*{re.escape(store.url)}'"):
                store.read(name)
            with pytest.raises(ObjectNotFoundError):
                store.view(name)
            for start, stop in ((0, 3), (2, 2)):
                with pytest.raises(ObjectNotFoundError, match=rf"'{name}' in the store '.*{re.escape(store.url)}'"):
                    store.read_range(name, start, stop)

    def test_list_takes_prefixes_and_sees_every_change(self, store: Store) -> None:
        """Names come sorted, for a prefix that may end anywhere, and no listing is remembered."""
        assert store.list() == []
        assert store.list("commits/") == []
        names = ["commits/00000001.json", "commits/00000002.json", "commits/rollup-00000002.arrow", "run.json"]
        for name in reversed(names):
            store.write(name, [b"{}"])
        assert store.list() == names
        assert store.list("commits/0") == names[:2]
        assert store.list("commits/") == names[:3]
        assert store.list("com") == names[:3]
        assert store.list("other/") == []
        store.write("commits/00000003.json", [b"{}"])
        assert store.list("commits/0") == [*names[:2], "commits/00000003.json"]
        store.delete(["commits/00000001.json"])
        assert store.list("commits/0") == ["commits/00000002.json", "commits/00000003.json"]

    def test_delete_takes_missing_objects(self, store: Store) -> None:
        """Deleting several objects, some of them gone already, removes the rest."""
        store.write("a/b/one", [b"1"])
        store.write("a/two", [b"2"])
        store.delete(["a/b/one", "a/b/nothing", "nothing/at/all"])
        assert store.list() == ["a/two"]
        store.delete(iter(["a/two"]))
        store.delete([])
        assert store.list() == []
        store.write("a/b/one", [b"again"])
        assert store.read("a/b/one") == b"again"

    def test_sub_stores_share_their_objects(self, store: Store) -> None:
        """A store below a folder sees that folder alone, under shorter names, and its url opens it again."""
        below = store.at("runs/one")
        below.write("run.json", [b"{}"])
        store.write("runs/two/run.json", [b"{}"])
        assert store.list() == ["runs/one/run.json", "runs/two/run.json"]
        assert below.list() == ["run.json"]
        assert below.read("run.json") == store.read("runs/one/run.json")
        assert open_store(below.url).list() == ["run.json"]

    def test_stores_travel_in_pickles(self, store: Store) -> None:
        """A copy by pickle is the same store, whether or not the original was used."""
        copy = pickle.loads(pickle.dumps(store))
        copy.write("object", [b"content"])
        assert store.read("object") == b"content"
        again = pickle.loads(pickle.dumps(store))
        assert again.url == store.url
        assert again.read("object") == b"content"

    def test_durable_objects_and_sync(self, store: Store) -> None:
        """Durable writes, and objects that are made durable later, are stored like any other."""
        store.write("new/folder/object", [b"content"], durable=True)
        store.write("other/object", [b"later"])
        store.sync(["other/object", "new/folder/object"])
        assert store.read("new/folder/object") == b"content"
        assert store.list() == ["new/folder/object", "other/object"]

    def test_nothing_is_synced_in_a_new_store(self, store: Store) -> None:
        """A store whose place does not exist yet is as any other that holds nothing."""
        store.at("new").sync([])
        assert store.list() == []

    @pytest.mark.parametrize("name", ["", "/etc/passwd", "../other", "a/../../b", "a//b", "a/", "./a", "a/.tmp-1"])
    def test_names_stay_inside(self, store: Store, name: str) -> None:
        """Names that leave the store, or look half-written, are refused by every method."""
        for use in (
            store.read,
            store.view,
            store.exists,
            store.path,
            lambda name: store.read_range(name, 0, 1),
            lambda name: store.write(name, [b""]),
        ):
            with pytest.raises(ValueError, match="names no object"):
                use(name)
        with pytest.raises(ValueError, match="names no object"):
            store.create(name, b"")
        with pytest.raises(ValueError, match="names no object"):
            store.delete([name])

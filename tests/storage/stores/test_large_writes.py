"""Large writes of very many threads are signed and sent a few at a time; small ones overtake them."""

import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

from penstock.storage.stores.fsspec import FsspecStore
from penstock.storage.stores.remote import _LARGE_AT_ONCE, _LARGE_BYTES

PATIENCE_SECONDS = 150.0


class Slow(FsspecStore):
    """Keeps large writes under way until they are released."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.changed = threading.Condition()
        self.under_way = self.most = 0
        self.released = False

    def _put(self, client: Any, path: str, content: bytes) -> None:
        if len(content) >= _LARGE_BYTES:
            with self.changed:
                self.under_way += 1
                self.most = max(self.most, self.under_way)
                self.changed.notify_all()
                assert self.changed.wait_for(lambda: self.released, PATIENCE_SECONDS)
                self.under_way -= 1
        super()._put(client, path, content)


def parts() -> Iterable[bytes]:
    return [b"a" * (_LARGE_BYTES // 2), b"b" * (_LARGE_BYTES // 2)]


def test_large_writes_queue_and_small_ones_do_not():
    """At most 8 of 20 large writes run at once; a lease is renewed meanwhile; in the end all are there."""
    store = Slow(f"memory://{uuid4().hex}")
    names = [f"shards/{index}" for index in range(20)]
    with ThreadPoolExecutor(len(names)) as threads:
        writes = [threads.submit(store.write, name, parts()) for name in names]
        with store.changed:
            assert store.changed.wait_for(lambda: store.under_way == _LARGE_AT_ONCE, PATIENCE_SECONDS)
        store.write("lease.json", [b"renewed"])
        assert store.read("lease.json") == b"renewed"
        with store.changed:
            store.released = True
            store.changed.notify_all()
        for write in writes:
            write.result(PATIENCE_SECONDS)
    assert store.most == _LARGE_AT_ONCE
    assert store.list("shards/") == sorted(names)
    assert store.read(names[-1]) == b"".join(parts())

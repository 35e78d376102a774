"""Stores on a real S3 server, which is also stopped and started."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.storage.errors import ObjectExistsError, StoreError
from penstock.storage.stores.open import open_store
from penstock.storage.stores.protocol import Store
from penstock.storage.stores.remote import request_counts
from penstock.storage.testing import StoreContract

from ...support.services.s3_clients import OBSTORE

pytestmark = pytest.mark.slow


class TestSwiftStore(StoreContract):
    """A real server keeps every promise but one: of several concurrent creations more than one may win."""

    @pytest.fixture(params=["s3", OBSTORE])
    def store(self, request: pytest.FixtureRequest, swift_url: str) -> Store:
        return open_store(swift_url.replace("s3", request.param, 1))


@pytest.mark.parametrize("scheme", ["s3", OBSTORE])
def test_a_server_that_is_stopped_and_started(swift_server, swift_url: str, scheme: str):
    """Acknowledged writes survive, and a call during the outage completes when the server is back."""
    store = open_store(swift_url.replace("s3", scheme, 1))
    store.write("before", [b"content"])
    store.create("created", b"content")
    swift_server.stop()
    with ThreadPoolExecutor(1) as threads:
        try:
            reading = threads.submit(store.read, "before")
            while not request_counts(store).retries:
                assert not reading.done()
                time.sleep(0.005)
        finally:
            swift_server.start()
        try:
            assert reading.result(150) == b"content"
        except StoreError:  # a machine so busy that the server was back later than the store tries
            assert store.read("before") == b"content"
    with pytest.raises(ObjectExistsError):
        store.create("created", b"other")
    assert store.list() == ["before", "created"]

"""The S3 store survives faults on the wire, made by a proxy in front of an S3 server."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from s3fs import S3FileSystem

from penstock.storage.digest import digest
from penstock.storage.errors import ObjectExistsError, StoreError
from penstock.storage.stores.open import open_store
from penstock.storage.testing import StoreContract

from ...support.services.s3_clients import OBSTORE
from ...support.services.s3_proxy import METHODS, S3Proxy
from ...support.stored.faulty import Fault, now_and_then

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.storage.stores.protocol import Store


@pytest.fixture(scope="module")
def listening(s3_server) -> Iterator[S3Proxy]:
    S3FileSystem.clear_instance_cache()  # fsspec keeps them by their options, and those here are in the environment
    with S3Proxy(s3_server.endpoint) as proxy:
        yield proxy
    S3FileSystem.clear_instance_cache()


@pytest.fixture
def proxy(listening: S3Proxy) -> Iterator[S3Proxy]:
    yield listening
    listening.heal()
    listening.met.clear()


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the waits between attempts, which are not tested here."""
    monkeypatch.setattr("penstock.storage.stores.remote.FIRST_WAIT_SECONDS", 0.01)


@pytest.fixture
def soon_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the time of all attempts, for calls that are to fail."""
    monkeypatch.setattr("penstock.storage.stores.remote.RETRY_SECONDS", 0.1)


@pytest.fixture(params=["s3", OBSTORE])
def store(
    request: pytest.FixtureRequest,
    s3_url: str,
    proxy: S3Proxy,
    monkeypatch: pytest.MonkeyPatch,
    quick_retries: None,
) -> Store:
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    return open_store(s3_url.replace("s3", request.param, 1))


class TestThroughTheProxy(StoreContract):
    """Make a proxy without faults."""

    @pytest.fixture
    def store(self, s3_url: str, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch) -> Store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        return open_store(s3_url)


def test_an_attempt_that_took_all_the_time_is_not_the_last(store: Store, proxy: S3Proxy, monkeypatch):
    """A connection that hangs until its time-out gets a second attempt, whatever the time, and then an error."""
    monkeypatch.setattr("penstock.storage.stores.remote.RETRY_SECONDS", 0.0)
    proxy.add(Fault("refuse", ("PUT",)))
    store.write("object", [b"content"])
    assert store.read("object") == b"content"
    proxy.add(Fault("refuse", ("PUT",), calls=2))
    with pytest.raises(StoreError, match="after 2 attempts"):
        store.write("object", [b"content"])


def test_a_service_that_restarts_is_waited_for(store: Store, proxy: S3Proxy, monkeypatch):
    """It refuses more calls than five attempts make: one that has answered before is tried until the time is over."""
    store.write("object", [b"content"])
    monkeypatch.setattr("penstock.storage.stores.remote.RETRY_SECONDS", 600.0)
    monkeypatch.setattr("penstock.storage.stores.remote.LONGEST_WAIT_SECONDS", 0.05)
    proxy.add(Fault("refuse", METHODS, calls=12))
    assert store.read("object") == b"content"
    assert len(proxy.met) == 12


@pytest.mark.parametrize("kind", ["delay", "drop", "lose", "refuse", "repeat", "truncate"])
def test_every_fault_is_survived_by_a_retry(store: Store, proxy: S3Proxy, kind: str):
    """One fault on every method, and each call still does what it promises."""
    content = bytes(range(256)) * 400
    proxy.add(*(Fault(kind, (method,), seconds=0.05) for method in METHODS))
    store.write("folder/object", [content])
    assert digest(store.read("folder/object")) == digest(content)
    assert store.exists("folder/object")
    proxy.add(Fault(kind, ("GET",), seconds=0.05))
    assert store.list() == ["folder/object"]
    proxy.add(Fault(kind, ("GET",), seconds=0.05))
    assert store.read_range("folder/object", 1000, 90_000) == content[1000:90_000]
    store.delete(["folder/object"])
    assert store.list() == []
    assert {met for met, _ in proxy.met} == {kind}


def test_a_create_whose_answer_was_lost_is_refused_and_readable(store: Store, proxy: S3Proxy):
    """The retry finds its own object, as the store's contract says: read it back to know."""
    proxy.add(Fault("lose", ("PUT",)))
    with pytest.raises(ObjectExistsError, match="'commit'"):
        store.create("commit", b"mine")
    assert store.read("commit") == b"mine"


@pytest.mark.usefixtures("soon_given_up")
def test_a_create_that_lands_late_is_refused_unless_the_condition_was_forgotten(store: Store, proxy: S3Proxy):
    """The server has begun the request when another one is done, and ends it afterwards."""
    for name, forgets in (("kept", False), ("replaced", True)):
        late = Fault("late", ("PUT",), f"*{name}", calls=100)
        proxy.add(late, *([Fault("forget", ("PUT",), f"*{name}", calls=None)] if forgets else []))
        with pytest.raises(StoreError, match=name):
            store.create(name, b"late")
        proxy.drop(late)
        store.create(name, b"mine")
        assert set(proxy.land()) == ({200} if forgets else {412})
        assert store.read(name) == (b"late" if forgets else b"mine")


def test_frequent_faults_lose_no_object(store: Store, proxy: S3Proxy):
    """Some requests dropped, unanswered, refused, repeated or cut, in any mixture: every object is right."""
    proxy.add(*now_and_then(1, 0.06, "drop", "lose", "refuse", "repeat", "truncate", operations=METHODS))
    contents = {f"shards/{index:03d}": bytes([index]) * (1000 * index) for index in range(40)}
    for name, content in contents.items():
        store.write(name, [content])
    assert {name: store.read(name) for name in store.list("shards/")} == contents
    assert {kind for kind, _ in proxy.met} == {"drop", "lose", "refuse", "repeat", "truncate"}


@pytest.mark.usefixtures("soon_given_up")
def test_a_stopped_server_is_named_and_found_again(store: Store, proxy: S3Proxy):
    """While no server listens every call ends in an error that names the store; afterwards the same store works."""
    store.write("before", [b"content"])
    proxy.stop()
    for use in (lambda: store.write("meanwhile", [b""]), lambda: store.read("before"), store.list):
        with pytest.raises(StoreError, match=f"'{re.escape(store.url)}' after [0-9]+ attempts"):
            use()
    proxy.start()
    assert store.read("before") == b"content"
    assert store.list() == ["before"]

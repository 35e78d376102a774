"""The proxy in front of an S3 server: what the S3 store makes of faults on the wire."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from s3fs import S3FileSystem

from storage.digest import digest
from storage.errors import ObjectExistsError, StoreError
from storage.store import open_store

from .faulty import Fault, now_and_then
from .s3_proxy import METHODS, S3Proxy
from .store_contract import OBSTORE, StoreContract

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage.store import Store


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
    """Waits between attempts are not what is tested."""
    monkeypatch.setattr("storage.remote_store.FIRST_WAIT_SECONDS", 0.01)


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
    """Nothing is wrong, and everything passes."""

    @pytest.fixture
    def store(self, s3_url: str, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch) -> Store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        return open_store(s3_url)


def test_an_attempt_that_took_all_the_time_is_not_the_last(store: Store, proxy: S3Proxy, monkeypatch):
    """As of a connection that hangs until it times out: there is a second one, whatever the time, and then an error."""
    monkeypatch.setattr("storage.remote_store.RETRY_SECONDS", 0.0)
    proxy.add(Fault("refuse", ("PUT",)))
    store.write("object", [b"content"])
    assert store.read("object") == b"content"
    proxy.add(Fault("refuse", ("PUT",), calls=2))
    with pytest.raises(StoreError, match="after 2 attempts"):
        store.write("object", [b"content"])


@pytest.mark.parametrize("kind", ["delay", "drop", "lose", "refuse", "repeat", "truncate"])
def test_every_fault_is_survived_by_trying_again(store: Store, proxy: S3Proxy, kind: str):
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
    """The retry meets its own object, as the store's contract says: read it back to know."""
    proxy.add(Fault("lose", ("PUT",)))
    with pytest.raises(ObjectExistsError, match="'commit'"):
        store.create("commit", b"mine")
    assert store.read("commit") == b"mine"


def test_a_store_that_stumbles_all_the_time_loses_nothing(store: Store, proxy: S3Proxy):
    """Some requests dropped, unanswered, refused, repeated or cut, in any mixture: every object is right."""
    proxy.add(*now_and_then(1, 0.06, "drop", "lose", "refuse", "repeat", "truncate", operations=METHODS))
    contents = {f"shards/{index:03d}": bytes([index]) * (1000 * index) for index in range(40)}
    for name, content in contents.items():
        store.write(name, [content])
    assert {name: store.read(name) for name in store.list("shards/")} == contents
    assert {kind for kind, _ in proxy.met} == {"drop", "lose", "refuse", "repeat", "truncate"}


def test_a_server_that_goes_away_is_named_and_found_again(store: Store, proxy: S3Proxy):
    """While nobody listens every call ends in an error that names the store; afterwards the same store works."""
    store.write("before", [b"content"])
    proxy.stop()
    for use in (lambda: store.write("meanwhile", [b""]), lambda: store.read("before"), store.list):
        with pytest.raises(StoreError, match=f"'{re.escape(store.url)}' after 5 attempts"):
            use()
    proxy.start()
    assert store.read("before") == b"content"
    assert store.list() == ["before"]

"""A service that accepts connections and never answers: it is named after seconds, and every call ends."""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING

import pytest

from penstock.storage.errors import StoreError
from penstock.storage.stores import fsspec
from penstock.storage.stores.open import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.storage.stores.protocol import Store


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store at such a service, with short times."""
    for name, value in (("remote.SILENT_SECONDS", 0.0), ("remote.RETRY_SECONDS", 0.0), ("fsspec.READ_SECONDS", 0.1)):
        monkeypatch.setattr(f"penstock.storage.stores.{name}", value)
    monkeypatch.setitem(fsspec._S3_SETTINGS, "read_timeout", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        yield open_store("s3://bucket/runs", endpoint_url=endpoint, key="testing", secret="testing")


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.read("a"),
        lambda store: store.list(),
        lambda store: store.write("a", [b"x"]),
        lambda store: store.create("a", b"x"),
        lambda store: store.write("a", [bytes(8 << 20)]),
    ],
    ids=["read", "list", "write", "create", "write much"],
)
def test_a_service_that_never_answers_is_named_and_given_up(
    silent: Store, call: Callable[[Store], object], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("penstock.storage.stores.fsspec._SLOWEST_BYTES_PER_SECOND", 1 << 30)
    with caplog.at_level(logging.WARNING), pytest.raises(StoreError, match=r"after 2 attempts: \w+: \w"):
        call(silent)
    said = [record.getMessage() for record in caplog.records if record.name == "penstock.storage.stores.remote"]
    assert said == ["the store 's3://bucket/runs' has not answered for 0 s; it is waited for"]

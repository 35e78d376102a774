"""A service that accepts connections and never answers: it is named after seconds, every call ends, Ctrl-C is heard."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from penstock.storage.errors import StoreError
from penstock.storage.stores import fsspec
from penstock.storage.stores.open import open_store

from ...support.services.s3_clients import CLIENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.storage.stores.protocol import Store

PATIENCE_SECONDS = 150.0
ASKING = """
import sys
from penstock.storage.stores import remote
remote.READ_SECONDS = 3600.0
from penstock.storage.stores.open import open_store
store = open_store(sys.argv[1] + "://bucket/runs", endpoint_url=sys.argv[2], key="testing", secret="testing")
store.read("a") if sys.argv[3] == "read" else store.write("a", [b"x"])
"""


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


@pytest.mark.parametrize("call", ["read", "write"])
@pytest.mark.parametrize("scheme", CLIENTS)
def test_a_request_that_is_not_answered_is_left_at_ctrl_c(scheme: str, call: str):
    """The process ends while the request is under way, which no client would give up for an hour."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_SECONDS)
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        command = [sys.executable, "-c", ASKING, scheme, endpoint, call]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as asking:
            try:
                connection, _ = server.accept()
                with connection:
                    connection.settimeout(PATIENCE_SECONDS)
                    assert connection.recv(1)
                    asking.send_signal(signal.SIGINT)
                    _, said = asking.communicate(timeout=PATIENCE_SECONDS)
            finally:
                asking.kill()
    assert (asking.returncode, said.splitlines()[-1]) == (-signal.SIGINT, "KeyboardInterrupt")

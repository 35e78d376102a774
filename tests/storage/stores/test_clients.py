"""Both clients of S3 trust the same authorities, say why there is no answer, and repeat what S3 asks to be repeated."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, ClassVar

import pytest
from s3fs import S3FileSystem

from penstock.storage.errors import StoreError
from penstock.storage.stores.open import open_store

from ...support.services.certificates import self_signed, signed
from ...support.services.s3_clients import CLIENTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.storage.stores.protocol import Store

STALLED = b"<Error><Code>RequestTimeout</Code><Message>Your connection was not written to</Message></Error>"


class Handler(BaseHTTPRequestHandler):
    """Answers with the statuses that it is given, then with 200 and an empty body."""

    protocol_version = "HTTP/1.1"
    statuses: ClassVar[list[int]] = []

    def do_GET(self) -> None:
        status = self.statuses.pop(0) if self.statuses else 200
        body = STALLED if status == 400 else b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"0"')
        self.send_header("Last-Modified", "Sun, 29 Nov 2026 12:00:00 GMT")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def served(context: ssl.SSLContext | None = None) -> Iterator[int]:
    """Serve on a port of loopback, over TLS if there is a context."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


def opened(scheme: str, endpoint: str) -> Store:
    return open_store(f"{scheme}://bucket/runs", endpoint_url=endpoint, key="mine", secret="mine")


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.storage.stores.remote.FIRST_WAIT_SECONDS", 0.01)


@pytest.mark.parametrize("scheme", CLIENTS)
def test_why_there_is_no_connection_is_said(scheme: str):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(StoreError, match=r"(?i)connection refused|could not connect"):
        opened(scheme, f"http://127.0.0.1:{port}").read("object")


@pytest.mark.parametrize("scheme", CLIENTS)
def test_an_authority_of_ones_own_is_trusted(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As botocore finds it; without it, the certificate is what the error is about."""
    trusted = self_signed(tmp_path, "authority")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*signed(tmp_path, "server", trusted).tls)
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    with served(context) as port:
        with pytest.raises(StoreError, match=r"(?i)certificate|UnknownIssuer"):
            opened(scheme, f"https://localhost:{port}").read("object")
        monkeypatch.setenv("AWS_CA_BUNDLE", trusted.certificate)
        S3FileSystem.clear_instance_cache()  # fsspec keeps them by their options
        assert opened(scheme, f"https://localhost:{port}").read("object") == b""


@pytest.mark.parametrize("scheme", CLIENTS)
def test_authorities_that_can_not_be_read_are_named(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Their missing file is no missing object, which readers take for a run that has not begun."""
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "none.pem"))
    S3FileSystem.clear_instance_cache()
    with served() as port, pytest.raises(StoreError, match="No such file"):
        opened(scheme, f"https://127.0.0.1:{port}").read("object")


@pytest.mark.parametrize("scheme", CLIENTS)
def test_a_stalled_request_is_repeated(scheme: str, monkeypatch: pytest.MonkeyPatch):
    """S3 answers 400 to it, which otherwise means that the request is wrong."""
    monkeypatch.setattr(Handler, "statuses", [400])
    with served() as port:
        assert opened(scheme, f"http://127.0.0.1:{port}").read("object") == b""
        assert not Handler.statuses

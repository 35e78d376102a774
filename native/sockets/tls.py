"""TLS for both ends, a server with a certificate and a client that trusts one; needs what `server.py` needs.

A client takes no server but one whose certificate it trusts, for the host of the address. Clients show no certificate:
whether they may connect is what the token says.
"""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING

try:
    from penstock.native.sockets import wire
except ImportError:  # copied without Penstock
    import wire  # type: ignore[import-not-found, no-redef]

if TYPE_CHECKING:
    from collections.abc import Callable

_PLAIN_HELLO = wire.HEADER.pack(0, wire.HELLO, 0)[4:]
"""The header of a client that speaks no TLS, after its size; a TLS handshake has other bytes there."""


class PlainClientError(ConnectionError):
    """A client speaks no TLS; it reads what is sent to it as frames."""


class Certificate:
    """A server's certificate and key."""

    def __init__(self, certificate: str, key: str) -> None:
        """Read two PEM files.

        Raises:
            ValueError: A file can't be read, or they are no certificate and its key.
        """
        self._context = _context(ssl.PROTOCOL_TLS_SERVER)
        _taken(
            f"tls_certificate {certificate!r} with tls_key {key!r}",
            "PEM files of a certificate and of its key, which has no password",
            (certificate, key),
            lambda: self._context.load_cert_chain(certificate, key, password=_no_password),
        )

    def wrapped(self, connection: socket.socket) -> ssl.SSLSocket:
        """Return an accepted connection, whose handshake is still to be made by `do_handshake`.

        Raises:
            PlainClientError: The client speaks no TLS; the connection stays as it is.
            WireError: The client is gone.
        """
        try:
            is_plain = connection.recv(wire.HEADER.size, socket.MSG_PEEK)[4:] == _PLAIN_HELLO
            if not is_plain:
                return self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        except OSError as error:
            raise wire.WireError(f"no TLS handshake ({error})") from error
        raise PlainClientError("the server speaks TLS alone: name its certificate as environment.tls_certificate")


class Trust:
    """A client's trust in one certificate, a server's own or an authority's."""

    def __init__(self, certificate: str) -> None:
        """Read a PEM file.

        Raises:
            ValueError: It can't be read, or has no certificate.
        """
        self.certificate = certificate
        self._context = _context(ssl.PROTOCOL_TLS_CLIENT)
        self._context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # a server's own may be signed by an authority
        _taken(
            f"tls_certificate {certificate!r}",
            "a PEM file with the certificate of the server or of its authority, on every machine that acts",
            (certificate,),
            lambda: self._context.load_verify_locations(certificate),
        )

    def wrapped(self, connection: socket.socket, host: str) -> ssl.SSLSocket:
        """Return a connection to a host after its handshake.

        Raises:
            UntrustedError: Its certificate is another one, or another host's, or out of date.
            WireError: The server is gone, or speaks no TLS.
        """
        try:
            return self._context.wrap_socket(connection, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            raise UntrustedError(
                f"can't be trusted ({error.verify_message}): expected the certificate in {self.certificate!r}, or one "
                f"that it has signed, made for {host}"
            ) from error
        except OSError as error:
            raise wire.WireError(f"no TLS handshake ({error}); has the server a certificate?") from error


class UntrustedError(ValueError):
    """A server's certificate is not the one that is trusted; the message goes on from the server's name."""


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _taken(what: str, expected: str, paths: tuple[str, ...], load: Callable[[], object]) -> None:
    try:
        for path in paths:
            with open(path, "rb"):  # noqa: PTH123  (OpenSSL's errors name no file)
                pass
        load()
    except (OSError, ValueError) as error:
        raise ValueError(f"{what} can't be taken ({error}): expected {expected}") from error


def _no_password() -> str:
    raise ValueError("the key has a password")  # OpenSSL would ask for it on the terminal

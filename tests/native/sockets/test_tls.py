"""TLS between a pool and a server: the same rows, to a server with the certificate that is named and to no other."""

import socket
import subprocess
import sys
import threading

import numpy as np
import pytest

from penstock import native
from penstock.native.conformance.runner import check_id
from penstock.native.sockets import server as python_server
from penstock.native.sockets.server import serve_id

from ...support.services.certificates import self_signed, signed
from ...support.services.environment_server import EnvironmentProcess
from .test_socket_pool import ID, assert_same_rounds, play_rounds, served


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory):
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def own(folder):
    return self_signed(folder, "own")


@pytest.fixture(scope="module")
def other(folder):
    return self_signed(folder, "other")


def made(server, trusted, **options):
    return native.make(ID, 3, address=server.address, tls_certificate=trusted.certificate, **options)


def test_rows_are_those_of_a_plain_connection_also_after_a_killed_server(own):
    """With a program that serves by itself: nothing but the bytes on the way is another."""
    command = [sys.executable, python_server.__file__, "CartPole-v1", "--tls", *own.tls, "--port"]
    with served() as plain, EnvironmentProcess(command=command) as server:
        pools = [made(server, own, reconnect_seconds=150), native.make(ID, 3, address=plain.address)]

        def between(step):
            if step in {0, 43}:
                server.kill()
                server.start()

        got, wanted = play_rounds(pools[0], between=between), play_rounds(pools[1])
        assert_same_rounds(got, wanted)
        for pool in pools:
            pool.close()


def test_an_authoritys_certificate_is_trusted_and_the_servers_own(folder, own):
    """Either may be named where another certificate has signed the server's."""
    leaf = signed(folder, "leaf", own)
    with served(tls=leaf.tls) as server:
        for trusted in (own, leaf):
            made(server, trusted).close()


def test_another_server_is_not_taken(folder, own, other):
    """One with another certificate, and one whose certificate is for another host; it gets no HELLO."""
    elsewhere = self_signed(folder, "elsewhere", "subjectAltName=DNS:elsewhere.example")
    with served(tls=other.tls) as server:
        with pytest.raises(ValueError, match=rf"{server.address} can't be trusted \(self.signed.*own.pem"):
            made(server, own)
        made(server, other).close()
    with (
        served(tls=elsewhere.tls) as server,
        pytest.raises(ValueError, match=r"can't be trusted \(IP address mismatch.*made for 127.0.0.1"),
    ):
        made(server, elsewhere)


def test_a_server_that_comes_back_with_another_certificate_ends_the_step(own, other):
    """It is not tried again."""
    with served(tls=own.tls) as server:
        pool = made(server, own, reconnect_seconds=150)
        pool.reset(seed=0)
    with (
        served(address=server.address, tls=other.tls),
        pytest.raises(RuntimeError, match=r"can't be trusted"),
    ):
        pool.step(np.zeros(3, np.int64))
    pool.close()


def test_a_client_without_a_certificate_is_told(own):
    """In the words of a plain connection, which it reads."""
    with (
        served(tls=own.tls) as server,
        pytest.raises(ValueError, match=r"the server speaks TLS alone: name its certificate as environment.tls_cert"),
    ):
        native.make(ID, 1, address=server.address)


def test_a_client_with_a_certificate_says_nothing_to_a_plain_server(own, monkeypatch):
    """Neither the token nor anything else of the protocol leaves it."""
    monkeypatch.setenv("PENSTOCK_ENVIRONMENT_TOKEN", "a secret")
    heard = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def listen():
            connection, _ = listening.accept()
            with connection:
                heard.append(connection.recv(65536))

        thread = threading.Thread(target=listen)
        thread.start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(ValueError, match=r"no TLS handshake \(.*has the server a certificate"):
            native.make(ID, 1, address=address, tls_certificate=own.certificate, reconnect_seconds=0.01)
        thread.join()
    assert heard[0]
    assert b"secret" not in heard[0]
    assert b"PENSTOCK" not in heard[0]
    with served() as server, pytest.raises(ValueError, match="no TLS handshake"):
        made(server, own, reconnect_seconds=0.1)


def test_clients_that_say_nothing_keep_nobody_waiting(own):
    """A handshake is waited for in its connection's own thread, and a server that closes ends it."""
    with served(tls=own.tls) as server:
        silent = [socket.create_connection(("127.0.0.1", int(server.address.rpartition(":")[2]))) for _ in range(3)]
        made(server, own).close()
    for connection in silent:
        connection.settimeout(150)
        assert connection.recv(1) == b""
        connection.close()


def test_files_that_are_none_are_named(folder, own, other):
    """At both ends, before anything is listened on or connected to."""
    empty, locked = folder / "empty.pem", folder / "locked.pem"
    empty.write_text("")
    subprocess.run(
        ["openssl", "ec", "-in", own.key, "-aes256", "-passout", "pass:x", "-out", locked],
        check=True,
        capture_output=True,
        timeout=150,
    )
    for tls, said in (
        ((own.certificate, "nowhere.pem"), r"No such file.*'nowhere.pem'\): expected PEM files of a certificate"),
        ((str(empty), own.key), r"empty.pem' with tls_key .* can't be taken"),
        ((own.certificate, other.key), r"can't be taken \(.*(?i:mismatch)"),
        ((own.certificate, str(locked)), r"can't be taken \(the key has a password\)"),
    ):
        with pytest.raises(ValueError, match=said):
            serve_id("CartPole-v1", "127.0.0.1:0", tls=tls)
    for path in ("nowhere.pem", str(empty)):
        with pytest.raises(ValueError, match=rf"tls_certificate '{path}' can't be taken \(.*: expected a PEM file"):
            native.make(ID, 1, address="127.0.0.1:1", tls_certificate=path)


def test_a_unix_socket_has_no_certificate(tmp_path, own):
    """Such a connection never leaves the machine; it is refused rather than left plain."""
    address = f"unix:{tmp_path}/socket"
    with pytest.raises(ValueError, match="never leaves this machine: leave the certificate"):
        serve_id("CartPole-v1", address, tls=own.tls)
    with pytest.raises(ValueError, match="never leaves this machine: leave tls_certificate out"):
        native.make(ID, 1, address=address, tls_certificate=own.certificate)


def test_an_environment_is_checked_over_tls(own):
    """The report names the certificate among the settings of a run."""
    with served(tls=own.tls) as server:
        report = check_id(ID, {"address": server.address, "tls_certificate": own.certificate})
    assert report.passed
    assert f"environment.tls_certificate = '{own.certificate}'" in report.checks[0].detail

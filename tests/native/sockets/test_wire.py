"""Bytes that are none of the protocol: nothing is allocated for them, and both ends go on or say why not."""

import contextlib
import json
import socket
import struct
import threading

import numpy as np
import pytest

from penstock import native
from penstock.native.sockets import wire
from penstock.native.sockets.server import EnvironmentServer

from .test_socket_pool import Drifting, served


def hello(magic=wire.MAGIC, version=1, num_envs=1, limit=0, name=b"CartPole-v1", settings=b"{}", extra=b""):
    head = wire.HELLO_HEAD.pack(magic, version, num_envs, limit, 0, len(name), len(settings))
    return head + name + settings + extra


def exchanged(address, *frames):
    """Send frames of (kind, body); returns the kinds and bodies of the answers, up to the end of the connection."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        answers = []
        for kind, body in frames:
            wire.send_frame(connection, kind, body)
        try:
            while True:
                kind, body = wire.receive_frame(connection, 1 << 20, 5)
                answers.append((kind, bytes(body)))
                if len(answers) == len(frames):
                    return answers
        except wire.WireError:
            return answers


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (hello(magic=b"SOMEBODY"), None),
        (hello()[:20], None),
        (hello(extra=b"more"), None),
        (hello(version=2), b"version 2"),
        (hello(num_envs=0), b"num_envs 0"),
        (hello(num_envs=1 << 31), b"num_envs 2147483648"),
        (hello(limit=-7), b"max_episode_steps -7"),
        (hello(settings=b"{"), b"no JSON"),
        (hello(settings=b"[1]"), b"expected an object"),
        (hello(name=b"\xff\xfe"), b"UnicodeDecodeError"),
    ],
)
def test_a_server_survives_every_greeting(body, said):
    """A refusal names what is wrong; what is no greeting gets no answer; the next client is served."""
    with served() as server:
        answers = exchanged(server.address, (wire.HELLO, body))
        if said is None:
            assert answers in ([], [(wire.FAILED, answers[0][1])] if answers else [])
        else:
            assert answers[0][0] == wire.FAILED
            assert said in answers[0][1]
        native.make("socket/CartPole-v1", 1, address=server.address).close()


@pytest.mark.parametrize("raw", [b"GET / HTTP/1.1\r\n\r\n", struct.pack("<IHH", 2**32 - 1, 1, 0), b"\x00" * 8])
def test_a_server_takes_no_frame_that_is_larger_than_agreed(raw):
    """The size in a header alone allocates nothing: the connection ends."""
    with served() as server:
        host, port = server.address.split(":")
        with socket.create_connection((host, int(port)), 5) as connection:
            connection.sendall(raw)
            with contextlib.suppress(ConnectionResetError):  # as bytes that were not read make of a close
                assert connection.recv(1) == b""
        native.make("socket/CartPole-v1", 1, address=server.address).close()


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        ((wire.STEP, bytes(17)), b"before its first reset"),
        ((wire.RESET, bytes(3)), b"expected RESET or STEP of the agreed sizes"),
        ((wire.OBSERVED, b""), b"expected RESET or STEP"),
    ],
)
def test_a_server_names_requests_out_of_turn(frame, said):
    """Steps before a reset, and bodies of other sizes."""
    body = bytes(16) + b"\x01" if frame[0] == wire.STEP else frame[1]
    with served() as server:
        answers = exchanged(server.address, (wire.HELLO, hello()), (frame[0], body))
        assert answers[1][0] == wire.FAILED
        assert said in answers[1][1]


GOOD = {
    "name": "Fake",
    "observation": {"dtype": "float32", "shape": [2], "low": None, "high": None},
    "action": {"kind": "discrete", "n": 2},
}


def answering(described, sizes=(1, 1, 8, 8), kind=wire.WELCOME):
    """Return a socket that answers one HELLO."""
    listening = socket.create_server(("127.0.0.1", 0))

    def answer():
        connection, _ = listening.accept()
        with connection:
            wire.receive_frame(connection, 1 << 20, 5)
            text = described if isinstance(described, bytes) else json.dumps(described).encode()
            wire.send_frame(connection, kind, wire.WELCOME_HEAD.pack(*sizes), text)
            connection.recv(1)

    threading.Thread(target=answer, daemon=True).start()
    return listening


@pytest.mark.parametrize(
    ("described", "sizes", "said"),
    [
        (b"{", (1, 1, 8, 8), "describes its environment otherwise"),
        (b"[" * 100_000, (1, 1, 8, 8), "describes its environment otherwise"),
        ({**GOOD, "name": "Other"}, (1, 1, 8, 8), "gives 1 environments 'Other'"),
        (GOOD, (2, 1, 8, 8), "in version 2"),
        (GOOD, (1, 1, 12, 8), r"announces rows of \[12, 8\] bytes, and describes rows of \[8, 8\]"),
        ({**GOOD, "observation": {"dtype": "object", "shape": [2]}}, (1, 1, 8, 8), "a space of 'object'"),
        ({**GOOD, "observation": {"dtype": "float32", "shape": [1 << 40]}}, (1, 1, 8, 8), "is too large"),
        ({**GOOD, "observation": {"dtype": "float32", "shape": [-2]}}, (1, 1, 8, 8), "a space of 'float32'"),
        ({**GOOD, "action": {"kind": "discrete", "n": 0}}, (1, 1, 8, 8), "n is 0"),
        ({**GOOD, "max_episode_steps": "many"}, (1, 1, 8, 8), "max_episode_steps is 'many'"),
    ],
)
def test_a_client_refuses_descriptions_that_are_none(described, sizes, said):
    """With the reason; nothing is allocated by sizes that a server claims."""
    with answering(described, sizes) as listening, pytest.raises(ValueError, match=said):
        native.make("socket/Fake", 1, address=f"127.0.0.1:{listening.getsockname()[1]}")


def test_a_client_takes_no_other_answer_for_a_greeting():
    """A server of something else is given up after the time for connecting."""
    with answering(GOOD, kind=wire.STEPPED) as listening, pytest.raises(ValueError, match="no environment answers"):
        native.make(
            "socket/Fake", 1, address=f"127.0.0.1:{listening.getsockname()[1]}", reconnect_seconds=0.1, reply_seconds=1
        )


def test_a_client_ends_its_environments():
    """They are closed with the connection."""
    closed = threading.Event()

    class Closing(Drifting):
        def close(self):
            closed.set()

    server = EnvironmentServer(Closing, "Closing", "127.0.0.1:0")
    thread = threading.Thread(target=server.serve)
    thread.start()
    pool = native.make("socket/Closing", 1, address=server.address)
    pool.reset(seed=np.random.default_rng(0).integers(9).item())
    pool.close()
    assert closed.wait(10)
    server.close()
    thread.join()

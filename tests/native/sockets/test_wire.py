"""Bytes that are none of the protocol: nothing is allocated for them, and both ends go on or say why not."""

import contextlib
import json
import socket
import struct
import threading
import tracemalloc

import numpy as np
import pytest

from penstock import native
from penstock.native.sockets import wire
from penstock.native.sockets.rows import Rows
from penstock.native.sockets.server import EnvironmentServer

from .test_socket_pool import Drifting, served

PATIENCE_SECONDS = 150


def hello(magic=wire.MAGIC, version=2, num_envs=1, limit=0, name=b"CartPole-v1", settings=b"{}", extra=b"", wishes=0):
    head = wire.HELLO_HEAD.pack(magic, version, wishes, num_envs, limit, 0, len(name), len(settings))
    return head + name + settings + extra


def exchanged(address, *frames):
    """Send frames of (kind, body); returns the kinds and bodies of the answers, up to the end of the connection."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), PATIENCE_SECONDS) as connection:
        answers = []
        for kind, body in frames:
            wire.send_frame(connection, kind, body)
        try:
            while True:
                kind, body = wire.receive_frame(connection, 1 << 20, PATIENCE_SECONDS)
                answers.append((kind, bytes(body)))
                if len(answers) == len(frames):
                    return answers
        except wire.WireError:
            return answers


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (hello(magic=b"SOMEBODY"), None),
        (hello(version=1)[:30], None),
        (hello()[:20], None),
        (hello(extra=b"more"), None),
        (hello(version=1, extra=b"more"), None),
        (hello(version=1, wishes=1), b"the wishes 1"),
        (hello(version=3), b"version 3 of the protocol, the server 1 and 2: update the older side"),
        (hello(wishes=2), b"the wishes 2, the server knows 1"),
        (hello(num_envs=0), b"num_envs 0"),
        (hello(num_envs=1 << 31), b"num_envs 2147483648"),
        (hello(limit=-7), b"max_episode_steps -7"),
        (hello(settings=b"{"), b"no JSON"),
        (hello(settings=b"[1]"), b"expected an object"),
        (hello(settings=b"[" * 100_000), b"no JSON"),
        (hello(name=b"\xff\xfe"), b"no UTF-8"),
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
        with socket.create_connection((host, int(port)), PATIENCE_SECONDS) as connection:
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


BOX = {"kind": "box", "dtype": "float32", "shape": [2], "low": None, "high": None}
CHOICE = {"kind": "discrete", "n": 2}
GOOD = {"name": "Fake", "observation": BOX, "action": CHOICE}


def nested(levels, leaf=BOX):
    """Return a description that is nested so deep, as JSON: Python's own writer gives up before."""
    return '{"kind": "tuple", "parts": [' * levels + json.dumps(leaf) + "]}" * levels


def with_observation(text):
    return json.dumps({**GOOD, "observation": 0}).replace('"observation": 0', f'"observation": {text}').encode()


def answering(described, sizes=(2, 1, 8, 8), kind=wire.WELCOME, then=()):
    """Return a socket that answers one HELLO, and then each frame with one of these kinds and bodies.

    It accepts no second connection.
    """
    listening = socket.create_server(("127.0.0.1", 0))

    def answer():
        connection, _ = listening.accept()
        listening.close()
        with connection:
            wire.receive_frame(connection, 1 << 20, PATIENCE_SECONDS)
            text = described if isinstance(described, bytes) else json.dumps(described).encode()
            wire.send_frame(connection, kind, wire.WELCOME_HEAD.pack(*sizes), text)
            for answer in then:
                wire.receive_frame(connection, 1 << 20, PATIENCE_SECONDS)
                wire.send_frame(connection, *answer)
            connection.recv(1)

    threading.Thread(target=answer, daemon=True).start()
    return listening


SIZES = (2, 1, 8, 8)


@pytest.mark.parametrize(
    ("described", "sizes", "said"),
    [
        (b"{", SIZES, "describes its environment otherwise"),
        (b"", SIZES, "describes its environment otherwise"),
        (b"[" * 100_000, SIZES, "describes its environment otherwise"),
        ({**GOOD, "name": "Other"}, SIZES, "gives 1 environments 'Other'"),
        (GOOD, (3, 1, 8, 8), "in version 3"),
        (GOOD, (1, 1, 8, 8), "in version 1"),
        (GOOD, (2, 1, 12, 8), r"announces rows of \[12, 8\] bytes, and describes rows of \[8, 8\]"),
        ({**GOOD, "observation": {**BOX, "dtype": "object"}}, SIZES, "a space of 'object'"),
        ({**GOOD, "observation": {**BOX, "shape": [1 << 40]}}, SIZES, "is too large"),
        ({**GOOD, "observation": {**BOX, "shape": [1 << 20, 1 << 20, 1 << 40]}}, SIZES, "is too large"),
        ({**GOOD, "observation": {**BOX, "shape": [1] * 17}}, SIZES, "with the shape"),
        ({**GOOD, "observation": {**BOX, "shape": [-2]}}, SIZES, "a space of 'float32'"),
        (
            {**GOOD, "observation": {**BOX, "low": [0, 0, 0]}},
            SIZES,
            "low has 3 bounds, expected float32 numbers, one or 2",
        ),
        ({**GOOD, "observation": {**BOX, "low": "0"}}, SIZES, "low has 1 bounds"),
        ({**GOOD, "observation": {**BOX, "low": 1, "high": 0}}, SIZES, "a lower bound is above"),
        (json.dumps({**GOOD, "observation": {**BOX, "low": float("nan")}}).encode(), SIZES, "NaN is no JSON"),
        (
            {**GOOD, "observation": {**BOX, "dtype": "uint8", "high": 0.5}},
            (2, 1, 2, 8),
            "high has 1 bounds, expected uint8",
        ),
        ({**GOOD, "observation": {**BOX, "dtype": "uint8", "high": 300}}, (2, 1, 2, 8), "OverflowError"),
        ({**GOOD, "observation": {"kind": "text"}}, SIZES, "expected a space of the protocol"),
        ({**GOOD, "observation": {"kind": "dict", "parts": []}}, SIZES, "expected a list of its parts"),
        ({**GOOD, "observation": {"kind": "dict", "parts": [["a", BOX], ["a", BOX]]}}, SIZES, "expected a new key"),
        ({**GOOD, "observation": {"kind": "dict", "parts": [[1, BOX]]}}, SIZES, "expected a new key"),
        ({**GOOD, "observation": {"kind": "tuple", "parts": [BOX, 7]}}, SIZES, "its part '1' is 7"),
        ({**GOOD, "observation": {"kind": "tuple", "parts": [CHOICE] * 5000}}, SIZES, "4096 parts"),
        (with_observation(nested(33)), SIZES, "nested deeper than 32 levels"),
        (with_observation(nested(1000)), SIZES, "nested deeper than 32 levels|RecursionError"),
        (with_observation(nested(20_000)), SIZES, "nested deeper than 32 levels|RecursionError"),
        ({**GOOD, "action": {**CHOICE, "n": 0}}, SIZES, "n is 0"),
        ({**GOOD, "action": {**CHOICE, "n": 1 << 31}}, SIZES, "n is 2147483648"),
        ({**GOOD, "action": {**CHOICE, "start": 1.5}}, SIZES, "start is 1.5"),
        ({**GOOD, "action": {**CHOICE, "start": (1 << 63) - 1}}, SIZES, "start is 9223372036854775807"),
        ({**GOOD, "action": {"kind": "multi_discrete", "shape": [2], "nvec": [2]}}, SIZES, "expected 2 numbers"),
        ({**GOOD, "action": {"kind": "multi_binary", "shape": []}}, SIZES, "a space of 'int8'"),
        ({**GOOD, "action_mask": True}, SIZES, "gives action_mask True, expected False"),
        ({**GOOD, "max_episode_steps": "many"}, SIZES, "max_episode_steps is 'many'"),
        ({**GOOD, "reward_threshold": "high"}, SIZES, "reward_threshold is 'high'"),
    ],
)
def test_a_client_refuses_descriptions_that_are_none(described, sizes, said):
    """With the reason; nothing is allocated by sizes that a server claims."""
    with answering(described, sizes) as listening, pytest.raises(ValueError, match=said):
        native.make("socket/Fake", 1, address=f"127.0.0.1:{listening.getsockname()[1]}")


def test_zeros_are_made_for_numbers_that_were_sent():
    """A few bytes may claim half a billion of them, which would be lists of gigabytes."""
    described = {"kind": "multi_discrete", "shape": [1 << 29], "nvec": [2]}
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="expected 536870912 numbers"):
            Rows(described)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_client_makes_no_array_of_more_choices_than_a_frame_has():
    """An index of 8 bytes may stand for billions of numbers."""
    described = {**GOOD, "observation": {"kind": "discrete", "n": (1 << 31) - 1}}
    with answering(described) as listening, pytest.raises(ValueError, match="numbers are too many for one array"):
        native.make("socket/Fake", 1, address=f"127.0.0.1:{listening.getsockname()[1]}", one_array=True)


@pytest.mark.parametrize("size", [0, 5, 15, 17])
def test_a_greeting_that_is_cut_short_is_none(size):
    """Less than the head of WELCOME, in it, and behind it."""
    body = wire.WELCOME_HEAD.pack(*SIZES) + json.dumps(GOOD).encode()
    listening = socket.create_server(("127.0.0.1", 0))

    def answer():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with connection:
                    wire.receive_frame(connection, 1 << 20, PATIENCE_SECONDS)
                    wire.send_frame(connection, wire.WELCOME, body[:size])
                    connection.recv(1)

    threading.Thread(target=answer, daemon=True).start()
    said = "describes its environment otherwise" if size > 15 else "the answer to HELLO is too short"
    with pytest.raises(ValueError, match=said):
        native.make("socket/Fake", 1, address=f"127.0.0.1:{listening.getsockname()[1]}", reconnect_seconds=0.1)
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()


def test_a_client_takes_no_other_answer_for_a_greeting():
    """A server of something else is given up after the time for connecting."""
    with answering(GOOD, kind=wire.STEPPED) as listening, pytest.raises(ValueError, match="no environment answers"):
        native.make("socket/Fake", 1, address=f"127.0.0.1:{listening.getsockname()[1]}", reconnect_seconds=0.1)


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
    assert closed.wait(150)
    server.close()
    thread.join()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((wire.OBSERVED, bytes(15)), "sent 15 bytes, expected 16"),
        ((wire.OBSERVED, bytes(8) + (2).to_bytes(8, "little")), r"'b' of environment 0 is 2, expected 0 to 1"),
        ((wire.STEPPED, bytes(16)), "were lost"),
    ],
)
def test_a_client_takes_no_observation_of_another_size_or_value(answer, said):
    """A row that is cut short, a choice that there is not, and another frame than was asked for."""
    described = {**GOOD, "observation": {"kind": "dict", "parts": [["a", BOX], ["b", CHOICE]]}}
    with answering(described, (2, 1, 16, 8), then=[answer]) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        pool = native.make("socket/Fake", 1, address=address, reconnect_seconds=0.1)
        with pytest.raises(RuntimeError, match=said if said != "were lost" else "no environment answers|were lost"):
            pool.reset(seed=0)
        pool.close()

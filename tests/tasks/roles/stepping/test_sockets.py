"""Links between processes: messages arrive, strangers are refused, and errors name a lost or silent peer."""

from __future__ import annotations

import json
import selectors
import signal
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from penstock.storage.errors import GangError, MemberLostError
from penstock.tasks.roles.stepping.sockets import Link, LinkAddress, Listener, PendingConnection, connect

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_SECONDS = 150.0

ECHO = """
import json, select, sys
from penstock.tasks.roles.stepping.sockets import Listener
listener = Listener("127.0.0.1", "env-3")
print(json.dumps(listener.address.to_json()), flush=True)
while True:
    select.select([listener], [], [])
    connection = listener.accept()
    greeted = None
    try:
        while greeted is None:
            select.select([connection], [], [])
            greeted = connection.read("tester")
    except PermissionError:
        continue
    link, channel = greeted
    size = memoryview(bytearray(8))
    while channel:
        channel -= 1
        message = memoryview(bytearray(100_000))
        link.receive_into(message)
        link.send_sized(message.tobytes()[::-1])
    sys.stdin.readline()
    link.close()
"""


KNOCK = """
import sys
import threading
from penstock.tasks.roles.stepping.sockets import LinkAddress, connect
connect(LinkAddress("env-3", sys.argv[1], int(sys.argv[2]), sys.argv[3]), 7).close()
"""


@pytest.fixture
def echo() -> Iterator[tuple[subprocess.Popen[str], LinkAddress]]:
    """A process that sends back, reversed, as many messages of 100,000 bytes as the channel says, and then idles."""
    process = subprocess.Popen([sys.executable, "-c", ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        yield process, LinkAddress.from_json(json.loads(process.stdout.readline()))
        process.kill()


def test_messages_arrive(echo):
    """Messages of any length, whole and in order, and both ends' counts are those of the messages."""
    _, address = echo
    link = connect(address, 3, PATIENCE_SECONDS)
    hello = link.sent_bytes
    for number in range(3):
        message = bytes([number, 1, 2, 3]) * 25_000
        link.send(message)
        assert link.receive_sized() == message[::-1]
    assert link.sent_bytes - hello == 300_000
    assert link.received_bytes == 3 * 100_008 + 1
    link.close()


def test_a_wrong_token_is_refused(echo):
    """A connection with another token is refused, and one with the right token is served after it."""
    _, address = echo
    wrong = LinkAddress("env-3", address.host, address.port, "00" * 16)
    with pytest.raises(MemberLostError, match=rf"env-3 at 127.0.0.1:{address.port} .* another token"):
        connect(wrong, 1, PATIENCE_SECONDS)
    connect(address, 0, PATIENCE_SECONDS).close()


def test_a_dead_peer_is_named_at_once(echo):
    """The end of its process ends the wait, not a timeout; and nobody can be reached there any more."""
    process, address = echo
    link = connect(address, 1, PATIENCE_SECONDS)
    process.send_signal(signal.SIGKILL)
    with pytest.raises(MemberLostError, match=r"link to env-3 at 127.0.0.1:\d+ broke"):
        link.receive_sized()
    process.wait(PATIENCE_SECONDS)
    with pytest.raises(MemberLostError, match=r"no link to env-3 at 127.0.0.1:\d+: "):
        connect(address, 1, PATIENCE_SECONDS)
    link.close()


def test_a_silent_peer_is_named_after_the_timeout(echo):
    """A process that lives and does nothing blocks nobody for ever, neither who reads from it nor who writes."""
    process, address = echo
    link = connect(address, 1, 0.2, lambda: None)
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(MemberLostError, match=r"env-3 .* sent 0 of 8 bytes within 0.2 s"):
        link.receive_sized()
    with pytest.raises(MemberLostError, match=r"env-3 .* took nothing within 0.2 s"):
        link.send(bytes(1 << 26))
    link.close()


def test_a_busy_listener_is_waited_for(echo):
    """One that replays a stage's steps for another tile answers when it has; who must leave meanwhile does."""
    process, address = echo
    process.send_signal(signal.SIGSTOP)
    calls: list[int] = []

    def check() -> None:
        calls.append(len(calls))
        if len(calls) == 3:
            process.send_signal(signal.SIGCONT)

    link = connect(address, 1, 0.2, check)
    assert len(calls) >= 3
    process.send_signal(signal.SIGSTOP)

    def leave() -> None:
        raise GangError("act-0 leaves stage 0")

    with pytest.raises(GangError, match="act-0 leaves"):
        connect(address, 1, 0.2, leave)
    link.close()  # not before: the process ends when its link does


def test_an_excused_peer_is_waited_for(echo):
    """Each time-out asks again: a peer that is known to be busy gets as long once more, until it answers."""
    process, address = echo
    link = connect(address, 1, 0.2, lambda: None)
    message = bytes([1, 2, 3, 4]) * 25_000
    process.send_signal(signal.SIGSTOP)
    asked: list[int] = []

    def is_excused() -> bool:
        asked.append(len(asked))
        if len(asked) == 3:
            process.send_signal(signal.SIGCONT)
        return True

    link.is_excused = is_excused
    writer = threading.Thread(target=link.send, args=(message,))
    writer.start()
    assert link.receive_sized() == message[::-1]
    writer.join()
    assert len(asked) >= 3
    link.close()


def test_a_silent_connection_blocks_no_other():
    """While one connection is silent and one shows half a token, another is greeted."""
    listener = Listener("127.0.0.1", "env-3")
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    strangers = [socket.create_connection((listener.address.host, listener.address.port)) for _ in range(2)]
    strangers[1].send(bytes.fromhex(listener.address.token)[:7])
    connections: list[PendingConnection] = []
    while len(connections) < 2:
        selector.select(PATIENCE_SECONDS)
        connection = listener.accept()
        if connection is not None:
            connections.append(connection)
    assert [connection.read("stranger") for connection in connections] == [None, None]

    address = listener.address
    client = subprocess.Popen([sys.executable, "-c", KNOCK, address.host, str(address.port), address.token])
    with client:
        selector.select(PATIENCE_SECONDS)
        friend = listener.accept()
        assert friend is not None
        greeted: tuple[Link, int] | None = None
        while greeted is None:
            greeted = friend.read("friend")
        assert greeted[1] == 7
        assert client.wait(PATIENCE_SECONDS) == 0
    greeted[0].close()
    strangers[0].close()
    with pytest.raises(PermissionError, match="without the token"):
        connections[0].read("stranger")
    connections[1].close()
    strangers[1].close()
    selector.close()
    listener.close()

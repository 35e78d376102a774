"""Links between learners and a parameter server: every wait ends with its gang, or with the peer."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch

from penstock.storage.errors import GangError, MemberLostError
from penstock.tasks.roles.reducing.gradient_links import (
    GRADIENTS,
    GradientListener,
    LearnerLinks,
    TensorLink,
    connect_to_server,
)
from penstock.tasks.roles.stepping.sockets import LinkAddress, connect

from .test_reduction import HOST, PATIENCE_SECONDS, Present, assignment

if TYPE_CHECKING:
    from collections.abc import Iterator

LEARNERS = 2


def stay() -> None:
    """Nobody is told to leave."""


def linked(address: LinkAddress, rank: int) -> TensorLink:
    return TensorLink(connect(address, rank, PATIENCE_SECONDS, stay), stay)


@contextmanager
def ends(seconds: float = PATIENCE_SECONDS) -> Iterator[tuple[LearnerLinks, list[TensorLink]]]:
    """Yield a server's links, whose waits last so long once all have connected, and those of its learners."""
    listener = GradientListener(HOST, "server-0", LEARNERS, PATIENCE_SECONDS)
    with ThreadPoolExecutor(LEARNERS) as threads, ExitStack() as stack:
        stack.callback(listener.close)
        connecting = [threads.submit(linked, listener.address, rank) for rank in range(LEARNERS)]
        server = stack.enter_context(listener.accept(stay))
        server._patience_seconds = seconds
        yield server, [stack.enter_context(future.result(PATIENCE_SECONDS)) for future in connecting]


VALUES = [
    torch.arange(12, dtype=torch.float64).reshape(3, 4).t(),
    torch.tensor(7),
    torch.zeros(0, 3),
    torch.tensor([1.5, -0.0]).to(torch.bfloat16),
    torch.tensor([True, False]),
    torch.ones(300_000),
]


def test_messages_arrive_as_they_were_sent():
    """Every type and layout, empty ones too, from each learner and back, larger than the system's buffers."""
    with ends() as (server, learners), ThreadPoolExecutor(1) as thread:
        for number in (1, 0):
            sending = thread.submit(learners[number].send, VALUES)
            assert server.wait_any(range(LEARNERS)) == [number]
            found = server.receive(number, VALUES)
            sending.result(PATIENCE_SECONDS)
            replying = thread.submit(server.send, number, found)
            back = learners[number].receive(VALUES, PATIENCE_SECONDS)
            replying.result(PATIENCE_SECONDS)
            for value, there, again in zip(VALUES, found, back, strict=True):
                assert there.dtype == again.dtype == value.dtype
                assert torch.equal(there, value)
                assert torch.equal(again, value)


def test_a_server_that_leaves_while_it_waits_is_felt_by_all():
    """It waits for one learner, and the other for its reply: both learners are told at once, not by a time-out."""
    told, listener = Present(0), GradientListener(HOST, "server-0", LEARNERS, PATIENCE_SECONDS)

    def serve() -> None:
        with listener.accept(told.check) as server:
            told.reason = "told so"
            server.receive(1, VALUES)

    def learn(rank: int) -> None:
        with linked(listener.address, rank) as link:
            link.receive(VALUES, PATIENCE_SECONDS)

    with ThreadPoolExecutor(LEARNERS) as threads:
        learners = [threads.submit(learn, rank) for rank in range(LEARNERS)]
        with pytest.raises(GangError, match="told so"):
            serve()
        for learner in learners:
            with pytest.raises(MemberLostError, match=r"link to server-0 at .* broke"):
                learner.result(PATIENCE_SECONDS / 2)
    listener.close()


def test_a_learner_may_be_told_to_leave():
    """While it waits for a reply that takes long: at once."""
    told = Present(0, "told so")
    with ends() as (_, learners):
        link = TensorLink(learners[0]._link, told.check)
        with pytest.raises(GangError, match="told so"):
            link.receive(VALUES, PATIENCE_SECONDS)


def test_a_silent_peer_is_named():
    """After its time: with the setting to raise, whether one or any is waited for, or some have not connected."""
    with ends(0.3) as (server, learners):
        with pytest.raises(MemberLostError, match=r"learner 1 sent nothing within 0.3 s.*cluster\.gang_seconds"):
            server.receive(1, VALUES)
        with pytest.raises(MemberLostError, match="learner 0 and learner 1 sent nothing"):
            server.wait_any(range(LEARNERS))
        with pytest.raises(MemberLostError, match=r"server-0 at .* sent nothing within 0.2 s"):
            learners[0].receive(VALUES, 0.2)
    listener = GradientListener(HOST, "server-0", LEARNERS, 0.3)
    with pytest.raises(MemberLostError, match="a learner sent nothing"):
        listener.accept(stay)
    listener.close()


def test_strangers_are_refused_and_learners_served():
    """A connection without the gang's token, or one that says nothing, keeps no learner out."""
    listener = GradientListener(HOST, "server-0", LEARNERS, PATIENCE_SECONDS)
    forged = LinkAddress("server-0", HOST, listener.address.port, "00" * 16)
    with (
        socket.create_connection((HOST, listener.address.port)) as silent,
        ThreadPoolExecutor(LEARNERS + 1) as threads,
    ):
        stranger = threads.submit(linked, forged, 0)
        learners = [threads.submit(linked, listener.address, rank) for rank in range(LEARNERS)]
        with listener.accept(stay) as server:
            assert len(server) == LEARNERS
            with pytest.raises(MemberLostError, match="expects another token"):
                stranger.result(PATIENCE_SECONDS)
            assert silent.recv(1) == b""
            for future in learners:
                future.result(PATIENCE_SECONDS).close()
    listener.close()


class Advertised:
    """The part of a membership by which a learner finds its server."""

    def __init__(self, address: LinkAddress) -> None:
        self.address = address

    def advertised(self, member: str, name: str) -> Any:
        assert (member, name) == ("server-0", GRADIENTS)
        return self.address.to_json()

    def check(self) -> None:
        stay()


def test_a_gradient_may_wait_as_long_as_a_reply():
    """A server that follows a stored order takes it late, and it is more than the system holds for it meanwhile."""
    gradient, gang_seconds = torch.ones(8_000_000), 0.2
    listener = GradientListener(HOST, "server-0", 1, PATIENCE_SECONDS)
    members: Any = Advertised(listener.address)

    def learn() -> None:
        with connect_to_server("server-0", assignment(gang_seconds), members, PATIENCE_SECONDS) as link:
            link.send([gradient])

    with ThreadPoolExecutor(1) as threads:
        learning = threads.submit(learn)
        with listener.accept(stay) as server:
            time.sleep(5 * gang_seconds)
            (found,) = server.receive(0, [gradient])
        learning.result(PATIENCE_SECONDS)
    listener.close()
    assert torch.equal(found, gradient)

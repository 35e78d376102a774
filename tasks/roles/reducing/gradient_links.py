"""The links between a parameter server and learners that take steps independently: a message is a list of tensors.

A process group is no use here. Its receive can't be interrupted, and keeps the group's connections open until it ends:
a server that left its gang while it waited for one learner left the others waiting, too, and their workers busy.
"""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

import torch

from penstock.storage.errors import MemberLostError
from penstock.tasks.roles.stepping.sockets import Link, LinkAddress, Listener, connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from penstock.tasks.roles.stepping.sockets import PendingConnection
    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.membership import Membership

GRADIENTS = "gradients"
"""Name under which a parameter server advertises the address for its learners' gradients."""

_CHECK_SECONDS = 0.25


class _HasFile(Protocol):
    def fileno(self) -> int: ...


_End = TypeVar("_End", bound=_HasFile)


class TensorLink:
    """A link whose messages are tensors of shapes and types that both ends know. A context manager that closes it.

    Args:
        link: open. For one thread at a time.
        check: called while a message is waited for; raises if this member must leave.
    """

    def __init__(self, link: Link, check: Callable[[], None]) -> None:
        self._link, self._check = link, check

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Return the file descriptor, for a selector."""
        return self._link.fileno()

    def send(self, tensors: Iterable[Tensor]) -> None:
        """Send a message; blocks until the system has taken it.

        Raises:
            MemberLostError: the peer is gone, or takes nothing.
        """
        for tensor in tensors:
            if tensor.numel():
                self._link.send(_bytes_of(tensor.detach().cpu()))

    def receive(self, like: Sequence[Tensor], patience_seconds: float) -> list[Tensor]:
        """Wait for a message and return its tensors, on the devices of `like`.

        Args:
            like: have the shapes and types of what the peer sends.
            patience_seconds: how long it may take until the message begins.

        Raises:
            MemberLostError: the peer is gone, or sent nothing in time.
            GangError: as `Membership.check`.
        """
        self._link.wait(within(patience_seconds, self._check, self._link.peer))
        found = []
        for value in like:
            received = torch.empty(value.shape, dtype=value.dtype)
            if received.numel():
                self._link.receive_into(_bytes_of(received))
            found.append(received.to(value.device))
        return found

    def close(self) -> None:
        """Close the link, which the peer notices at once."""
        self._link.close()


class LearnerLinks:
    """The server's links, by the number of the learner. A context manager, whose end closes them.

    Args:
        links: of all learners.
        check: called while a message is waited for; raises if this member must leave.
        patience_seconds: how long a learner may take until it sends something.
    """

    def __init__(self, links: Sequence[TensorLink], check: Callable[[], None], patience_seconds: float) -> None:
        self._links, self._check, self._patience_seconds = links, check, patience_seconds

    def __len__(self) -> int:
        return len(self._links)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for link in self._links:
            link.close()

    def wait_any(self, learners: Iterable[int]) -> list[int]:
        """Wait until one of these learners sends something, or is lost; return all that did, in the order of numbers.

        Raises:
            MemberLostError: none did in time.
            GangError: as `Membership.check`.
        """
        ends = {learner: self._links[learner] for learner in sorted(learners)}
        check = within(self._patience_seconds, self._check, " and ".join(f"learner {learner}" for learner in ends))
        while not (found := _readable(ends.values(), _CHECK_SECONDS)):
            check()
        return [learner for learner, link in ends.items() if link in found]

    def receive(self, learner: int, like: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors that a learner sends; as `TensorLink.receive`."""
        return self._links[learner].receive(like, self._patience_seconds)

    def send(self, learner: int, tensors: Iterable[Tensor]) -> None:
        """Send tensors to a learner; as `TensorLink.send`."""
        self._links[learner].send(tensors)


class GradientListener:
    """Listens for the learners of one gang. `close` ends that.

    Args:
        host: an address of this host that learners reach.
        member: the server's name.
        learners: their number.
        patience_seconds: for all to connect, for one message, and until one begins.
    """

    def __init__(self, host: str, member: str, learners: int, patience_seconds: float) -> None:
        self._listener = Listener(host, member)
        self._learners, self._patience_seconds = learners, patience_seconds
        self.address = self._listener.address

    def accept(self, check: Callable[[], None]) -> LearnerLinks:
        """Wait until all learners have connected.

        Args:
            check: called meanwhile, and by the links' waits; raises if this member must leave.

        Raises:
            MemberLostError: some did not in time.
        """
        links: dict[int, TensorLink] = {}
        pending: list[PendingConnection] = []
        missing = within(self._patience_seconds, check, "a learner")
        try:
            while len(links) < self._learners:
                missing()
                ends: list[Listener | PendingConnection] = [self._listener, *pending]
                for end in _readable(ends, _CHECK_SECONDS):
                    if isinstance(end, Listener):
                        pending.extend(filter(None, [end.accept()]))
                    elif (greeted := self._greet(end)) is not None:
                        pending.remove(end)
                        links |= {number: TensorLink(link, check) for number, link in greeted.items()}
        except BaseException:
            for link in links.values():
                link.close()
            raise
        finally:
            for connection in pending:
                connection.close()
        return LearnerLinks([links[number] for number in range(self._learners)], check, self._patience_seconds)

    def _greet(self, connection: PendingConnection) -> dict[int, Link] | None:
        """Return the link by its learner's number, nothing if it was refused, None before the greeting is whole."""
        try:
            greeting = connection.read("a learner", self._patience_seconds)
        except PermissionError:
            return {}
        if greeting is None:
            return None
        link, number = greeting
        link.peer = f"learner {number}"
        return {number: link}

    def close(self) -> None:
        """Accept no more links."""
        self._listener.close()


def connect_to_server(
    server: str, assignment: Assignment, membership: Membership, patience_seconds: float
) -> TensorLink:
    """Return a learner's link to the parameter server.

    Args:
        server: the server's name.
        assignment: of the learner.
        membership: likewise.
        patience_seconds: how long a message may take to be sent: as long as a reply, since a server that follows a
            stored order takes minibatches of others first.

    Raises:
        MemberLostError: the server is gone.
        GangError: as `Membership.check`.
    """
    address = LinkAddress.from_json(membership.advertised(server, GRADIENTS))
    link = connect(address, assignment.replica, patience_seconds, membership.check)
    return TensorLink(link, membership.check)


def _readable(ends: Iterable[_End], seconds: float) -> list[_End]:
    """Wait, at most so long, until something can be read, or was closed by its peer; return all such ends."""
    by_file = {end.fileno(): end for end in ends}
    ready = select.poll()
    for file in by_file:
        ready.register(file, select.POLLIN)
    return [by_file[file] for file, _ in ready.poll(seconds * 1000)]


def within(seconds: float, check: Callable[[], None], peer: str) -> Callable[[], None]:
    """Return a check that also raises `MemberLostError` once a peer had so many seconds."""
    deadline = time.monotonic() + seconds

    def check_both() -> None:
        check()
        if time.monotonic() > deadline:
            raise MemberLostError(
                f"{peer} sent nothing within {seconds:g} s: it hangs, or needs longer for a minibatch; if no process "
                f"died, raise cluster.gang_seconds"
            )

    return check_both


def _bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor in the host's memory: those of a copy if it is not contiguous."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data

"""The process group of one gang: sums and copies of tensors between members that work in step.

A group belongs to one attempt and its gang. Nothing is global to the process, so a member that begins again makes a
new one, and nobody can be taken for a member of the group before. Whoever loses a peer learns it from the connection at
once; the timeout is for peers that hang.
"""

from __future__ import annotations

import socket
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from torch.distributed import (  # type: ignore[attr-defined]
    BroadcastOptions,
    PrefixStore,
    ProcessGroupGloo,
    ReduceOptions,
    TCPStore,
)

from storage.errors import MemberLostError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from tasks.assignment import Assignment
    from tasks.membership import Membership

OFFER = "meeting_port"
_CONNECT_SECONDS = 5.0
_MESH_SECONDS = 10.0
"""For connections between members that are all here. Until then the whole process stands still, and could not say in
time that it is here again, if one of them was lost just then."""
_LOOK_SECONDS = 0.02


class MeetingPoint:
    """Where members of a group find each other: a key-value store that the first of them serves. A context manager."""

    def __init__(self, host: str, timeout_seconds: float) -> None:
        """Args: an address of this host that the others reach, and how long they may take."""
        listening = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.port = int(listening.getsockname()[1])
        self.store = TCPStore(
            host,
            self.port,
            is_master=True,
            timeout=timedelta(seconds=timeout_seconds),
            wait_for_workers=False,
            # Bound here, because left to itself the store listens on all of the host's addresses.
            master_listen_fd=listening.detach(),
        )


class Group:
    """Members that add up and copy tensors together, all in the same order. A context manager; not thread-safe.

    Tensors may be on any device; they travel through the host's memory.
    """

    def __init__(
        self,
        name: str,
        rank: int,
        names: list[str],
        membership: Membership,
        assignment: Assignment,
        meeting: MeetingPoint | None,
    ) -> None:
        """Meet the others; blocks.

        Args:
            name: of the group, the same for all.
            rank: of this member.
            names: of all members, by rank; the first one serves the meeting point.
            membership: of this member, through which it leaves when told to.
            assignment: how long to wait.
            meeting: the meeting point, for the member that serves it.

        Raises:
            MemberLostError: somebody did not come.
        """
        self._name = name
        self._names = names
        self._rank = rank
        self._group: Any = None
        host, port = membership.host_of(names[0]), membership.offered(names[0], OFFER)
        deadline = time.monotonic() + assignment.gang_seconds
        own_host = membership.host_of(names[rank])
        store = meeting.store if meeting else self._connect(host, port, membership, deadline)
        try:
            store.set(f"{name}/here/{rank}", "1")
            # Here and not inside of the group's constructor, which can't be told to leave.
            here = [f"{name}/here/{other}" for other in range(len(names))]
            while not store.check(here):
                membership.check()
                if time.monotonic() > deadline:
                    raise self._lost("not all came in time")
                time.sleep(_LOOK_SECONDS)
            options: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # noqa: SLF001  (to choose the address)
            options._devices = [ProcessGroupGloo.create_device(hostname=own_host)]  # noqa: SLF001
            options._timeout = timedelta(seconds=min(_MESH_SECONDS, assignment.gang_seconds))  # noqa: SLF001
            self._group = ProcessGroupGloo(PrefixStore(name, store), rank, len(names), options)
            self._group._set_default_timeout(timedelta(seconds=assignment.gang_seconds))  # noqa: SLF001
        except RuntimeError as error:
            raise self._lost(str(error)) from error

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self._names)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Closes the connections: who waits for this member learns that it is gone.
        self._group.abort()
        self._group = None

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of all members' tensors, the same bytes for each of them; `tensor` may be overwritten."""
        return self._do(tensor, lambda own: self._group.allreduce([own]))

    def sum_at(self, rank: int, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of all members' tensors, for one of them; the others get what they can't use."""
        options = ReduceOptions()
        options.rootRank = rank
        return self._do(tensor, lambda own: self._group.reduce([own], options))

    def copy_from(self, rank: int, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor of one member, for all; the others' may be overwritten."""
        options = BroadcastOptions()
        options.rootRank = rank
        return self._do(tensor, lambda own: self._group.broadcast([own], options))

    def _do(self, tensor: torch.Tensor, begin: Callable[[torch.Tensor], Any]) -> torch.Tensor:
        own = tensor.detach().cpu().contiguous()
        try:
            begin(own).wait()
        except RuntimeError as error:
            raise self._lost(str(error)) from error
        return own.to(tensor.device)

    def _lost(self, reason: str) -> MemberLostError:
        others = [name for rank, name in enumerate(self._names) if rank != self._rank]
        said = reason.splitlines()[0].split(". ")[0]
        return MemberLostError(
            f"{self._names[self._rank]} lost {' or '.join(others)} while they worked in step ({said}); if nobody died, "
            f"raise cluster.gang_seconds"
        )

    def _connect(self, host: str, port: int, membership: Membership, deadline: float) -> TCPStore:
        while True:
            membership.check()
            try:
                return TCPStore(
                    host,
                    port,
                    is_master=False,
                    timeout=timedelta(seconds=_CONNECT_SECONDS),
                    wait_for_workers=False,
                )
            except RuntimeError as error:
                if time.monotonic() > deadline:
                    raise self._lost(str(error)) from error

"""The process group of one gang: sums and copies of tensors between members that synchronise within a round.

A group belongs to one attempt and its gang. Nothing is global to the process, so a restarted member makes a new one,
and is never mistaken for a member of the group before. A closed connection shows a lost peer immediately; the time-out
is for peers that hang.
"""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import distributed
from torch.distributed import (  # type: ignore[attr-defined]
    BroadcastOptions,
    PrefixStore,
    ProcessGroupGloo,
    ReduceOptions,
    TCPStore,
)

from penstock.storage.errors import MemberLostError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.runtime.membership import Membership
    from penstock.tasks.setup.distribution.gpus import Backend

RENDEZVOUS_PORT = "rendezvous_port"
_CONNECT_SECONDS = 5.0
_MESH_SECONDS = 10.0
"""Limit for connecting members that are all present. The whole process is blocked meanwhile: if one of them was just
lost, a longer limit would keep it from reporting in time for the next gang."""
_POLL_SECONDS = 0.02
_AWAIT_SECONDS = 0.0002
_AWAIT_SHARE = 0.05
"""Part of the time that a member has waited for another by which it may notice that one late."""


class Rendezvous:
    """A key-value store through which the members of a group find each other; the first member serves it."""

    def __init__(self, host: str, timeout_seconds: float) -> None:
        """Args: an address of this host that the others reach, and the time-out for them."""
        listening = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.port = int(listening.getsockname()[1])
        self.store = TCPStore(
            host,
            self.port,
            is_master=True,
            timeout=timedelta(seconds=timeout_seconds),
            wait_for_workers=False,
            # Bound here, because by default the store listens on all of the host's addresses.
            master_listen_fd=listening.detach(),
        )


class Group:
    """A group whose members sum and copy tensors, all in the same order. A context manager; not thread-safe.

    Tensors may be on any device. With gloo they travel through the host's memory; with NCCL from GPU to GPU.
    """

    def __init__(
        self,
        name: str,
        rank: int,
        names: list[str],
        membership: Membership,
        assignment: Assignment,
        rendezvous: Rendezvous | None,
        backend: Backend = "gloo",
    ) -> None:
        """Connect to the others; blocks.

        Args:
            name: of the group, the same for all.
            rank: of this member.
            names: of all members, by rank; the first one serves the rendezvous.
            membership: of this member; raises when it must leave.
            assignment: gives the time-out, and the device for NCCL.
            rendezvous: for the member that serves it.
            backend: the library, the same for all.

        Raises:
            MemberLostError: a member did not connect in time.
        """
        self._name = name
        self._names = names
        self._rank = rank
        self._membership = membership
        self._group: Any = None
        self._device = torch.device("cpu" if backend == "gloo" else assignment.device)
        host, port = membership.host_of(names[0]), membership.advertised(names[0], RENDEZVOUS_PORT)
        deadline = time.monotonic() + assignment.gang_seconds
        own_host = membership.host_of(names[rank])
        store = rendezvous.store if rendezvous else self._connect(host, port, membership, deadline)
        self._store: Any = store
        self._awaited = 0
        try:
            store.set(f"{name}/here/{rank}", "1")
            # Not inside of the group's constructor, which can't be interrupted.
            here = [f"{name}/here/{other}" for other in range(len(names))]
            while not store.check(here):
                membership.check()
                if time.monotonic() > deadline:
                    raise self._lost("not all connected in time")
                time.sleep(_POLL_SECONDS)
            make = _gloo if backend == "gloo" else _nccl
            self._group = make(PrefixStore(name, store), rank, len(names), own_host, assignment.gang_seconds)
        except RuntimeError as error:
            raise self._lost(str(error)) from error

    @property
    def size(self) -> int:
        """Return the number of members."""
        return len(self._names)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Its end closes the connections: peers that wait for this member notice immediately.
        self._group.abort()
        self._group = self._store = None

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum of all members' tensors, the same bytes in each of them; `tensor` may be overwritten."""
        return self._do(tensor, lambda own: self._group.allreduce([own]))

    def sum_at(self, rank: int, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum of all members' tensors, to one of them; the others get undefined values."""
        options = ReduceOptions()
        options.rootRank = rank
        return self._do(tensor, lambda own: self._group.reduce([own], options))

    def copy_from(self, rank: int, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor of one member, to all; the others' may be overwritten."""
        options = BroadcastOptions()
        options.rootRank = rank
        return self._do(tensor, lambda own: self._group.broadcast([own], options))

    def await_from(self, rank: int, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor of one member, to all, however long that takes: meanwhile the others may be told to leave.

        Raises:
            MemberLostError: a member was lost.
            GangError: as `Membership.check`.
        """
        # Asked for in the store, because a copy that has begun can't be given up: the group's end would wait for it.
        self._awaited += 1
        begun = f"{self._name}/awaited/{self._awaited}"
        try:
            if rank == self._rank:
                self._store.set(begun, "")
            started = time.monotonic()
            while rank != self._rank and not self._store.check([begun]):
                self._membership.check()
                waited = time.monotonic() - started
                time.sleep(min(max(_AWAIT_SECONDS, _AWAIT_SHARE * waited), _POLL_SECONDS))
        except RuntimeError as error:
            raise self._lost(str(error)) from error
        return self.copy_from(rank, tensor)

    def _do(self, tensor: torch.Tensor, begin: Callable[[torch.Tensor], Any]) -> torch.Tensor:
        own, failure = tensor.detach().to(self._device).contiguous(), ""
        try:
            begin(own).wait()
        except RuntimeError as error:
            failure = str(error)
        if failure:
            # Not from within: the traceback would keep the operation, and with it the group's connections.
            raise self._lost(failure)
        return own.to(tensor.device)

    def _lost(self, reason: str) -> MemberLostError:
        others = [name for rank, name in enumerate(self._names) if rank != self._rank]
        cause = reason.splitlines()[0].split(". ")[0]
        return MemberLostError(
            f"{self._names[self._rank]} lost {' or '.join(others)} in their process group ({cause}); if no process "
            f"died, raise cluster.gang_seconds"
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


def _gloo(store: Any, rank: int, size: int, host: str, gang_seconds: float) -> Any:
    options: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # noqa: SLF001  (to choose the address)
    options._devices = [ProcessGroupGloo.create_device(hostname=host)]  # noqa: SLF001
    options._timeout = timedelta(seconds=min(_MESH_SECONDS, gang_seconds))  # noqa: SLF001
    group = ProcessGroupGloo(store, rank, size, options)
    group._set_default_timeout(timedelta(seconds=gang_seconds))  # noqa: SLF001
    return group


def _nccl(store: Any, rank: int, size: int, host: str, gang_seconds: float) -> Any:  # noqa: ARG001  (as `_gloo`)
    """Make a group of GPUs. It never ran: there was no GPU."""
    # Without this, `wait` returns before the sum is there, and a lost peer ends the process instead of raising here.
    os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
    library: Any = distributed  # a torch without CUDA has no NCCL, and then no member has a GPU
    options = library.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=gang_seconds)  # noqa: SLF001
    return library.ProcessGroupNCCL(store, rank, size, options)

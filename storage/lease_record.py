"""What a lease says, and what an observer may conclude from it: no store, no thread, no clock of its own."""

from __future__ import annotations

import json
import os
import secrets
import socket
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal

from storage.digest import canonical_json
from storage.errors import CorruptObjectError

LEASE = "lease.json"
_FORMAT = "penstock-lease/1"
_UNKNOWN_TTL_SECONDS = 30.0
_KINDS: dict[str, type | tuple[type, ...]] = {"int": int, "float": (int, float), "str": str, "bool": bool}


@dataclass(frozen=True, slots=True)
class Lease:
    """What `lease.json` says."""

    owner: str
    generation: int
    """Counts owners, from 1."""
    sequence: int
    """Counts renewals by this owner."""
    ttl_seconds: float
    host: str
    machine: str
    """Boot and process namespace, in which `pid` means something; empty where the system doesn't tell."""
    pid: int
    process_start: str
    """When the process started, as its kernel counts; tells it apart from a later one with the same pid."""
    token: str
    """Random: tells two takers of one generation apart."""
    released: bool = False

    def encode(self) -> bytes:
        """The object's bytes."""
        return canonical_json({"format": _FORMAT, **asdict(self)}) + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> Lease:
        """Back from `encode`.

        Raises:
            CorruptObjectError: not a lease.
        """
        try:
            values = json.loads(data)
            format_ = values.pop("format")
            lease = cls(**values)
            wrong = [field.name for field in fields(cls) if not isinstance(values[field.name], _KINDS[str(field.type)])]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _corrupt(repr(error)) from error
        if format_ != _FORMAT:
            raise _corrupt(f"'format' is {format_!r}, expected '{_FORMAT}'")
        if wrong or not lease.ttl_seconds > 0:
            raise _corrupt(f"{', '.join(wrong) or 'ttl_seconds'} malformed")
        return lease

    @classmethod
    def of_this_process(cls, owner: str, ttl_seconds: float) -> Lease:
        """A first lease for the calling process."""
        return cls(
            owner=owner,
            generation=1,
            sequence=0,
            ttl_seconds=ttl_seconds,
            host=socket.gethostname(),
            machine=_machine(),
            pid=os.getpid(),
            process_start=_process_start(os.getpid()) or "",
            token=secrets.token_hex(8),
        )

    def owner_process(self) -> Literal["alive", "dead", "unknown"]:
        """What can be told at once about the owner: something only if it is, or was, on this host since it booted."""
        if not self.machine or not self.process_start or self.machine != _machine():
            return "unknown"
        return "alive" if _process_start(self.pid) == self.process_start else "dead"

    def __str__(self) -> str:
        return f"{self.owner} (host {self.host}, pid {self.pid}, generation {self.generation})"


class LeaseView:
    """The lease as one observer sees it over time; knows no store, thread or clock.

    Args:
        lease: as first seen, None if it was not there.
        now: seconds on the observer's monotonic clock.
    """

    def __init__(self, lease: Lease | None, now: float) -> None:
        self.lease = lease
        self._changed_at = now
        self._looked_at = now

    @property
    def ttl_seconds(self) -> float:
        """The owner's word, or a default while no lease was seen."""
        return self.lease.ttl_seconds if self.lease else _UNKNOWN_TTL_SECONDS

    @property
    def unchanged_seconds(self) -> float:
        """From the last change to the last look; time in which nobody looked doesn't speak against the owner."""
        return self._looked_at - self._changed_at

    @property
    def expired(self) -> bool:
        """Nothing has changed for longer than one ttl."""
        return self.unchanged_seconds > self.ttl_seconds

    def observe(self, lease: Lease | None, now: float) -> bool:
        """Take note of a look; None (no lease there, or the look failed) counts as unchanged. True if it changed."""
        self._looked_at = now
        if lease is None or lease == self.lease:
            return False
        self.lease, self._changed_at = lease, now
        return True

    def lost(self, generation: int) -> str:
        """Why this generation drives the run no more, in words; empty if it does.

        A lower generation is a zombie's late write, which the owner replaces, and not a reason by itself.
        """
        if self.lease and self.lease.generation > generation:
            return f"the lease was taken over by {self.lease}"
        if self.lease and self.lease.generation == generation and self.lease.released:
            return f"the lease was released by {self.lease}"
        if self.expired:
            last = f"renewed last by {self.lease}" if self.lease else "not there"
            return f"the lease is {last}, unchanged for {self.unchanged_seconds:.1f} s (ttl {self.ttl_seconds:g} s)"
        return ""


def _corrupt(found: str) -> CorruptObjectError:
    return CorruptObjectError(f"'{LEASE}' is no lease: {found}. If no flow drives this run, remove the file and resume")


def _machine() -> str:
    """Names the kernel since its boot, and the process namespace: containers of a host may share all but that."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115  (the link's target is no path)
    except OSError:
        return ""


def _process_start(pid: int) -> str | None:
    """Clock ticks from boot to the start of a process; None if there is none, or only its zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field is the command in brackets, which may contain anything.
    values = stat.rsplit(")", 1)[1].split()
    return None if values[0] in "ZX" else values[19]

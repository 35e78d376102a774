"""The lease record, and the conclusions that an observer may draw from it; uses no store, thread or clock."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from penstock.storage import system
from penstock.storage.digest import canonical_json, parse_json
from penstock.storage.errors import CorruptObjectError
from penstock.storage.records import to_json

LEASE = "lease.json"
_FORMAT = "penstock-lease/1"
UNKNOWN_TTL_SECONDS = 30.0
_LONGEST_TTL_SECONDS = 7 * 86_400.0
_KINDS: dict[str, type | tuple[type, ...]] = {"int": int, "float": (int, float), "str": str, "bool": bool}


@dataclass(frozen=True, slots=True)
class Lease:
    """The content of `lease.json`."""

    owner: str
    generation: int
    """Counts owners, from 1."""
    sequence: int
    """Counts renewals by this owner."""
    ttl_seconds: float
    host: str
    machine: str
    """Boot and process namespace, in which `pid` means something; empty if the system does not provide it."""
    pid: int
    process_start: str
    """Start time of the process in its kernel's clock; distinguishes it from a later one with the same pid."""
    token: str
    """Random; distinguishes two takers of one generation."""
    released: bool = False

    def encode(self) -> bytes:
        """Return the object's bytes."""
        return canonical_json({"format": _FORMAT, **to_json(self)}) + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> Lease:
        """Return the lease of encoded bytes.

        Raises:
            CorruptObjectError: not a lease.
        """
        if not data:
            raise _corrupt("it is empty")
        try:
            values = parse_json(data)
        except ValueError as error:
            raise _corrupt(str(error)) from error
        if isinstance(values, dict) and (format_ := values.get("format")) != _FORMAT:
            raise _corrupt(f"'format' is {format_!r}, expected '{_FORMAT}'")
        expected = {"format", *(field.name for field in fields(cls))}
        if not isinstance(values, dict) or values.keys() != expected:
            found = ", ".join(sorted(values)) if isinstance(values, dict) else f"a {type(values).__name__}"
            raise _corrupt(f"found {found}, expected {', '.join(sorted(expected))}")
        del values["format"]
        wrong = [field.name for field in fields(cls) if not isinstance(values[field.name], _KINDS[str(field.type)])]
        lease = cls(**values)
        if wrong or not 0 < lease.ttl_seconds <= _LONGEST_TTL_SECONDS or lease.pid < 1:
            raise _corrupt(f"{', '.join(wrong) or 'ttl_seconds or pid'} malformed")
        return lease

    @classmethod
    def of_this_process(cls, owner: str, ttl_seconds: float) -> Lease:
        """Return a first lease for the calling process."""
        process = system.process()
        return cls(
            owner=owner,
            generation=1,
            sequence=0,
            ttl_seconds=ttl_seconds,
            host=process.host,
            machine=process.machine,
            pid=process.pid,
            process_start=process.start,
            token=system.token(),
        )

    def owner_process(self) -> Literal["alive", "dead", "unknown"]:
        """Return the state of the owner's process: known only if it ran on this host since the host booted."""
        if not self.machine or not self.process_start or self.machine != system.process().machine:
            return "unknown"
        found = system.process_start(self.pid)
        if found is None and system.may_exist(self.pid):
            return "unknown"
        return "alive" if found == self.process_start else "dead"

    def __str__(self) -> str:
        return f"{self.owner} (host {self.host}, pid {self.pid}, generation {self.generation})"


class LeaseView:
    """The lease as one observer sees it over time; uses no store, thread or clock.

    Args:
        lease: the lease as first seen; None if there was none.
        now: seconds on the observer's monotonic clock.
    """

    def __init__(self, lease: Lease | None, now: float) -> None:
        self.lease = lease
        self._changed_at = now
        self._observed_at = now

    @property
    def ttl_seconds(self) -> float:
        """Return the owner's ttl, or a default while no lease was seen."""
        return self.lease.ttl_seconds if self.lease else UNKNOWN_TTL_SECONDS

    @property
    def unchanged_seconds(self) -> float:
        """Return the seconds from the last change to the last observation; unobserved time does not count."""
        return self._observed_at - self._changed_at

    @property
    def expired(self) -> bool:
        """Return whether nothing has changed for longer than one ttl."""
        return self.unchanged_seconds > self.ttl_seconds

    def observe(self, lease: Lease | None, now: float) -> bool:
        """Record an observation, None if there was no lease or the read failed; returns whether the lease changed."""
        self._observed_at = now
        if lease is None or lease == self.lease:
            return False
        self.lease, self._changed_at = lease, now
        return True

    def lost(self, generation: int) -> str:
        """Return the reason why this generation no longer drives the run; empty if it does.

        A lower generation is a late write of an earlier owner, which the current one replaces; it is not a reason.
        """
        if self.lease and self.lease.generation > generation:
            return f"the lease was taken over by {self.lease}"
        if self.lease and self.lease.generation == generation and self.lease.released:
            return f"the lease was released by {self.lease}"
        if self.expired:
            last = f"renewed last by {self.lease}" if self.lease else "missing"
            return f"the lease is {last}, unchanged for {self.unchanged_seconds:.1f} s (ttl {self.ttl_seconds:g} s)"
        return ""


def _corrupt(found: str) -> CorruptObjectError:
    return CorruptObjectError(
        f"'{LEASE}' is not a lease: {found}. It need not be removed: a command that needs the run to itself watches it "
        f"for {UNKNOWN_TTL_SECONDS:g} s, and takes it over if nothing has changed it"
    )

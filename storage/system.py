"""Clocks, waits, threads and the identity of processes, as protocol code uses them.

Protocol code decides; everything that waits, runs beside it or tells processes apart goes through this module. So the
same code runs in threads of a real machine and in the simulator's single thread, under its virtual clock
(`penstock.tasks.simulation`), which replaces the system for as long as a schedule lasts.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor
    from types import TracebackType


@dataclass(frozen=True, slots=True)
class Process:
    """A process, as other processes of its host can recognise it."""

    host: str
    machine: str
    """Boot and process namespace, in which `pid` means something; empty if the system does not provide it."""
    pid: int
    start: str
    """Start time in the kernel's clock; distinguishes it from a later process with the same pid."""


class Condition(Protocol):
    """The part of `threading.Condition` that protocol code uses; it is a mutex as well."""

    def __enter__(self) -> bool: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def wait_for(self, predicate: Callable[[], object], timeout: float | None = None) -> object:
        """Wait until the predicate is true; returns its last value."""

    def notify_all(self) -> None:
        """Wake all waiting threads."""


class Thread(Protocol):
    """The part of `threading.Thread` that protocol code uses."""

    def start(self) -> None:
        """Begin to run."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended."""


class Event(Protocol):
    """The part of `threading.Event` that protocol code uses."""

    def set(self) -> None:
        """Set the flag, and wake all waiting threads."""

    def is_set(self) -> bool:
        """Return the flag."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the flag; returns it."""
        ...


class System(Protocol):
    """A machine with clocks, threads and processes. Each method does what the function of its name says."""

    def monotonic(self) -> float:
        """Return seconds."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""

    def condition(self) -> Condition:
        """Return a condition."""
        ...

    def event(self) -> Event:
        """Return an event."""
        ...

    def thread(self, work: Callable[[], object], name: str) -> Thread:
        """Return a thread."""
        ...

    def is_current(self, thread: Thread) -> bool:
        """Compare with the calling thread."""
        ...

    def executor(self, threads: int, name: str) -> Executor:
        """Return an executor."""
        ...

    def process(self) -> Process:
        """Return the calling process."""
        ...

    def process_start(self, pid: int) -> str | None:
        """Return a process's start time."""
        ...

    def may_exist(self, pid: int) -> bool:
        """Return whether a hidden process has this pid."""
        ...

    def token(self) -> str:
        """Return random digits."""
        ...


class RealSystem:
    """The machine that this process runs on."""

    def monotonic(self) -> float:
        """Return the clock of the kernel."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        time.sleep(seconds)

    def condition(self) -> Condition:
        """Return a condition of threads."""
        return threading.Condition()

    def event(self) -> Event:
        """Return an event of threads."""
        return threading.Event()

    def thread(self, work: Callable[[], object], name: str) -> Thread:
        """Return a daemon thread."""
        return threading.Thread(target=work, name=name, daemon=True)

    def is_current(self, thread: Thread) -> bool:
        """Compare with the calling thread."""
        return thread is threading.current_thread()

    def executor(self, threads: int, name: str) -> Executor:
        """Return a pool of threads."""
        return ThreadPoolExecutor(threads, thread_name_prefix=name)

    def process(self) -> Process:
        """Return this process."""
        pid = os.getpid()
        return Process(socket.gethostname(), _machine(), pid, self.process_start(pid) or "")

    def process_start(self, pid: int) -> str | None:
        """Read the start time from `/proc`."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        # The second field is the command in brackets, which may contain anything.
        values = stat.rsplit(")", 1)[1].split()
        return None if values[0] in "ZX" else values[19]

    def may_exist(self, pid: int) -> bool:
        """Ask the kernel."""
        try:
            os.kill(pid, 0)
        except PermissionError:
            return True
        except (ProcessLookupError, OverflowError):
            return False
        return False  # a process of this user, which `/proc` would show: a zombie, or it has just ended

    def token(self) -> str:
        """Return a secret of the kernel."""
        return secrets.token_hex(8)


def _machine() -> str:
    """Return the kernel's boot id and the process namespace, in which alone containers of a host may differ."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115  (the link's target is no path)
    except OSError:
        return ""


_system: System = RealSystem()


@contextmanager
def replaced(system: System) -> Iterator[None]:
    """Let all protocol code of this process use another system within the context; for simulations alone."""
    global _system  # noqa: PLW0603  (one system for the whole process is the point)
    before, _system = _system, system
    try:
        yield
    finally:
        _system = before


def monotonic() -> float:
    """Return seconds on a clock that never goes back."""
    return _system.monotonic()


def sleep(seconds: float) -> None:
    """Wait."""
    _system.sleep(seconds)


def condition() -> Condition:
    """Return a new condition, which is a mutex as well."""
    return _system.condition()


def event() -> Event:
    """Return a new event that is not set."""
    return _system.event()


def thread(work: Callable[[], object], name: str) -> Thread:
    """Return a thread that does `work` once it is started, and does not keep its process alive."""
    return _system.thread(work, name)


def is_current(thread: Thread) -> bool:
    """Return whether the caller runs in this thread."""
    return _system.is_current(thread)


def executor(threads: int, name: str) -> Executor:
    """Return an executor that runs so many calls at once, in the order of their submission."""
    return _system.executor(threads, name)


def process() -> Process:
    """Return the calling process."""
    return _system.process()


def process_start(pid: int) -> str | None:
    """Return the start time of a process of this host; None if there is none, only its zombie, or it is hidden."""
    return _system.process_start(pid)


def may_exist(pid: int) -> bool:
    """Return whether a process of another user has this pid: `/proc` mounted with hidepid shows none of them."""
    return _system.may_exist(pid)


def token() -> str:
    """Return 16 random hexadecimal digits."""
    return _system.token()

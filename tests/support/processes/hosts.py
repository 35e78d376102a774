"""Virtual hosts for a test, each with a network, a name, processes and a private folder, on one switch.

Each is a set of Linux namespaces, held by a process that sleeps. Nothing of them is seen from outside: the switch is
in a namespace as well, so no address, link or file of this machine is touched, and no traffic leaves. They end when
their process does, with all that runs in them, and it ends with the test, even if that is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PRIVATE = Path("/media")
"""The mount point of each host's private folder, in memory and world-writable; all else is read-only to it."""
_NETWORK = "10.77.0"
_PROGRAMS = ("ip", "mount", "nsenter", "setpriv", "unshare")
_HOST = """
hostname "$0"
mount --bind "$1" /etc/hosts
mount -t tmpfs -o mode=1777 host "$2"
mkdir -m 1777 "$2/tmp" "$2/cache" "$2/home"
mount -o remount,bind,ro /
ip link set lo up
exec sleep infinity
"""
_SWITCH = """
ip link add switch type bridge
ip link set switch up
exec sleep infinity
"""
_RUN = 'cd "$0" && exec "$@"'
_KEEP_RUNNING = 'cd "$0" && while :; do "$@" || :; sleep 0.5; done'


class NoHostsError(Exception):
    """Hosts can't be made here, and why."""


def _held(script: str, *arguments: str) -> tuple[subprocess.Popen[bytes], int]:
    """A process that holds new namespaces, and the number of the first process in them."""
    flags = ("--net", "--uts", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc")
    command = ["setpriv", "--pdeathsig", "KILL", "unshare", *flags, "sh", "-euc", script, *arguments]
    holder = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    give_up_at = time.monotonic() + 150
    while True:
        with contextlib.suppress(psutil.Error):
            for first in psutil.Process(holder.pid).children():
                if first.name() == "sleep":  # the last that the script does
                    return holder, first.pid
        if holder.poll() is not None or time.monotonic() > give_up_at:
            holder.kill()
            said = holder.communicate()[1].decode(errors="replace").strip()
            raise NoHostsError(f"namespaces can't be made here: {said or 'not within 150 s'}")
        time.sleep(0.01)


def _end(holder: subprocess.Popen[bytes], first: int) -> None:
    """End the first process, and with it the kernel ends all others of its namespace."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(first, signal.SIGKILL)
    holder.wait(150)
    holder.stderr.close()


class Switch:
    """A network switch that joins hosts. It is a context manager, and its end is the end of its hosts."""

    def __init__(self, folder: Path) -> None:
        """Raises NoHostsError where there is no root, no `ip` or no namespaces."""
        if os.geteuid() != 0:
            raise NoHostsError("hosts of namespaces need root")
        if missing := [name for name in _PROGRAMS if shutil.which(name) is None]:
            raise NoHostsError(f"hosts of namespaces need {', '.join(missing)} (iproute2, util-linux)")
        self._names = folder / "hosts"
        self._names.write_text("127.0.0.1 localhost\n")
        self._hosts: list[Host] = []
        self._holder, self._first = _held(_SWITCH)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for host in self._hosts:
            host.kill()
        _end(self._holder, self._first)

    def host(self, name: str) -> Host:
        """A new host, which all others find by its name."""
        number = len(self._hosts) + 2
        address = f"{_NETWORK}.{number}"
        with self._names.open("a") as names:
            names.write(f"{address} {name}\n")
        host = Host(name, address, self._names, self)
        self._hosts.append(host)
        try:
            self._link("add", "name", name, "type", "veth", "peer", "name", "eth0", "netns", str(host.first))
        except subprocess.CalledProcessError as error:
            raise NoHostsError(f"a link can't be made here: {error.stderr.decode().strip()}") from error
        self._link("set", "dev", name, "master", "switch", "up")
        host.ip("address", "add", f"{address}/24", "dev", "eth0")
        host.ip("link", "set", "eth0", "up")
        return host

    def part(self, name: str) -> None:
        """As `Host.part`."""
        self._link("set", "dev", name, "nomaster")

    def _link(self, *arguments: str) -> None:
        _in_namespaces(self._first, "--net", "ip", "link", *arguments)


class Host:
    """One machine. `Switch.host` makes it."""

    def __init__(self, name: str, address: str, names: Path, switch: Switch) -> None:
        self.name = name
        self.address = address
        self._switch = switch
        self._holder, self.first = _held(_HOST, name, str(names), str(PRIVATE))
        self._started: list[subprocess.Popen[bytes]] = []

    @property
    def private(self) -> Path:
        """Its own folder, seen from outside."""
        return Path(f"/proc/{self.first}/root{PRIVATE}")

    def ip(self, *arguments: str) -> None:
        """Run `ip`."""
        _in_namespaces(self.first, "--net", "ip", *arguments)

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        log: Path,
        *,
        kept: bool = False,
        user: int = 0,
    ) -> Process:
        """Start a program, in a folder and as a user; one that is kept is started again whenever it ends."""
        script = _KEEP_RUNNING if kept else _RUN
        rights = [
            "setpriv",
            f"--reuid={user}",
            f"--regid={user}",
            "--clear-groups",
            "--inh-caps=-all",
            "--no-new-privs",
        ]
        enter = ["nsenter", "--target", str(self.first), "--net", "--uts", "--pid", "--mount"]
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*enter, *(rights if user else ()), "sh", "-euc", script, str(folder), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environment),
            )
        self._started.append(process)
        return Process(process, log)

    def inside(self, function: Callable[[], Any]) -> Any:
        """Call a function in a thread that is on this host's network, as are the threads that it starts."""

        def enter() -> None:
            with Path(f"/proc/{self.first}/ns/net").open("rb") as network:
                if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), 0):
                    raise OSError(ctypes.get_errno(), "setns")

        with ThreadPoolExecutor(1, initializer=enter) as thread:
            return thread.submit(function).result()

    def part(self) -> None:
        """Drop all packets from and to it from now on, without notice."""
        self._switch.part(self.name)

    def kill(self) -> None:
        """End all that runs on it, at once; harmless afterwards."""
        _end(self._holder, self.first)
        for process in self._started:
            process.wait(150)


class Process:
    """A program on a host, and what it said."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def succeed(self, seconds: float) -> str:
        """Wait for its end, which must be a good one; what it said."""
        assert self._process.wait(seconds) == 0, self.said
        return self.said

    def kill(self) -> None:
        """Kill -9 the program; one that is kept is started again."""
        # Below nsenter and the shell.
        for process in psutil.Process(self._process.pid).children(recursive=True)[1:]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def _in_namespaces(first: int, *arguments: str) -> None:
    subprocess.run(["nsenter", "--target", str(first), *arguments], check=True, capture_output=True)

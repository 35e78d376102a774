"""Run `penstock` and a Dask cluster as processes that tests start, inspect and kill."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from distributed import Client

from .warm import PENSTOCK, warm_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from .warm import Started

CLUSTER_PROGRAM = Path(__file__).with_name("cluster_process.py")
# Ends a hang; a busy machine is slow, not wrong.
PATIENCE_SECONDS = 300.0
# The first for cheap checks that must see the middle of a stage, the second for requests to other processes.
_POLL_SECONDS = 0.005
_ASK_SECONDS = 0.05


def wait_until(
    condition: Callable[[], Any],
    what: str | Callable[[], str],
    seconds: float = PATIENCE_SECONDS,
    poll_seconds: float = _POLL_SECONDS,
) -> Any:
    """Poll `condition` and return its first true value."""
    give_up_at = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < give_up_at, f"{what() if callable(what) else what}: not within {seconds:g} s"
        time.sleep(poll_seconds)
    return value


class Command:
    """A `penstock` command in its own process group, started by its script if `cold`, otherwise as `warm.py` says."""

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        cwd: Path | None = None,
        *,
        cold: bool = False,
    ) -> None:
        self._out, self._err = folder / "stdout", folder / "stderr"
        folder.mkdir(parents=True)
        whole = {**os.environ, **environment}
        with self._out.open("wb") as out, self._err.open("wb") as err:
            if not cold and (warm := warm_process(whole)):
                self._process: Started = warm.start(arguments, whole, cwd, out, err)
            else:
                self._process = subprocess.Popen(
                    [str(PENSTOCK), *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    env=whole,
                    cwd=cwd,
                    start_new_session=True,
                )
        self._command = f"penstock {shlex.join(arguments)}"
        self.pid = self._process.pid

    @property
    def output(self) -> str:
        """Return what the command printed, errors last."""
        return self._out.read_text() + self._err.read_text()

    @property
    def stdout(self) -> str:
        return self._out.read_text()

    @property
    def errors(self) -> str:
        return self._err.read_text()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Wait for the end and return the exit status."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self._command} did not end within {seconds:g} s:\n{self.output}") from None

    def succeed(self, seconds: float = PATIENCE_SECONDS) -> str:
        """Wait for a successful end and return what was printed."""
        assert self.wait(seconds) == 0, f"{self._command} failed:\n{self.output}"
        return self.stdout

    def refuse(self, *mentioned: str, seconds: float = PATIENCE_SECONDS) -> str:
        """Wait for an end with one clear error that mentions all of these, and return it.

        A command may have announced its work before.
        """
        status, errors = self.wait(seconds), self.errors
        assert status == 1, f"{self._command} ended with {status}:\n{self.output}"
        assert "Traceback" not in self.output, self.output
        said = errors.strip().splitlines()
        assert said, self.output
        said = said if said[0].startswith("error: ") else said[1:]
        assert said, f"no error was printed:\n{errors}"
        assert all(line.startswith("error: ") for line in said), f"more than an error was printed:\n{errors}"
        for text in mentioned:
            assert text in errors, f"'{text}' is not mentioned in:\n{errors}"
        return errors

    def send(self, number: int) -> None:
        """Send a signal to the process alone."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process alone, by SIGKILL."""
        self.send(signal.SIGKILL)
        self._process.wait(150)

    def kill_group(self) -> None:
        """Kill the process group by SIGKILL; does nothing if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait(150)

    def descendants(self) -> list[psutil.Process]:
        """Return the running processes that the command has started."""
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def own_workers(self) -> list[psutil.Process]:
        """Wait until the run's own Dask workers have connected, and return them: its scheduler's port has several."""

        def find() -> list[psutil.Process] | None:
            assert self.running, f"{self._command} ended:\n{self.output}"
            listening = {at.laddr.port for at in _connections(self.pid) if at.status == psutil.CONN_LISTEN}
            reached: dict[int, list[psutil.Process]] = {}
            for process in self.descendants():
                for port in {at.raddr.port for at in _connections(process.pid) if at.raddr} & listening:
                    reached.setdefault(port, []).append(process)
            return next((workers for workers in reached.values() if len(workers) > 1), None)

        said = "workers of a Dask scheduler in the process, which printed:"
        return list(wait_until(find, lambda: f"{said}\n{self.output}", poll_seconds=10 * _ASK_SECONDS))


def _connections(pid: int) -> list[Any]:
    try:
        return psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return []


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended may exist until its parent asks for its status."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def listener(port: int) -> int | None:
    """Return the pid of the process that listens on a TCP port, if there is one."""
    found = (
        at.pid for at in psutil.net_connections("tcp") if at.status == psutil.CONN_LISTEN and at.laddr.port == port
    )
    return next(found, None)


class Members:
    """The workers of a Dask cluster and their tasks, as the scheduler and the workers report them."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.client = Client(address, timeout=PATIENCE_SECONDS, set_as_default=False)
        self._pids: dict[str, int] = {}

    def close(self) -> None:
        self.client.close()

    def pid_of(self, member: str, run: str, flow: Command) -> int:
        """Wait until a worker has a member of a run's gang, `act-0` or `learn-0`, and return that worker's pid.

        Only the scheduler is asked: a request to a worker that was just killed blocks for longer than a run may take.
        The run's `flow` must not end meanwhile.
        """
        prefix = f"{member} penstock/{run}/"
        assigned: dict[str, list[str]] = {}

        def keys(dask_scheduler: Any) -> dict[str, list[str]]:
            workers = dask_scheduler.workers.values()
            return {one.address: [str(task.key) for task in one.processing] for one in workers}

        def said() -> str:
            return f"{member} of run {run} on a worker: {assigned}; its flow has printed:\n{flow.output}"

        def find() -> int | None:
            assigned.clear()
            assigned.update(self.client.run_on_scheduler(keys))
            has_it = [address for address, its in assigned.items() if any(key.startswith(prefix) for key in its)]
            found = next(filter(None, map(self._pid_at, has_it)), None)
            assert found or flow.running, f"the flow ended before there was {said()}"
            return found

        return int(wait_until(find, said))

    @contextlib.contextmanager
    def learners_held(self) -> Iterator[None]:
        """Stop the processes that learn: a run that starts meanwhile has its members, and waits before its first round.

        Without it a run may be over before a busy test has found its members.
        """

        def addresses(dask_scheduler: Any) -> list[str]:
            return [one.address for one in dask_scheduler.workers.values() if str(one.name).startswith("learn")]

        pids = list(filter(None, map(self._pid_at, self.client.run_on_scheduler(addresses))))
        assert pids
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def _pid_at(self, address: str) -> int | None:
        """Return the pid of the worker at an address, which a later worker may have again; None if it has ended."""
        pid = self._pids.get(address)
        if pid and is_alive(pid):
            return pid
        if pid := listener(int(address.rpartition(":")[2])):
            self._pids[address] = pid
        return pid

    def working(self) -> dict[int, list[str]]:
        """Return the keys of the tasks that each worker process runs; the scheduler forgets those of an ended flow."""

        def running(dask_worker: Any) -> tuple[int, list[str]]:
            return os.getpid(), [str(key) for key in dask_worker.active_threads.values()]

        answers = self.client.run(running, on_error="ignore")
        self._pids |= {address: pid for address, (pid, _) in answers.items()}
        return dict(answers.values())

    def wait_idle(self) -> None:
        """Wait until no worker runs a task."""
        what = f"workers without work, at {self.address}"
        wait_until(lambda: not any(self.working().values()), what, poll_seconds=_ASK_SECONDS)

    def wait_whole(self, workers: int) -> None:
        """Wait until the cluster has that many workers, as after some were killed."""
        what = f"{workers} workers at {self.address}"
        wait_until(lambda: len(self.working()) == workers, what, poll_seconds=_ASK_SECONDS)


class Cluster:
    """A Dask scheduler, and workers to act, to learn and to serve parameters, each a process under a nanny.

    If `cold`, Dask's own commands start it; otherwise `cluster_process.py` does. If `apart`, each acting worker has its
    own scheduler, as if there were several clusters. If `own_caches`, each worker has a cache of its own, as if each
    were on another node.
    """

    def __init__(
        self,
        act_workers: int,
        places: int,
        environment: Mapping[str, str],
        folder: Path,
        learners: int = 1,
        servers: int = 0,
        *,
        apart: bool = False,
        cold: bool = False,
        own_caches: bool = False,
    ) -> None:
        self.workers = act_workers + learners + servers
        self.places = act_workers * places
        self._environment = {
            **os.environ,
            **environment,
            **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
        }
        self._folder = folder
        self._file = folder / "scheduler.json"
        self._processes: list[subprocess.Popen[bytes]] = []
        workers = [_worker("act", index, places, "actor") for index in range(act_workers)]
        for index, worker in enumerate(workers, 1):
            worker["scheduler"] = index * apart
        workers += [_worker("learn", index, 1, "learner") for index in range(learners)]
        workers += [_worker("server", index, 1, "server") for index in range(servers)]
        if own_caches:
            for worker in workers:
                worker["env"] = {"PENSTOCK_CACHE_DIR": str(folder / f"cache-{worker['name']}")}
        if cold:
            self._start_commands(workers)
        else:
            self._start("cluster", str(CLUSTER_PROGRAM), str(self._file), json.dumps(workers))
        self.members: Members = wait_until(self._connect, self._said)
        self.address = self.members.address
        self.members.wait_whole(self.workers - act_workers * apart)

    @property
    def schedulers(self) -> dict[str, Any]:
        """Return the `addresses` of all schedulers, and the `pids` of all but the first."""
        return dict(json.loads(self._file.read_text()))

    def _connect(self) -> Members | None:
        assert all(process.poll() is None for process in self._processes), self._said()
        try:
            return Members(json.loads(self._file.read_text())["address"])
        except (ValueError, OSError):
            return None

    def _said(self) -> str:
        return "a Dask cluster:\n" + "".join(log.read_text() for log in sorted(self._folder.glob("*.log")))

    def _start_commands(self, workers: list[dict[str, Any]]) -> None:
        file = ("--scheduler-file", str(self._file), "--host", "127.0.0.1", "--no-dashboard")
        self._start("scheduler", "-m", "dask", "scheduler", *file, "--port", "0", "--no-show")
        wait_until(self._file.exists, self._said)
        for worker in workers:
            resources = ",".join(f"{name}={amount}" for name, amount in worker["resources"].items())
            places = ("--nthreads", str(worker["nthreads"]), "--resources", resources, "--memory-limit", "0")
            name = ("--name", worker["name"], "--death-timeout", "60")
            self._start(worker["name"], "-m", "dask", "worker", *file, *places, *name)

    def join(self, scheduler: str) -> subprocess.Popen[bytes]:
        """Start `dask worker` with a slot to act; it has joined when the scheduler lists it."""
        places = ("--nthreads", "1", "--resources", "actor=1", "--memory-limit", "0")
        where = ("--host", "127.0.0.1", "--no-dashboard", "--death-timeout", "60")
        return self._start(f"joined-{len(self._processes)}", "-m", "dask", "worker", scheduler, *where, *places)

    def begin(self, scheduler: str) -> None:
        """Start `dask scheduler` at the address of one that has ended."""
        where = ("--host", "127.0.0.1", "--port", scheduler.rpartition(":")[2], "--no-dashboard", "--no-show")
        self._start(f"begun-{len(self._processes)}", "-m", "dask", "scheduler", *where)

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, *arguments],
                    cwd=self._folder,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )
        return self._processes[-1]

    def close(self) -> None:
        self.members.close()
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(150)


def _worker(kind: str, index: int, places: int, resource: str) -> dict[str, Any]:
    return {"name": f"{kind}-{index}", "nthreads": places, "resources": {resource: places}}

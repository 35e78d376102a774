"""The simulated machine behind `penstock.storage.system`: virtual time, and threads that take turns."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from penstock.storage.system import Process
from penstock.tasks.simulation.world import SimulatedThread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from penstock.storage import system
    from penstock.tasks.simulation.world import World


class SimulatedSystem:
    """A system whose methods give way to other simulated threads where they would block."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic(self) -> float:
        """Return the clock of the running process's host."""
        return self._world.now + self._world.thread.process.host.clock_ahead_seconds

    def sleep(self, seconds: float) -> None:
        """Block the running thread."""
        self._world.sleep(seconds)

    def condition(self) -> system.Condition:
        """Return a condition of simulated threads."""
        return SimulatedCondition(self._world)

    def event(self) -> system.Event:
        """Return an event of simulated threads."""
        return SimulatedEvent(self._world)

    def thread(self, work: Callable[[], object], name: str) -> system.Thread:
        """Return a thread of the running process."""
        return SimulatedThread(self._world, self._world.thread.process, work, name)

    def is_current(self, thread: system.Thread) -> bool:
        """Compare with the running thread."""
        return thread is self._world.thread

    def executor(self, threads: int, name: str) -> Executor:
        """Return a pool of simulated threads."""
        return SimulatedExecutor(self._world, threads, name)

    def process(self) -> Process:
        """Return the running process."""
        process = self._world.thread.process
        return Process(process.host.name, f"{process.host.name}/{process.host.boot}", process.pid, str(process.pid))

    def process_start(self, pid: int) -> str | None:
        """Look the pid up on the running process's host; each process has a pid of its own."""
        return str(pid) if any(one.pid == pid for one in self._world.thread.process.host.processes) else None

    def may_exist(self, pid: int) -> bool:  # noqa: ARG002  (all processes belong to one user)
        """Return False: no process is hidden."""
        return False

    def token(self) -> str:
        """Return random digits of the seed."""
        return f"{self._world.rng.getrandbits(64):016x}"


class SimulatedCondition:
    """A condition with a mutex that its holder may enter again."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._owner: SimulatedThread | None = None
        self._depth = 0
        self._entering: list[SimulatedThread] = []
        self._waiting: list[SimulatedThread] = []

    def __enter__(self) -> bool:
        self._acquire(1)
        return True

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a notification; returns False on a time-out."""
        depth, self._depth = self._depth, 0
        self._release()
        deadline = None if timeout is None else self._world.now + timeout
        self._world.wait_in(self._waiting, timeout)  # raises for a process that ended, whose mutex no one needs
        self._acquire(depth)
        return deadline is None or self._world.now < deadline

    def wait_for(self, predicate: Callable[[], object], timeout: float | None = None) -> object:
        """Wait until the predicate is true; returns its last value."""
        deadline = None if timeout is None else self._world.now + timeout
        while not (found := predicate()):
            left = None if deadline is None else deadline - self._world.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return found

    def notify_all(self) -> None:
        """Wake all waiting threads."""
        for thread in self._waiting:
            thread.wake()

    def _acquire(self, depth: int) -> None:
        thread = self._world.thread
        while self._owner not in {None, thread}:
            self._world.wait_in(self._entering, None)
        self._owner, self._depth = thread, self._depth + depth

    def _release(self) -> None:
        self._owner = None
        for thread in self._entering:
            thread.wake()


class SimulatedEvent:
    """A flag that threads wait for."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_set = False
        self._waiting: list[SimulatedThread] = []

    def set(self) -> None:
        """Set the flag, and wake all waiting threads."""
        self._is_set = True
        for thread in self._waiting:
            thread.wake()

    def is_set(self) -> bool:
        """Return whether the flag was set."""
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the flag; returns it."""
        if not self._is_set:
            self._world.wait_in(self._waiting, timeout)
        return self._is_set


class SimulatedFuture:
    """The part of a future that protocol code uses."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._waiting: list[SimulatedThread] = []

    def settle(self, value: object, error: BaseException | None) -> None:
        """Store the outcome, and wake all waiting threads."""
        self._is_done, self._value, self._error = True, value, error
        for thread in self._waiting:
            thread.wake()

    def result(self) -> Any:
        """Wait for the outcome."""
        while not self._is_done:
            self._world.wait_in(self._waiting, None)
        if self._error is not None:
            raise self._error
        return self._value


class SimulatedExecutor(Executor):
    """Runs calls in simulated threads, in the order of their submission."""

    def __init__(self, world: World, threads: int, name: str) -> None:
        self._world = world
        self._threads = threads
        self._name = name
        self._queue: deque[tuple[SimulatedFuture, Callable[[], object]]] = deque()
        self._running: list[SimulatedThread] = []

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **options: Any) -> Any:
        """Queue a call."""
        future = SimulatedFuture(self._world)
        self._queue.append((future, lambda: call(*arguments, **options)))
        if len(self._running) < self._threads:
            thread = SimulatedThread(self._world, self._world.thread.process, self._work, self._name)
            self._running.append(thread)
            thread.start()
        return future

    def map(
        self, fn: Callable[..., Any], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[Any]:
        """Queue a call for each item; yields the results in order, without a time-out."""
        del timeout, chunksize
        futures = [self.submit(fn, *each) for each in zip(*iterables, strict=True)]
        return (future.result() for future in futures)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Wait until all submitted calls are done."""
        while wait and self._running:
            self._running[0].join()

    def _work(self) -> None:
        thread = self._world.thread
        try:
            while self._queue:
                future, call = self._queue.popleft()
                try:
                    value = call()
                except Exception as error:  # noqa: BLE001  (raised again by the future)
                    future.settle(None, error)
                else:
                    future.settle(value, None)
        finally:
            self._running.remove(thread)

"""The simulated world: hosts and processes whose threads take turns in one thread, under a virtual clock.

A thread runs in a greenlet. It gives way where it would block: in a store's operation, a wait or a sleep. What happens
next is decided by the time of its event and by random numbers of one seed, so a seed replays to the last byte.
"""

from __future__ import annotations

import random
from collections import Counter
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent, greenlet

from penstock.storage.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.tasks.simulation.faults import FaultPlan


class Killed(BaseException):
    """The simulated process has ended; raised in each of its threads, which can do nothing more."""


class SimulatedThread:
    """A thread of a simulated process."""

    __slots__ = ("_work", "carrier", "dead", "joiners", "name", "process", "wakes", "world")

    def __init__(self, world: World, process: SimulatedProcess, work: Callable[[], object], name: str) -> None:
        self.world = world
        self.process = process
        self.name = name
        self.dead = False
        """True once it has ended."""
        self.wakes = 0
        """Count of its resumptions; a wake that was meant for an earlier wait is stale."""
        self.joiners: list[SimulatedThread] = []
        self.carrier: _Carrier | None = None
        """The greenlet in which it runs; None before it does."""
        self._work: Callable[[], object] | None = work

    def start(self) -> None:
        """Begin to run, in the order of virtual time."""
        self.process.threads.append(self)
        self.wake()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended."""
        if not self.dead:
            self.world.wait_in(self.joiners, timeout)

    def wake(self, seconds: float = 0.0) -> None:
        """Resume after a while; later wakes of the same wait are ignored."""
        self.world.push(seconds, self, self.wakes)

    def run(self) -> None:
        """Do the work; called in the thread's greenlet."""
        work, self._work = self._work, None
        try:
            assert work is not None
            work()
        except Killed:
            return
        except BaseException as error:  # noqa: BLE001  (the world decides what the end of a thread means)
            self.process.thread_failed(self, error)
        finally:
            self.dead = True
        for thread in self.joiners:
            thread.wake()


class _Carrier(greenlet):
    """A greenlet that runs one thread after the other: most are short, and a greenlet has a stack to be made."""

    def __init__(self, world: World) -> None:
        super().__init__(parent=world.hub)
        self.thread: SimulatedThread
        self._world = world

    def run(self) -> None:
        """Run the threads that are assigned, until the world is closed."""
        world = self._world
        while True:
            self.thread.run()
            # Whoever ended the thread's process may wait in the hub for the end of the thread.
            following = None if self.thread.process.dead else world.next_thread()
            if following is None or following.carrier is not None:
                world.idle.append(self)
                world.switch_to(following)
            else:
                self.thread = world.running = following
                following.carrier = self


def _ignore(_: BaseException | None) -> None:
    """Let a process end."""


class Host:
    """A machine: processes on it share its clock, its files and its cache."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.boot = 0
        self.clock_ahead_seconds = 0.0
        self.cache: dict[str, bytes] = {}
        self.processes: list[SimulatedProcess] = []


class SimulatedProcess:
    """A process. Its memory ends with it; what it has stored remains."""

    def __init__(self, world: World, host: Host, role: str, on_exit: Callable[[BaseException | None], object]) -> None:
        world.processes.append(self)
        self.world = world
        self.host = host
        self.role = role
        self.pid = len(world.processes)
        self.name = f"{role}#{self.pid}"
        self.dead = False
        self.paused_until = 0.0
        self.threads: list[SimulatedThread] = []
        self.memory: dict[str, Any] = {}
        """The globals of the process, such as its mailbox."""
        self._on_exit = on_exit
        host.processes.append(self)

    def start(self, work: Callable[[], object]) -> None:
        """Run `work` in the first thread; the process ends with it."""

        def main() -> None:
            work()
            self.end(None)

        SimulatedThread(self.world, self, main, "main").start()

    def thread_failed(self, thread: SimulatedThread, error: BaseException) -> None:
        """End the process with the error of its first thread; others only end themselves, as threads do."""
        if thread is self.threads[0]:
            self.end(error)
        elif not isinstance(error, PenstockError):
            raise error

    def end(self, error: BaseException | None) -> None:
        """End the process at once; `on_exit` gets the error, or None if it was killed or has done its work."""
        if not self.dead:
            self.dead = True
            self.host.processes.remove(self)
            self._on_exit(error)
            self.world.after(0.0, self._unwind)

    def close(self) -> None:
        """End the process without telling anyone, and let go of what it held."""
        self.dead = True
        self._unwind()
        self._on_exit = _ignore
        self.threads.clear()
        self.memory.clear()
        self.host.cache.clear()
        self.host.processes.clear()

    def _unwind(self) -> None:
        for thread in self.threads:
            if thread.carrier is not None and not thread.dead:
                self.world.running = thread
                thread.carrier.throw(Killed)


class World:
    """Virtual time, and the events in it.

    Args:
        seed: of all random decisions.
        faults: says at which steps faults happen.
        traced: whether to keep a line for every step.
    """

    def __init__(self, seed: int, faults: FaultPlan, *, traced: bool = False) -> None:
        self.rng = random.Random(seed)  # noqa: S311  (no secret)
        self.faults = faults
        self.now = 0.0
        """Seconds since the schedule began."""
        self.hub = getcurrent()
        """The greenlet that runs all events but the turns of threads."""
        self.running: SimulatedThread | None = None
        """None in the hub."""
        self.idle: list[_Carrier] = []
        self.processes: list[SimulatedProcess] = []
        self.steps = 0
        self.coverage: Counter[tuple[str, str]] = Counter()
        self.trace: list[str] | None = [] if traced else None
        self._queue: list[tuple[float, int, Callable[..., object] | SimulatedThread, Any]] = []
        """Events: their time, their number, and a call with its arguments, or a thread with the wake that it is."""
        self._events = 0
        self.until = 0.0
        """Virtual time at which `run` returns."""
        self._stopped = False

    def after(self, seconds: float, call: Callable[..., object], *arguments: object) -> None:
        """Call something later, outside of all simulated threads."""
        self.push(seconds, call, arguments)

    def push(self, seconds: float, what: Callable[..., object] | SimulatedThread, how: Any) -> None:
        """Queue a call with its arguments, or a thread with the wake that it is."""
        self._events += 1
        heappush(self._queue, (self.now + seconds, self._events, what, how))

    def run(self, until: float) -> None:
        """Run events in their order until `stop` is called, none is left, or the time `until` is reached.

        While it runs, `until` may be moved on.
        """
        queue, self.until, self._stopped = self._queue, until, False
        while queue and queue[0][0] <= self.until and not self._stopped:
            thread = self.next_thread()
            if thread is not None:
                self.switch_to(thread)
            elif queue and queue[0][0] <= self.until:
                self.now, _, call, arguments = heappop(queue)
                call(*arguments)  # type: ignore[operator]

    def next_thread(self) -> SimulatedThread | None:
        """Take the next event off the queue if a thread is resumed by it, and return that; None if not.

        So the threads pass the turn on to each other, and one that nothing comes before just continues.
        """
        queue = self._queue
        while queue and not self._stopped:
            at, _, thread, wakes = queue[0]
            if at > self.until or type(thread) is not SimulatedThread:
                return None
            heappop(queue)
            self.now, process = at, thread.process
            if wakes != thread.wakes or process.dead:
                continue
            if process.paused_until <= at:
                thread.wakes += 1
                return thread
            thread.wake(process.paused_until - at)
        return None

    def switch_to(self, thread: SimulatedThread | None) -> None:
        """Continue with a thread, or with the hub; returns when it is the caller's turn again."""
        self.running = thread
        if thread is None:
            self.hub.switch()
            return
        carrier = thread.carrier
        if carrier is None:
            carrier = self.idle.pop() if self.idle else _Carrier(self)
            carrier.thread, thread.carrier = thread, carrier
        carrier.switch()

    def close(self) -> None:
        """End all processes, and break the cycles of references, which collecting would cost a sixth of all time."""
        for process in self.processes:
            process.close()
        for carrier in self.idle:
            carrier.throw()
        self.idle.clear()
        self.processes.clear()
        self._queue.clear()

    def stop(self) -> None:
        """Let `run` return after this event."""
        self._stopped = True

    @property
    def thread(self) -> SimulatedThread:
        """Return the running thread."""
        thread = self.running
        assert thread is not None
        if thread.process.dead:
            raise Killed
        return thread

    def sleep(self, seconds: float) -> None:
        """Block the running thread."""
        thread, then, queue = self.thread, self.now + seconds, self._queue
        if then <= self.until and not self._stopped and not (queue and queue[0][0] <= then):
            self.now = then  # nothing else happens before
            return
        self.push(seconds, thread, thread.wakes)
        self.block(thread)

    def block(self, thread: SimulatedThread) -> None:
        """Give way until the thread is woken."""
        following = self.next_thread()
        if following is thread:
            return
        self.switch_to(following)
        self.running = thread
        if thread.process.dead:
            raise Killed

    def wait_in(self, waiting: list[SimulatedThread], timeout: float | None) -> None:
        """Block the running thread until another wakes it, which it expects to find in the list; or for a while."""
        thread = self.thread
        waiting.append(thread)
        if timeout is not None:
            self.push(max(0.0, timeout), thread, thread.wakes)
        try:
            self.block(thread)
        finally:
            if thread in waiting:
                waiting.remove(thread)

    def die(self, error: BaseException | None = None) -> None:
        """End the process of the running thread; does not return."""
        self.thread.process.end(error)
        raise Killed

    def note(self, text: str) -> None:
        """Add a line to the trace, if there is one."""
        if self.trace is not None:
            who = self.running.process.name if self.running else "world"
            self.trace.append(f"{self.now:10.3f}  {who:<10} {text}")

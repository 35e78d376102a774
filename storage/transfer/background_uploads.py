"""Runs work on a store in the background: several tasks concurrently, within a byte budget.

A slow store then costs the writer nothing, as long as it accepts bytes as fast as they come. No failure is silent: the
first one cancels all tasks that have not started and is raised by every later call. The store itself retries single
requests a bounded number of times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.storage import system

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(eq=False, slots=True)
class _Task:
    nbytes: int
    work: Callable[[], None]
    is_held: bool = True


class Uploads:
    """Runs tasks in the order of submission, up to `threads` at once. Safe for threads.

    Args:
        threads: how many tasks run at once; 0 runs each in the caller's thread, for stores that are not worth a thread.
        budget_bytes: limit for tasks that are submitted and not done; a single task may be larger.
        on_failure: called with the first exception, in the thread that met it: whoever submits may wait elsewhere.

    Raises:
        ValueError: `threads` is negative, or the budget below one byte.
    """

    def __init__(
        self, threads: int, budget_bytes: int, on_failure: Callable[[BaseException], object] = lambda _: None
    ) -> None:
        if threads < 0 or budget_bytes < 1:
            raise ValueError(f"threads is {threads} and budget_bytes {budget_bytes}, expected 0 and 1 or more")
        self._executor = system.executor(threads, "upload") if threads else None
        self._budget_bytes = budget_bytes
        self._on_failure = on_failure
        self._changed = system.condition()
        self._held_bytes = 0
        self._running = 0
        self._failure: BaseException | None = None

    @property
    def held_bytes(self) -> int:
        """Return the bytes of tasks that are submitted and not done."""
        with self._changed:
            return self._held_bytes

    def submit(self, nbytes: int, work: Callable[[], None]) -> Callable[[], None]:
        """Queue `work`; block while the budget is used up.

        Returns:
            A function that waits until the task is done, and raises what it raised. `work` may wait for tasks that
            were submitted before it: they start earlier. No task can be cancelled: `finish` would wait for it.

        Raises:
            BaseException: an earlier task raised it.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._failure or not self._running or self._held_bytes + nbytes <= self._budget_bytes
            )
            self._raise()
            self._held_bytes += nbytes
            self._running += 1
        task = _Task(nbytes, work)
        if self._executor is not None:
            try:
                return self._executor.submit(self._do, task).result
            except BaseException:
                self._forget(task)  # it stays queued if its thread could not be started
                raise
        self._do(task)
        return lambda: None

    def finish(self) -> None:
        """Wait until every submitted task is done.

        Raises:
            BaseException: the first exception that any task raised.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._running)
            self._raise()

    def close(self) -> None:
        """End the threads once all submitted tasks are done; raise nothing."""
        if self._executor is not None:
            self._executor.shutdown(wait=True)

    def _do(self, task: _Task) -> None:
        try:
            with self._changed:
                if not task.is_held:
                    return
                self._raise()
            task.work()
        except BaseException as error:
            with self._changed:
                is_first = self._failure is None
                self._failure = self._failure or error
            if is_first:
                self._on_failure(error)
            raise
        finally:
            self._forget(task)

    def _forget(self, task: _Task) -> None:
        with self._changed:
            if task.is_held:
                task.is_held = False
                self._held_bytes -= task.nbytes
                self._running -= 1
                self._changed.notify_all()

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure

"""Micro-batching: observations of concurrent requests pass through the network together."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from penstock.tasks.inference.policy import Policy


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one request."""

    actions: NDArray[Any]
    """`[rows, ...]`."""
    memory: NDArray[np.float32] | None
    """The next memory, `[rows, ...]`; None for policies without one."""
    version: int
    """Version of the snapshot that acted."""


@dataclass(frozen=True, slots=True)
class _Request:
    rows: NDArray[Any]
    memory: NDArray[np.float32] | None
    deterministic: bool
    answer: asyncio.Future[Answer]


class MicroBatcher:
    """Acts for concurrent requests, those that wait at the same time in one batch. An asynchronous context manager.

    While a batch is computed, in a thread of its own, the next requests gather; so batches grow with the load, and a
    request on an idle server waits for nobody.

    Args:
        policy: with which the next batch acts; `policy` may be replaced at any time by one with the same spaces.
        max_rows: most rows of a batch; a larger request is a batch of its own.
        on_batch: called with the number of rows of each batch.
    """

    def __init__(self, policy: Policy, max_rows: int, on_batch: Callable[[int], object] = lambda _: None) -> None:
        self.policy = policy
        self._max_rows = max_rows
        self._on_batch = on_batch
        self._waiting: asyncio.Queue[_Request] = asyncio.Queue()
        self._thread = ThreadPoolExecutor(1, "policy")

    async def __aenter__(self) -> Self:
        self._worker = asyncio.create_task(self._work())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._worker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._worker
        self._thread.shutdown()

    async def act(self, rows: NDArray[Any], memory: NDArray[np.float32] | None, *, deterministic: bool) -> Answer:
        """Return the actions for rows that `Policy.as_rows` accepted; `memory` is None where episodes begin.

        Raises:
            ValueError: the policy refuses the batch, such as rows that allow no action.
        """
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait(_Request(rows, memory, deterministic, answer))
        return await answer

    async def _work(self) -> None:
        held: _Request | None = None
        while True:
            batch = [held or await self._waiting.get()]
            held, count = None, len(batch[0].rows)
            while not self._waiting.empty():
                request = self._waiting.get_nowait()
                if count + len(request.rows) > self._max_rows:
                    held = request
                    break
                batch.append(request)
                count += len(request.rows)
            self._on_batch(count)
            await self._answer(batch)

    async def _answer(self, batch: list[_Request]) -> None:
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.run_in_executor(self._thread, _compute, self.policy, batch)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001  (the one who asked gets it)
            if len(batch) == 1:
                _fail(batch[0], error)
                return
            for request in batch:  # one by one: the others are not to blame
                await self._answer([request])
            return
        for request, answer in zip(batch, answers, strict=True):
            if not request.answer.done():
                request.answer.set_result(answer)


def _fail(request: _Request, error: Exception) -> None:
    if not request.answer.done():
        request.answer.set_exception(error)


def _compute(policy: Policy, batch: list[_Request]) -> list[Answer]:
    sizes = [len(request.rows) for request in batch]
    memory: NDArray[np.float32] | None = None
    if policy.has_memory:
        memories = [
            policy.initial_memory(size) if request.memory is None else request.memory
            for request, size in zip(batch, sizes, strict=True)
        ]
        memory = np.concatenate(memories)  # type: ignore[arg-type]
    deterministic = np.repeat([request.deterministic for request in batch], sizes)
    actions, following = policy.step(np.concatenate([request.rows for request in batch]), memory, deterministic)
    ends = np.cumsum(sizes)
    return [
        Answer(
            actions[end - size : end], None if following is None else following[end - size : end], policy.origin.version
        )
        for size, end in zip(sizes, ends, strict=True)
    ]

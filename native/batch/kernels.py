"""Calls the kernels of a batch: C functions over addresses, the same for a CPU and a GPU.

The structures are those of `include/penstock/batch/`. Calls release the interpreter's lock.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from penstock.native.batch.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Callable


class BatchError(RuntimeError):
    """A kernel failed: an environment threw, an action was none, or CUDA did not take the work."""


class BatchArrays(ctypes.Structure):
    """The addresses of a batch; whoever makes it keeps the arrays alive."""

    _fields_ = [
        ("environments", ctypes.c_size_t),
        ("max_episode_steps", ctypes.c_int64),
        ("config_words", ctypes.c_void_p),
        ("config_flags", ctypes.c_void_p),
        ("words", ctypes.c_void_p),
        ("flags", ctypes.c_void_p),
        ("device", ctypes.c_int32),
    ]


class BatchStep(ctypes.Structure):
    """The addresses of a step's results: reward float64, terminated and truncated bool, observation.

    Environments in `skipped`, bool, stay as they are, with reward 0 and no flag; None steps all.
    """

    _fields_ = [
        ("skipped", ctypes.c_void_p),
        ("reward", ctypes.c_void_p),
        ("terminated", ctypes.c_void_p),
        ("truncated", ctypes.c_void_p),
        ("observation", ctypes.c_void_p),
    ]


class BatchRow(ctypes.Structure):
    """The addresses of one row of a round's columns.

    `observation` is that after the step, so of the next row; `length` (int64), `episode_return` (float64) and
    `final_observation` are written where an episode ended, the latter everywhere in the last row.
    """

    _fields_ = [
        ("reward", ctypes.c_void_p),
        ("terminated", ctypes.c_void_p),
        ("truncated", ctypes.c_void_p),
        ("episode_id", ctypes.c_void_p),
        ("length", ctypes.c_void_p),
        ("episode_return", ctypes.c_void_p),
        ("final_observation", ctypes.c_void_p),
        ("observation", ctypes.c_void_p),
        ("is_last", ctypes.c_int64),
    ]


_Work = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_Observe = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class _Table(ctypes.Structure):
    _fields_ = [
        ("layout", ctypes.c_char_p),
        ("step", _Work),
        ("step_round", _Work),
        ("begin", _Work),
        ("observe", _Observe),
    ]


class BatchKernels:
    """The kernels of one environment for one kind of device.

    Addresses are of that device, and actions int64 or float32 as in a pool's rounds. On a GPU a call queues work on
    `stream`, the address of a CUDA stream, and returns at once; on a CPU it does the work, and `stream` means nothing.
    """

    def __init__(self, table: int) -> None:
        """Read the table at an address; the library that it is in is never unloaded."""
        self._table = _Table.from_address(table)
        self.layout = Layout.parse(self._table.layout.decode())

    def step(self, batch: BatchArrays, actions: int, out: BatchStep, stream: int = 0) -> None:
        """Step the environments that are not skipped, without resets; those between two episodes must be skipped.

        Raises:
            BatchError: An action was none, and nothing moved; or environments threw, which stayed as they were, while
                the others were stepped. A GPU reports both later, as an error of CUDA's.
        """
        _check(self._table.step, ctypes.addressof(batch), actions, ctypes.addressof(out), stream)

    def step_round(self, batch: BatchArrays, actions: int, out: BatchRow, stream: int = 0) -> None:
        """Step all environments, and begin the next episode where one ended; errors as of `step`."""
        _check(self._table.step_round, ctypes.addressof(batch), actions, ctypes.addressof(out), stream)

    def begin(self, batch: BatchArrays, chosen: int, observation: int, stream: int = 0) -> None:
        """Begin the next episode of those in `chosen`, bool, and observe them; errors of environments as of `step`."""
        _check(self._table.begin, ctypes.addressof(batch), chosen, observation, stream)

    def observe(self, batch: BatchArrays, observation: int, stream: int = 0) -> None:
        """Observe all environments."""
        _check(self._table.observe, ctypes.addressof(batch), observation, stream)


def _check(work: Callable[..., Any], *arguments: int) -> None:
    failure = work(*arguments)
    if failure is not None:
        raise BatchError(failure.decode(errors="replace"))

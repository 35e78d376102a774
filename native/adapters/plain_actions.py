"""Actions of wrapped environments that are one choice or one array of floats, checked and converted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

if TYPE_CHECKING:
    from gymnasium.spaces import Space
    from numpy.typing import NDArray

    from penstock.native.interface import ActionFormat

_LEAST, _MOST = np.minimum.reduce, np.maximum.reduce
"""As an array's `min` and `max`, in half the time where it is short."""


class WrappedActions:
    """The actions of `num_envs` environments with the action space `space`.

    Choices of `step` count from the space's start, or from 0 as those of rounds do.
    """

    def __init__(self, space: Space[Any], num_envs: int, *, from_zero: bool = False) -> None:
        self._from_zero = from_zero
        self._space = space
        self._first = 0
        self._count = 0
        self._dtype: np.dtype[Any] | None = None
        self._shape: tuple[int, ...] = (num_envs,)
        self._round_dtype: np.dtype[Any] = np.dtype(np.int64)
        self.spec: ActionFormat | None = None
        """The action space as plain data; None if a round cannot hold such actions."""
        if isinstance(space, Discrete):
            self._first, self._count, self._dtype = int(space.start), int(space.n), np.dtype(np.int64)
            self.spec = {"kind": "discrete", "dtype": "int64", "shape": (), "n": self._count}
        elif isinstance(space, Box) and np.issubdtype(space.dtype, np.floating):
            self._dtype, self._shape = np.dtype(space.dtype), (num_envs, *space.shape)
            self._round_dtype = np.dtype(np.float32)
            low, high = space.low.tolist(), space.high.tolist()
            self.spec = {"kind": "box", "dtype": "float32", "shape": space.shape, "low": low, "high": high}

    def for_step(self, actions: Any) -> Any:
        """Check and convert the actions of `step`; unchanged unless the space is Discrete or a float Box.

        Raises:
            ValueError: Type, shape or value; of spaces without an array, as Text, the number of actions alone.
        """
        if self._dtype is None:
            _check_batch(self._space, actions, self._shape[0], "actions")
            return actions
        array = np.asarray(actions)
        kinds, name = ("iu", "integers") if self._count else ("fiu", "floats")
        if array.dtype.kind not in kinds or array.shape != self._shape:
            raise ValueError(f"expected {name} of shape {self._shape} as actions, got {array.dtype} of {array.shape}")
        if self._from_zero and self._first:
            self._check_values(array, 0)
            return array.astype(self._dtype) + self._first
        if not self._count:
            return self._held(array)
        self._check_values(array, self._first)
        return array.astype(self._dtype, copy=False)

    def for_round(self, action: NDArray[Any]) -> NDArray[Any]:
        """Check the actions of `step_round`, int64 that counts from 0 or float32, and return them in another array.

        The environments may change what they get, and the caller stores what it gave.
        """
        if action.dtype != self._round_dtype or action.shape != self._shape or not action.flags.c_contiguous:
            raise ValueError(
                f"actions: expected a C-contiguous {self._round_dtype} array of shape {self._shape}, got "
                f"{action.dtype} {action.shape}"
            )
        if not self._count:
            return self._held(action.copy())
        self._check_values(action, 0)
        return action + self._first if self._first else action.astype(self._dtype)

    def _held(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return numbers in the space's own type, which must be finite in it."""
        with np.errstate(over="ignore"):
            held = array.astype(self._dtype, copy=False)
        if not np.isfinite(held).all():
            wrong = int(np.argwhere(~np.isfinite(held))[0][0])
            raise ValueError(f"action of environment {wrong} is not finite as {self._dtype}: got {array[wrong]}")
        return held

    def _check_values(self, array: NDArray[Any], first: int) -> None:
        last = first + self._count - 1
        if _LEAST(array) < first or _MOST(array) > last:
            wrong = int(np.flatnonzero((array < first) | (array > last))[0])
            raise ValueError(
                f"action {array[wrong]} of environment {wrong} is out of range: expected {first} to {last}"
            )


def _check_batch(space: Space[Any], actions: Any, count: int, name: str) -> None:
    """Refuse what is no batch of `count` actions of a space, as Gymnasium's `batch_space` has it."""
    if isinstance(space, Dict):
        if not isinstance(actions, Mapping) or set(actions) != set(space.spaces):
            found = sorted(map(str, actions)) if isinstance(actions, Mapping) else type(actions).__name__
            raise ValueError(f"{name}: expected a dictionary of {sorted(map(str, space.spaces))}, got {found}")
        for key, part in space.spaces.items():
            _check_batch(part, actions[key], count, f"{name}[{key!r}]")
    elif isinstance(space, Tuple):
        if not isinstance(actions, (tuple, list)) or len(actions) != len(space.spaces):
            raise ValueError(f"{name}: expected a tuple of {len(space.spaces)} parts, got {actions!r:.100}")
        for index, part in enumerate(space.spaces):
            _check_batch(part, actions[index], count, f"{name}[{index}]")
    elif isinstance(space, (Box, Discrete, MultiBinary, MultiDiscrete)):
        _check_array(space, np.asarray(actions), (count, *(space.shape or ())), name)
    elif not hasattr(actions, "__len__") or len(actions) != count:
        raise ValueError(f"{name}: expected {count} actions of {space}, got {actions!r:.100}")


def _check_held(dtype: np.dtype[Any], array: NDArray[Any], name: str) -> None:
    """Refuse what an integer type, or a bool, cannot hold: values beyond the bounds alone are the environment's."""
    if array.dtype.kind == "b":
        return
    first, last = (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    if array.dtype.kind == "f":  # as a float the greatest number of 64 bits is the one after it
        array = array.astype(np.float64)
        wrong = (array < first) | (array >= float(last + 1))
    else:
        wrong = (array < first) | (array > last)
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0].tolist())
        raise ValueError(f"{name}: {array[place]} of environment {place[0]} is no {dtype}: expected {first} to {last}")


def _check_array(space: Any, array: NDArray[Any], shape: tuple[int, ...], name: str) -> None:
    if array.dtype.kind not in "bfiu" or array.shape != shape:
        raise ValueError(f"{name}: expected {space.dtype} of shape {shape}, got {array.dtype} of {array.shape}")
    if isinstance(space, Box) and np.issubdtype(space.dtype, np.floating):
        return
    if array.dtype.kind == "f" and not (array == np.trunc(array)).all():
        raise ValueError(f"{name}: expected whole numbers, got {array[array != np.trunc(array)][0]}")
    if isinstance(space, Box):
        _check_held(space.dtype, array, name)
        return
    if isinstance(space, MultiBinary):
        first, last = 0, np.ones(space.shape, np.int64)
    else:
        first = space.start
        last = first + (space.nvec if isinstance(space, MultiDiscrete) else space.n) - 1
    wrong = (array < first) | (array > last)
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0].tolist())
        low, high = (int(np.broadcast_to(bound, shape)[place]) for bound in (first, last))
        raise ValueError(f"{name}: {array[place]} of environment {place[0]} is out of range: expected {low} to {high}")

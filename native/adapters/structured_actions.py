"""Turns structured actions into vectors of numbers and back, so that rounds, shards and networks need one array.

A structured action is MultiDiscrete, MultiBinary, a Box of integers, or a Dict or Tuple of such, of Discrete and of
Boxes, nested as deep as one likes. Its vector has the numbers of its leaves, one after the other: those of a Dict in
the alphabetical order of its keys, and arrays in row-major order. A choice is its place among the choices, from 0
whatever the space's start. A number of a Box is from -1 at its lower bound to 1 at its upper one, if all bounds of that
Box are finite and none are more than 2**24 apart; otherwise it is itself. What an environment gets is within its
bounds, and integers are rounded to the nearest.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector.utils import batch_space

from penstock.native.interface import ActionLeafFormat

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gymnasium.spaces import Space
    from numpy.typing import NDArray

    from penstock.native.interface import ActionFormat

MOST_CHOICES = 1 << 24
"""Float32 holds whole numbers up to this one."""
_WIDEST = float(1 << 24)
_INTEGER_LIMIT = float(1 << 53)
"""Float64 holds whole numbers up to this one; wider bounds of integers are narrowed to it."""


class UnsupportedActionError(ValueError):
    """A space has a part that no vector of numbers can hold; the message names it."""


def is_structured(space: Space[Any]) -> bool:
    """Return whether actions are neither one choice nor one array of floats."""
    return not (isinstance(space, Discrete) or (isinstance(space, Box) and np.issubdtype(space.dtype, np.floating)))


class _Choices:
    """Choices: Discrete, MultiDiscrete or MultiBinary."""

    def __init__(self, name: str, space: Discrete | MultiDiscrete | MultiBinary) -> None:
        self._shape, self._dtype = tuple(space.shape or ()), np.dtype(space.dtype or np.int64)
        if isinstance(space, MultiBinary):
            sizes, start = np.full(self._shape, 2), np.zeros(self._shape, np.int64)
        else:
            sizes = np.asarray(space.n if isinstance(space, Discrete) else space.nvec, dtype=np.int64)
            start = np.broadcast_to(np.asarray(space.start, dtype=np.int64), self._shape)
        self.count = prod(self._shape)
        if self.count and sizes.max() > MOST_CHOICES:
            raise UnsupportedActionError(
                f"{_named(name)} has {sizes.max():,} choices, expected at most {MOST_CHOICES:,}, as float32 holds them"
            )
        self._start = start
        self.low, self.high = np.zeros(self.count), sizes.reshape(-1) - 1.0
        self.formats = [
            ActionLeafFormat(
                name=name,
                kind="discrete",
                dtype=str(self._dtype),
                shape=self._shape,
                sizes=sizes.reshape(-1).tolist(),
                start=start.reshape(-1).tolist(),
            )
        ]

    def decode(self, part: NDArray[Any]) -> Any:
        whole = part.reshape((*part.shape[:-1], *self._shape)).astype(np.int64)
        return (whole + self._start).astype(self._dtype)

    def encode(self, action: Any) -> NDArray[np.float64]:
        array = np.asarray(action, dtype=np.int64) - self._start
        return _flat(array, self._shape).astype(np.float64)


class _Numbers:
    """The numbers of a Box."""

    def __init__(self, name: str, space: Box) -> None:
        self._shape, self._dtype = space.shape, np.dtype(space.dtype or np.float32)
        self.count = prod(self._shape)
        below, above = space.bounded_below.reshape(-1), space.bounded_above.reshape(-1)
        low = np.where(below, space.low.reshape(-1).astype(np.float64), -np.inf)
        high = np.where(above, space.high.reshape(-1).astype(np.float64), np.inf)
        # Half of each, since the range of a Box of float64 may itself be no float64.
        self._half, self._centre = high / 2 - low / 2, np.zeros(self.count)
        scaled = bool((self._half <= _WIDEST / 2).all())
        if scaled:
            self._centre = low / 2 + high / 2
        else:
            self._half = np.ones(self.count)
        self._is_whole = not np.issubdtype(self._dtype, np.floating)
        self._least, self._most = low, high
        if self._is_whole and self._dtype != np.bool_:
            info = np.iinfo(self._dtype.name)
            self._least = np.maximum(low, max(float(info.min), -_INTEGER_LIMIT))
            self._most = np.minimum(high, min(float(info.max), _INTEGER_LIMIT))
        self.low: NDArray[np.float64] = -np.ones(self.count) if scaled else low
        self.high: NDArray[np.float64] = np.ones(self.count) if scaled else high
        self.formats = [
            ActionLeafFormat(
                name=name,
                kind="box",
                dtype=str(self._dtype),
                shape=self._shape,
                low=low.tolist(),
                high=high.tolist(),
                scaled=scaled,
            )
        ]

    def decode(self, part: NDArray[Any]) -> Any:
        values = np.clip(self._centre + self._half * part.astype(np.float64), self._least, self._most)
        values = np.rint(values) if self._is_whole else values
        with np.errstate(over="ignore"):  # a bound of a Box of float32 is one of float32 again
            return np.asarray(values, dtype=self._dtype).reshape((*part.shape[:-1], *self._shape))

    def encode(self, action: Any) -> NDArray[np.float64]:
        flat = _flat(np.asarray(action, dtype=np.float64), self._shape)
        half = np.where(self._half == 0, 1.0, self._half)
        encoded: NDArray[np.float64] = (flat - self._centre) / half
        return encoded


class _Parts:
    """A Dict or a Tuple."""

    def __init__(self, name: str, space: Dict | Tuple[Any]) -> None:
        # Gymnasium keeps the order in which a Dict was made or sorts it, by its version; Minari sorts it.
        named: Iterable[tuple[Any, Space[Any]]] = (
            sorted(space.spaces.items(), key=lambda item: str(item[0]))
            if isinstance(space, Dict)
            else enumerate(space.spaces)
        )
        parts: dict[Any, _Choices | _Numbers | _Parts] = {
            key: _part(f"{name}/{key}" if name else str(key), one) for key, one in named
        }
        self._parts, self._is_tuple = parts, isinstance(space, Tuple)
        self.count: int = sum(part.count for part in parts.values())
        self.formats: list[ActionLeafFormat] = [leaf for part in parts.values() for leaf in part.formats]
        self.low: NDArray[np.float64] = np.concatenate([np.zeros(0), *(part.low for part in parts.values())])
        self.high: NDArray[np.float64] = np.concatenate([np.zeros(0), *(part.high for part in parts.values())])

    def decode(self, part: NDArray[Any]) -> Any:
        found, first = {}, 0
        for key, one in self._parts.items():
            found[key] = one.decode(part[..., first : first + one.count])
            first += one.count
        return tuple(found.values()) if self._is_tuple else found

    def encode(self, action: Any) -> NDArray[np.float64]:
        return np.concatenate([one.encode(action[key]) for key, one in self._parts.items()], -1)


def _part(name: str, space: Space[Any]) -> _Choices | _Numbers | _Parts:
    if isinstance(space, (Discrete, MultiDiscrete, MultiBinary)):
        return _Choices(name, space)
    if isinstance(space, Box):
        return _Numbers(name, space)
    if isinstance(space, (Dict, Tuple)):
        return _Parts(name, space)
    raise UnsupportedActionError(f"{_named(name)} is {space}, which is no fixed number of choices and numbers")


class ActionVectors:
    """The vectors of an action space.

    Raises:
        UnsupportedActionError: no vector can hold such actions, or there is nothing to hold.
    """

    def __init__(self, space: Space[Any]) -> None:
        self._root = _part("", space)
        self.count = self._root.count
        """Numbers of a vector."""
        self.low: NDArray[np.float64] = self._root.low
        """The smallest value of each number, `[count]`."""
        self.high: NDArray[np.float64] = self._root.high
        if not self.count:
            raise UnsupportedActionError(f"{space} has no number, expected one choice or number at least")
        leaves = self._root.formats
        self.format: ActionFormat = {
            "kind": "structured",
            "dtype": "float32",
            "shape": (self.count,),
            "leaves": leaves,
        }
        self._is_choice = np.repeat([leaf["kind"] == "discrete" for leaf in leaves], [*_counts(leaves)])
        self._names = [leaf["name"] for leaf in leaves for _ in range(prod(leaf["shape"]))]

    def decode(self, vectors: NDArray[Any]) -> Any:
        """Return the environment's action of a vector `[count]`; of `[B, count]` those of B, as `batch_space` has them.

        Vectors are not checked; numbers beyond their bounds become these.
        """
        return self._root.decode(vectors)

    def encode(self, actions: Any) -> NDArray[np.float32]:
        """Return the vector `[count]` of an environment's action; of a batch of them, as above, `[B, count]`."""
        return self._root.encode(actions).astype(np.float32)

    def check(self, vectors: NDArray[Any]) -> None:
        """Refuse vectors `[B, count]` of which a choice is none, or a number is not finite.

        Raises:
            ValueError: names the environment and the part.
        """
        is_place = (vectors >= 0) & (vectors <= self.high) & (vectors == np.floor(vectors))
        right = np.where(self._is_choice, is_place, np.isfinite(vectors))
        if right.all():
            return
        environment, number = np.argwhere(~right)[0].tolist()
        expected = f"a whole number from 0 to {self.high[number]:g}" if self._is_choice[number] else "a finite number"
        raise ValueError(
            f"action of environment {environment}: {_named(self._names[number])} (number {number} of the vector) is "
            f"{vectors[environment, number]}, expected {expected}"
        )


class Vectors(Protocol):
    """The vectors of actions: `ActionVectors`, or a team's."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]

    def encode(self, actions: Any, /) -> NDArray[np.float32]:
        """Return the vectors of one environment's action, or of a batch."""


class VectorSpace(Box):
    """The space of vectors of an action space, from which only vectors of actions are drawn."""

    def __init__(self, space: Space[Any], vectors: Vectors, num_envs: int | None = None) -> None:
        shape = vectors.low.shape if num_envs is None else (num_envs, *vectors.low.shape)
        low, high = (np.broadcast_to(bound, shape).astype(np.float32) for bound in (vectors.low, vectors.high))
        super().__init__(low, high, dtype=np.float32)
        self._own = space if num_envs is None else batch_space(space, num_envs)
        self._vectors = vectors

    def seed(self, seed: Any = None) -> Any:
        """Seed the draws."""
        self._own.seed(seed)
        return super().seed(seed)

    def sample(self, mask: None = None, probability: None = None) -> NDArray[Any]:
        """Draw the vector of an action that the environment's own space draws."""
        if mask is not None or probability is not None:
            raise ValueError("mask and probability are for the environment's own action space; leave them out")
        return self._vectors.encode(self._own.sample())


class StructuredActions:
    """The actions of `num_envs` environments as vectors, checked and turned into the environments' own."""

    def __init__(self, space: Space[Any], num_envs: int) -> None:
        self._vectors = ActionVectors(space)
        self._shape = (num_envs, self._vectors.count)
        self.spec: ActionFormat | None = self._vectors.format
        self.single_space, self.space = (VectorSpace(space, self._vectors, count) for count in (None, num_envs))

    def for_step(self, actions: Any) -> Any:
        """Check and convert the vectors of `step`, numbers `[num_envs, count]`."""
        array = np.asarray(actions)
        if array.dtype.kind not in "fiub" or array.shape != self._shape:
            raise ValueError(
                f"expected vectors of numbers of shape {self._shape} as actions, got {array.dtype} of {array.shape}"
            )
        self._vectors.check(array)
        return self._vectors.decode(array)

    def for_round(self, action: NDArray[Any]) -> Any:
        """Check and convert the vectors of `step_round`: float32 `[num_envs, count]`."""
        if action.dtype != np.float32 or action.shape != self._shape or not action.flags.c_contiguous:
            raise ValueError(
                f"actions: expected a C-contiguous float32 array of shape {self._shape}, got {action.dtype} "
                f"{action.shape}"
            )
        return self.for_step(action)


def own_action(space: Space[Any], stored: NDArray[Any]) -> Any:
    """Return the action that an environment takes for one that rounds and shards hold, or a batch of them for a batch.

    Args:
        space: the environment's own action space.
        stored: a vector or `[B, count]` for structured actions; a choice from 0 or `[B]`; others stay as they are.
    """
    if isinstance(space, Discrete):
        return stored + space.dtype.type(space.start) if space.start else stored
    return ActionVectors(space).decode(stored) if is_structured(space) else stored


def stored_action(space: Space[Any], own: Any) -> Any:
    """Return what rounds and shards hold for an environment's action, or a batch of them: undoes `own_action`."""
    if isinstance(space, Discrete):
        return np.asarray(own) - space.dtype.type(space.start) if space.start else own
    return ActionVectors(space).encode(own) if is_structured(space) else own


def leaf_formats(space: Space[Any]) -> list[ActionLeafFormat]:
    """Return the leaves of a structured action space, in the order in which vectors hold them."""
    return ActionVectors(space).format["leaves"]


def _flat(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return an array `[..., *shape]` as `[..., numbers]`."""
    outer = array.shape[: array.ndim - len(shape)]
    return array.reshape(*outer, prod(shape))


def _counts(leaves: list[ActionLeafFormat]) -> Iterator[int]:
    return (prod(leaf["shape"]) for leaf in leaves)


def _named(name: str) -> str:
    return f"'{name}'" if name else "the action"

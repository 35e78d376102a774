"""Encodes observations as one array of numbers: choices as one-hot, tuples and dictionaries flattened.

What Gymnasium's FlattenObservation does, with floats in place of integers, since rounds and networks hold those. On
request the array's space says which leaves it is made of, and the array begins with the mask of allowed choices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.spaces.utils import flatdim, flatten, flatten_space
from gymnasium.wrappers import TransformObservation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import gymnasium
    from gymnasium.spaces import Space
    from numpy.typing import NDArray

    from penstock.native.interface import LeafFormat, ObservationFormat

MaskSource: TypeAlias = Literal["info", "observation"]
MASK = "action_mask"
"""The key of the mask in infos and observations, and the name of its leaf."""
_EVERYTHING = "value"
"""The name of the leaf where an observation is a single one."""
_EXACT = {"float32": 1 << 24, "float64": 1 << 53}
"""Whole numbers up to these are exact in the type."""
_BYTES, _SMALLEST_SIDE, _IMAGE_AXES = 255, 3, (2, 3)


def is_one_array(space: Space[Any]) -> bool:
    """Return whether observations are arrays of numbers with at least one dimension."""
    return isinstance(space, (Box, MultiBinary, MultiDiscrete)) and bool(space.shape)


class OneArray(Box):
    """The space of an encoded observation.

    Attributes:
        leaves: the parts of the array in order, the mask among them; () if it is not described.
        behind_mask: shape of what follows the mask; None if there is no mask.
    """

    def __init__(
        self,
        low: NDArray[Any],
        high: NDArray[Any],
        dtype: np.dtype[Any],
        leaves: Sequence[LeafFormat] = (),
        behind_mask: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__(low.astype(dtype), high.astype(dtype), dtype=dtype.type)
        self.leaves = tuple(leaves)
        self.behind_mask = behind_mask


def as_one_array(env: gymnasium.Env[Any, Any], *, structured: bool = False) -> gymnasium.Env[Any, Any]:
    """Return the environment, wrapped unless it observes one array; one that can't be encoded stays as it is.

    Args:
        env: an environment of Gymnasium.
        structured: describe the leaves, and hold each exactly: the array is then float32, or float64 if a leaf has
            numbers that float32 does not hold. Otherwise it has the type that FlattenObservation gives it, float32 in
            place of integers.

    Raises:
        ValueError: two leaves of a structured observation have one name.
    """
    space = env.observation_space
    if is_one_array(space) or not space.is_np_flattenable:
        return env
    flat = flatten_space(space)
    if not isinstance(flat, Box):
        return env
    if structured:
        encode, encoded = _structured(space, flat)
        return TransformObservation(env, encode, encoded)
    dtype = _float_of(flat.dtype)

    def flattened(observation: Any) -> Any:
        return flatten(space, observation).astype(dtype)  # type: ignore[union-attr]

    return TransformObservation(env, flattened, OneArray(flat.low, flat.high, dtype))


def observation_format(space: Space[Any]) -> ObservationFormat:
    """Return the format of observations that are arrays, and of their leaves where the space describes them."""
    described: ObservationFormat = {"dtype": str(space.dtype), "shape": tuple(space.shape or ())}
    if isinstance(space, OneArray) and space.leaves:
        described["leaves"] = space.leaves
    if isinstance(space, OneArray) and space.behind_mask is not None:
        described["behind_mask"] = space.behind_mask
    return described


def leaves_of(
    space: Space[Any], path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], Space[Any]]]:
    """Yield the spaces that are no Dict or Tuple, in the order of Gymnasium's `flatten`, each after its path."""
    if isinstance(space, (Dict, Tuple)):
        parts = space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces)
        for key, part in parts:
            yield from leaves_of(part, (*path, key))
    else:
        yield path, space


def leaf_name(path: Sequence[str | int]) -> str:
    """Return the name of the leaf at a path, such as `arm.position`."""
    return ".".join(map(str, path)) or _EVERYTHING


def _structured(space: Space[Any], flat: Box) -> tuple[Callable[[Any], NDArray[Any]], OneArray]:
    """Return how an observation of the space is encoded with exact leaves, and the space of the result."""
    spaces = dict(leaves_of(space))
    dtype = np.dtype("float32" if all(_is_exact(each, "float32") for each in spaces.values()) else "float64")
    leaves = [_described(leaf_name(path), each, dtype) for path, each in spaces.items() if flatdim(each)]
    names = [leaf["name"] for leaf in leaves]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"the observation space {space} has two leaves called {twice[0]!r}, since keys with a dot look like nested "
            f"ones: rename a key, or leave out structured"
        )
    widths = [flatdim(each) for each in spaces.values()]

    def encode(observation: Any) -> NDArray[Any]:
        array, start = np.empty(sum(widths), dtype), 0
        for (path, each), width in zip(spaces.items(), widths, strict=True):
            value = observation
            for key in path:
                value = value[key]
            array[start : start + width] = flatten(each, value)
            start += width
        return array

    return encode, OneArray(flat.low, flat.high, dtype, leaves)


def _described(name: str, space: Space[Any], array: np.dtype[Any]) -> LeafFormat:
    if isinstance(space, (Discrete, MultiDiscrete)):
        sizes = [int(space.n)] if isinstance(space, Discrete) else space.nvec.ravel().tolist()
        return _leaf(name, "choice", "int64", space.shape or (), sizes)
    if isinstance(space, MultiBinary):
        return _leaf(name, "bits", str(space.dtype), space.shape)
    held = space if isinstance(space, Box) else flatten_space(space)
    assert isinstance(held, Box)
    if held.dtype.kind == "b":
        return _leaf(name, "bits", "uint8", held.shape)
    if _is_image(held):
        return _leaf(name, "image", "uint8", held.shape)
    return _leaf(name, "numbers", str(held.dtype if _is_exact(held, array.name) else array), held.shape)


def _leaf(
    name: str,
    kind: Literal["numbers", "image", "choice", "bits"],
    dtype: str,
    shape: Sequence[int],
    sizes: Sequence[int] = (),
) -> LeafFormat:
    return {"name": name, "kind": kind, "dtype": dtype, "shape": tuple(shape), "sizes": tuple(sizes)}


def _is_image(space: Box) -> bool:
    """Return whether a space is of pixels from 0 to 255, `[height, width]` with channels last, first or none."""
    if space.dtype != np.uint8 or len(space.shape) not in _IMAGE_AXES:
        return False
    sides = sorted(space.shape)[-2:]
    return min(sides) >= _SMALLEST_SIDE and not space.low.any() and bool((space.high == _BYTES).all())


def _is_exact(space: Space[Any], dtype: str) -> bool:
    """Return whether a float type holds every value of a leaf exactly."""
    if isinstance(space, (Discrete, MultiDiscrete, MultiBinary)):
        return True
    held = space if isinstance(space, Box) else flatten_space(space)
    assert isinstance(held, Box)
    if held.dtype.kind not in "iu":
        return bool(np.can_cast(held.dtype, dtype))
    largest = max(abs(int(value)) for value in (held.low.min(initial=0), held.high.max(initial=0)))
    return largest <= _EXACT[dtype]


def _float_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype if np.issubdtype(dtype, np.floating) else np.dtype(np.float32)

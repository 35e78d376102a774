"""Encodes observations as one array of numbers: choices as one-hot, tuples and dictionaries flattened.

What Gymnasium's FlattenObservation does, with floats in place of integers, since rounds and networks hold those. On
request the array's space says which leaves it is made of, and the array begins with the mask of allowed choices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from gymnasium.spaces.utils import flatdim, flatten, flatten_space
from gymnasium.wrappers import TransformObservation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gymnasium.spaces import Space
    from numpy.typing import NDArray

    from penstock.native.interface import ObservationFormat, ObservationLeafFormat

MaskSource: TypeAlias = Literal["info", "observation"]
MASK = "action_mask"
"""The key of the mask in infos and observations, and the name of its leaf."""
_EVERYTHING = "value"
"""The name of the leaf where an observation is a single one."""
_EXACT = {"float32": 1 << 24, "float64": 1 << 53}
"""Whole numbers up to these are exact in the type."""
_BYTES, _SMALLEST_SIDE, _IMAGE_AXES = 255, 3, (2, 3)


@dataclass(frozen=True, slots=True)
class Encoding:
    """Options of one array, as `native.make` takes them."""

    one_array: bool = False
    structured: bool = False
    action_mask: MaskSource | None = None


PLAIN = Encoding()
"""Observations as the environment has them."""


def is_one_array(space: Space[Any]) -> bool:
    """Return whether observations are arrays of numbers with at least one dimension."""
    return isinstance(space, (Box, MultiBinary, MultiDiscrete)) and bool(space.shape)


@dataclass(frozen=True, slots=True)
class Encoder:
    """Makes the array of an observation; a single array stays as it is. Plain data: spaces go to other processes."""

    space: Space[Any]
    dtype: np.dtype[Any]
    structured: bool = False
    """True if every leaf is converted by itself, so that none passes through another's type."""

    def __call__(self, observation: Any) -> NDArray[Any]:
        """Return the array."""
        if is_one_array(self.space):
            return np.asarray(observation)
        if not self.structured:
            return flatten(self.space, observation).astype(self.dtype)  # type: ignore[union-attr]
        parts = []
        for path, space in leaves_of(self.space):
            value = observation
            for key in path:
                value = value[key]
            parts.append(np.asarray(flatten(space, value)))
        return np.concatenate(parts, dtype=self.dtype, casting="unsafe")


@dataclass(frozen=True, slots=True)
class MaskedEncoder:
    """Makes the array of a Dict observation that begins with its mask."""

    space: Space[Any]
    rest: Encoder
    key: str | None
    """The only part besides the mask, if that is encoded by itself."""

    def __call__(self, observation: Any) -> NDArray[Any]:
        """Return the array."""
        return self.join(observation[MASK], observation)

    def join(self, mask: Any, observation: Any) -> NDArray[Any]:
        """Return the array of an observation whose mask is somewhere else."""
        rest = self.rest(observation if self.key is None else observation[self.key])
        return np.concatenate([np.ravel(mask), np.ravel(rest)]).astype(self.rest.dtype)


class ArrayEncoder(Protocol):
    """Makes the array of an observation of its space."""

    @property
    def space(self) -> Space[Any]:
        """Return the space of the observations that it takes."""

    def __call__(self, observation: Any) -> NDArray[Any]:
        """Return the array."""


class OneArray(Box):
    """The space of an encoded observation.

    Attributes:
        leaves: the parts of the array in order, the mask among them; () if it is not described.
        behind_mask: shape of what follows the mask; None if there is no mask.
        encode: makes the array of an observation of the space `encode.space`; None if the mask is
            somewhere else.
        texts: names of the leaves that are texts, in whose place are the numbers of their characters.
    """

    def __init__(
        self,
        low: NDArray[Any],
        high: NDArray[Any],
        dtype: np.dtype[Any],
        leaves: Sequence[ObservationLeafFormat] = (),
        behind_mask: tuple[int, ...] | None = None,
        encode: ArrayEncoder | None = None,
        texts: Sequence[str] = (),
    ) -> None:
        super().__init__(low.astype(dtype), high.astype(dtype), dtype=dtype.type)
        self.leaves = tuple(leaves)
        self.behind_mask = behind_mask
        self.encode = encode
        self.texts = tuple(texts)


def as_one_array(
    env: gymnasium.Env[Any, Any], *, structured: bool = False, action_mask: MaskSource | None = None
) -> gymnasium.Env[Any, Any]:
    """Return the environment, wrapped unless it observes one array; one that can't be encoded stays as it is.

    Args:
        env: an environment of Gymnasium.
        structured: describe the leaves, and hold each exactly: the array is then float32, or float64 if a leaf has
            numbers that float32 does not hold. Otherwise it has the type that FlattenObservation gives it, float32 in
            place of integers.
        action_mask: where the mask of allowed choices is, under the key `action_mask`: among the infos, or in a Dict
            observation. The array then begins with it; a single array behind it keeps its type.

    Raises:
        ValueError: two leaves of a structured observation have one name; or there can be no such mask.
    """
    space = env.observation_space
    if not action_mask and is_one_array(space):
        return env
    if not space.is_np_flattenable:
        return env
    if not action_mask:
        encode, encoded = encoding(space, structured=structured)
        return TransformObservation(env, encode, encoded)
    return MaskedArray(env, action_mask, structured=structured)


class MaskedArray(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Puts the mask of allowed choices in front of the array of an observation."""

    def __init__(self, env: gymnasium.Env[Any, Any], source: MaskSource, *, structured: bool) -> None:
        super().__init__(env)
        self._from_infos = source == "info"
        spaces = env.observation_space, env.action_space
        self._encoder, self.observation_space = masked_encoding(*spaces, source, structured=structured)
        self._choices = flatdim(env.action_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, and put the mask in front."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._masked(observation, info, ended=False), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, and put the mask in front."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        masked = self._masked(observation, info, ended=terminated or truncated)
        return masked, reward, terminated, truncated, info

    def _masked(self, observation: Any, info: Mapping[str, Any], *, ended: bool) -> NDArray[Any]:
        source = info if self._from_infos else observation
        mask = source.get(MASK)
        if mask is None and ended:
            mask = np.ones(self._choices)  # nothing is chosen after the end, and many environments leave it out
        if mask is None or np.shape(mask) != (self._choices,) or not np.isin(mask, (0, 1)).all():
            raise ValueError(
                f"'{MASK}' {'is missing' if mask is None else f'is {mask!r}'}, expected 0 or 1 for each of the "
                f"{self._choices} choices, in every reset and step"
            )
        return self._encoder.join(mask, observation)


def masked_encoding(
    space: Space[Any], actions: Space[Any], source: MaskSource, *, structured: bool
) -> tuple[MaskedEncoder, OneArray]:
    """Return how observations are encoded as one array that begins with the mask, and the space of the result.

    Raises:
        ValueError: the actions are no choice, or the observations have no such mask.
    """
    if not isinstance(actions, Discrete):
        raise ValueError(f"action_mask: the actions are {actions}, expected Discrete ones; leave it out")  # noqa: TRY004
    choices = int(actions.n)
    rest, key = (space, None) if source == "info" else _without_mask(space, choices)
    encode, encoded = encoding(rest, structured=structured)
    encoder = MaskedEncoder(space, encode, key)
    mask = _leaf(MASK, "bits", "int8", (choices,))
    return encoder, OneArray(
        np.concatenate([np.zeros(choices), encoded.low.ravel()]),
        np.concatenate([np.ones(choices), encoded.high.ravel()]),
        encoded.dtype,
        (mask, *encoded.leaves) if encoded.leaves else (),
        encoded.shape,
        None if source == "info" else encoder,
        encoded.texts,
    )


def _without_mask(space: Space[Any], choices: int) -> tuple[Space[Any], str | None]:
    """Return the space of the rest: a Dict, or the only array that is left, and its key."""
    mask = space.spaces.get(MASK) if isinstance(space, Dict) else None
    if not isinstance(space, Dict) or mask is None or flatdim(mask) != choices:
        raise ValueError(
            f"action_mask = 'observation': the observation space is {space}, expected a Dict whose '{MASK}' has a "
            f"number for each of the {choices} choices; correct it, or choose 'info'"
        )
    rest = {key: part for key, part in space.spaces.items() if key != MASK}
    key = next(iter(rest)) if len(rest) == 1 and is_one_array(next(iter(rest.values()))) else None
    return (Dict(rest), None) if key is None else (rest[key], key)


def encoding(space: Space[Any], *, structured: bool) -> tuple[Encoder, OneArray]:
    """Return how observations are encoded as one array, and the space of the result; arrays stay as they are."""
    leaves: list[ObservationLeafFormat] = []
    if isinstance(space, Box) and space.shape:
        low, high, dtype = space.low, space.high, np.dtype(space.dtype)
    elif isinstance(space, (MultiBinary, MultiDiscrete)):
        low = space.start if isinstance(space, MultiDiscrete) else np.zeros(space.shape)
        high = low + space.nvec - 1 if isinstance(space, MultiDiscrete) else np.ones(space.shape)
        dtype = np.dtype(space.dtype)
    else:
        flat = flatten_space(space)
        assert isinstance(flat, Box)
        low, high, dtype = flat.low, flat.high, _float_of(flat.dtype)
        if structured:
            dtype, leaves = _structured(space)
    encode = Encoder(space, dtype, structured)
    texts = [leaf_name(path) for path, each in leaves_of(space) if isinstance(each, Text)]
    return encode, OneArray(low, high, dtype, leaves, encode=encode, texts=texts)


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


def unfit_leaf(space: Space[Any]) -> str:
    """Name what can't be part of an array, such as `its leaf 'items' is Sequence(Discrete(3))`; '' if all can."""
    for path, each in leaves_of(space):
        if not each.is_np_flattenable:
            return f"its leaf '{leaf_name(path)}' is {each}, of no fixed size" if path else "it has no fixed size"
    return ""


def _structured(space: Space[Any]) -> tuple[np.dtype[Any], list[ObservationLeafFormat]]:
    """Return the type of an array that holds every leaf exactly, and the leaves."""
    spaces = dict(leaves_of(space))
    dtype = exact_dtype(spaces.values())
    leaves = [leaf_format(leaf_name(path), each, dtype) for path, each in spaces.items() if flatdim(each)]
    names = [leaf["name"] for leaf in leaves]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"the observation space {space} has two leaves called {twice[0]!r}, since keys with a dot look like nested "
            f"ones: rename a key, or leave out structured"
        )
    return dtype, leaves


def exact_dtype(leaves: Iterable[Space[Any]]) -> np.dtype[Any]:
    """Return float32, or float64 if a leaf has numbers that float32 does not hold."""
    return np.dtype("float32" if all(_is_exact(each, "float32") for each in leaves) else "float64")


def leaf_format(name: str, space: Space[Any], array: np.dtype[Any]) -> ObservationLeafFormat:
    """Return the format of a leaf in an array of this type."""
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
) -> ObservationLeafFormat:
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

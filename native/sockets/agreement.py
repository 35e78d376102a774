"""Reads a server's answer to HELLO: the layouts of rows, and the spaces of Gymnasium that it describes."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from penstock.native.sockets import wire
from penstock.native.sockets.rows import Rows

if TYPE_CHECKING:
    from gymnasium.spaces import Space
    from numpy.typing import NDArray

_ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors that a description may cause which is none."""


@dataclass(frozen=True)
class Agreement:
    """The server's description of one environment."""

    version: int
    observation_space: Space[Any]
    action_space: Space[Any]
    max_episode_steps: int | None
    reward_threshold: float | None
    observations: Rows
    actions: Rows

    @property
    def compared(self) -> tuple[Any, ...]:
        """Return what describes the environment."""
        limits = self.max_episode_steps, self.reward_threshold
        return (self.observation_space, self.action_space, *limits, self.observations.choices)


def read_welcome(
    body: memoryview,
    name: str,
    num_envs: int,
    max_episode_steps: int | None,
    version: int = wire.VERSION,
    *,
    masks: bool = False,
) -> Agreement:
    """Return what a WELCOME says, which must be what was asked for; nothing is allocated by what it claims before.

    Raises:
        ValueError: It is none, or of other environments; the message goes on from the server's name.
    """
    answered, given_envs, *sizes = wire.WELCOME_HEAD.unpack(body[: wire.WELCOME_HEAD.size])
    try:
        described = json.loads(bytes(body[wire.WELCOME_HEAD.size :]), parse_constant=_refused_constant)
        given_name = described["name"]
        found = answered, given_envs, given_name
        if found != (version, num_envs, name):
            raise _OtherError(  # noqa: TRY301  (handled with the errors of the calls)
                f"gives {given_envs} environments {given_name!r} in version {answered} of the protocol, expected "
                f"{num_envs} of {name!r} in version {version}"
            )
        agreement = _agreement(described, version, num_envs, sizes, masks=masks)
    except _OtherError:
        raise
    except _ERRORS as error:
        raise ValueError(
            f"describes its environment otherwise than the protocol does ({type(error).__name__}: {str(error)[:300]})"
        ) from error
    asked = None if max_episode_steps == -1 else max_episode_steps
    if max_episode_steps is not None and agreement.max_episode_steps != asked:
        raise ValueError(f"limits episodes to {agreement.max_episode_steps} steps, expected {asked}")
    return agreement


class _OtherError(ValueError):
    """The description is one of the protocol, and not of what was asked for."""


def _agreement(described: Any, version: int, num_envs: int, sizes: list[int], *, masks: bool) -> Agreement:
    observation, action = described["observation"], described["action"]
    if version == wire.PLAIN_VERSION:
        observation = {**observation, "kind": "box"}
        if action["kind"] not in ("discrete", "box"):
            raise ValueError(f"actions are {action['kind']!r}")
    limit, threshold = described.get("max_episode_steps"), described.get("reward_threshold")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ValueError(f"max_episode_steps is {limit!r}")
    if threshold is not None and type(threshold) not in (int, float):
        raise ValueError(f"reward_threshold is {threshold!r}")
    given_masks = described.get("action_mask", False) if version != wire.PLAIN_VERSION else False
    if given_masks is not masks:
        raise _OtherError(f"gives action_mask {given_masks!r}, expected {masks}")
    actions = Rows(action)
    if masks and action["kind"] != "discrete":
        raise _OtherError(f"has actions of the kind {action['kind']}, expected Discrete ones with a mask")
    observations = Rows(observation, action["n"] if masks else 0)
    expected = [observations.bytes, actions.bytes]
    if sizes != expected:
        raise _OtherError(f"announces rows of {sizes} bytes, and describes rows of {expected}")
    if num_envs * (2 * observations.bytes + actions.bytes + 16) > wire.MAX_FRAME_BYTES:
        raise _OtherError(
            f"has observations of {observations.bytes} bytes, of which {num_envs} are too many for a frame"
        )
    spaces = _space(observation), _space(action)
    threshold = None if threshold is None else float(threshold)
    return Agreement(version, *spaces, limit, threshold, observations, actions)


def _space(described: Any) -> Space[Any]:
    """Return the space of a description that `Rows` has taken; raises ValueError where bounds are none."""
    kind = described["kind"]
    if kind == "dict":
        return Dict([(key, _space(part)) for key, part in described["parts"]])  # which keeps this order
    if kind == "tuple":
        return Tuple([_space(part) for part in described["parts"]])
    if kind == "multi_binary":
        shape = described["shape"]
        return MultiBinary(shape if len(shape) > 1 else shape[0])
    dtype = np.dtype(described.get("dtype", "int64"))
    if kind == "discrete":
        return Discrete(described["n"], start=described.get("start", 0), dtype=dtype.type)
    if kind == "multi_discrete":
        shape, count = described["shape"], math.prod(described["shape"])
        numbers = [
            np.array(part, dtype).reshape(shape) for part in (described["nvec"], described.get("start", [0] * count))
        ]
        return MultiDiscrete(numbers[0], dtype=dtype.type, start=numbers[1])
    low, high = (_bound(described.get(name), described["shape"], dtype, name) for name in ("low", "high"))
    if not (low <= high).all():
        raise ValueError("a lower bound is above the upper one")
    return Box(low, high, dtype=dtype.type)


def _bound(given: Any, shape: list[int], dtype: np.dtype[Any], name: str) -> NDArray[Any]:
    is_low = name == "low"
    if dtype.kind in "iu":
        unbounded: float = np.iinfo(dtype).min if is_low else np.iinfo(dtype).max
    else:
        unbounded = (0 if is_low else 1) if dtype.kind == "b" else (-np.inf if is_low else np.inf)
    parts = given if isinstance(given, list) else [given]
    types = (int, float, bool, type(None)) if dtype.kind == "f" else (int, bool, type(None))
    if len(parts) not in (1, math.prod(shape)) or any(type(part) not in types for part in parts):
        raise ValueError(f"{name} has {len(parts)} bounds, expected {dtype} numbers, one or {math.prod(shape)}")
    numbers = [unbounded if part is None else part for part in parts]
    with np.errstate(over="ignore"):
        values = np.array(numbers, np.float64).astype(dtype) if dtype.kind == "f" else np.array(numbers, dtype)
    return np.broadcast_to(values if len(values) > 1 else values[0], math.prod(shape)).reshape(shape)


def _refused_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")

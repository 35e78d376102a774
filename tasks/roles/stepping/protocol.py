"""The messages over a tile's link: its start, then for every step the actions, and the frame that answers them.

Both ends derive the same layout from the run's specs, so only a tile's start and the end of a round have a length
prefix. A step's frame begins with a word that is 0, or the length of an error text that follows the frame.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.native import RoundEnd
from penstock.storage.errors import CorruptObjectError
from penstock.storage.tensors import load_tensors, save_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from penstock.tasks.runtime.run_context import RunContext

ROUND_COLUMNS = ("observation", "reward", "terminated", "truncated", "episode_id")
"""Columns that a pool writes, in the order in which `begin_round` takes them."""

_WORD_BYTES = 8


class StepFrame:
    """One tile's frame of a step, allocated once.

    Attributes:
        whole, last: bytes of a frame with the observation, and of a round's last one, which ends before it.
        failure: uint64 `[1]`, the word at its beginning.
        reward: `[B]`, or `[B, agents]`; episode_id, terminated, truncated: `[B]`; of the step, types as `begin_round`
            takes them.
        observation: `[B, ...]`, after the step.
        action: `[B, ...]`, sent to the environments.
    """

    def __init__(self, context: RunContext) -> None:
        envs = context.config.environment.envs_per_tile
        observed = context.environment.observation
        shape, dtype = (envs, *observed.shape), np.dtype(observed.dtype)
        rewards = (envs, *context.environment.reward.shape)
        reward_bytes = 4 * math.prod(rewards)
        step_bytes = reward_bytes + 6 * envs
        # A multiple of the word, so that the observation behind it can be viewed as what it is.
        last_bytes = -(-(_WORD_BYTES + step_bytes) // _WORD_BYTES) * _WORD_BYTES
        frame = np.zeros(last_bytes + math.prod(shape) * dtype.itemsize, dtype=np.uint8)
        self.whole = frame.data
        self.last = self.whole[:last_bytes]
        self.failure: NDArray[np.uint64] = frame[:_WORD_BYTES].view(np.uint64)
        reward, episode_id, terminated, truncated = np.split(
            frame[_WORD_BYTES : _WORD_BYTES + step_bytes],
            [reward_bytes, reward_bytes + 4 * envs, reward_bytes + 5 * envs],
        )
        self.reward: NDArray[np.float32] = reward.view(np.float32).reshape(rewards)
        self.episode_id: NDArray[np.int32] = episode_id.view(np.int32)
        self.terminated: NDArray[np.uint8] = terminated
        self.truncated: NDArray[np.uint8] = truncated
        self.observation: NDArray[Any] = frame[last_bytes:].view(dtype).reshape(shape)
        action = context.environment.action.spec
        self.action: NDArray[Any] = np.zeros((envs, *action.shape), dtype=action.dtype)


def pack_end(end: RoundEnd, state: Mapping[str, NDArray[Any]], observation: NDArray[Any]) -> bytes:
    """Encode the end of a round, the state after it, and the next observation."""
    tensors = {f"state/{name}": array for name, array in state.items()}
    tensors |= {f"episodes/{name}": array for name, array in end.episodes.items()}
    tensors["end/bootstrap_rows"] = end.bootstrap_rows
    tensors["end/bootstrap_observation"] = end.bootstrap_observation
    return save_tensors({**tensors, "next/observation": observation}, {})


def unpack_end(message: memoryview, peer: str) -> tuple[RoundEnd, dict[str, NDArray[Any]], NDArray[Any]]:
    """Decode what `pack_end` returned; the arrays are views of the message.

    Raises:
        CorruptObjectError: it is not such a message.
    """
    what = f"end of a round from {peer}"
    parts: dict[str, dict[str, NDArray[Any]]] = {"state": {}, "episodes": {}, "end": {}, "next": {}}
    try:
        for name, array in load_tensors(message, what)[0].items():
            part, _, rest = name.partition("/")
            parts[part][rest] = array
        return RoundEnd(**parts["end"], episodes=parts["episodes"]), parts["state"], parts["next"]["observation"]
    except (KeyError, TypeError) as error:
        raise _unexpected(what, error) from error


def pack_start(first_round: int, seeded: bool, tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """Encode a tile's start: `seeds`, or a stored state. `first_round` is the first round to step."""
    return save_tensors(tensors, {"first_round": first_round, "seeded": seeded})


def unpack_start(message: memoryview, peer: str) -> tuple[int, bool, dict[str, NDArray[Any]]]:
    """Decode what `pack_start` returned; the arrays are views of the message.

    Raises:
        CorruptObjectError: it is not such a message.
    """
    what = f"start of a tile from {peer}"
    tensors, meta = load_tensors(message, what)
    first_round, seeded = meta.get("first_round"), meta.get("seeded")
    if type(first_round) is not int or type(seeded) is not bool:
        raise _unexpected(what, f"it has {meta}")
    return first_round, seeded, tensors


def _unexpected(what: str, found: object) -> CorruptObjectError:
    return CorruptObjectError(
        f"the {what} is not such a message: {found!r}. All processes of a run must have one version of Penstock"
    )

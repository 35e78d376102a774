"""One environment of a server as one of Gymnasium's, with its mask of allowed choices among its infos."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.spaces import Dict, Discrete, Tuple
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array

from penstock.native.adapters.one_array import MASK, Encoding
from penstock.native.sockets.batch import MISSING_MASK
from penstock.native.sockets.client import RefusedError
from penstock.native.sockets.source import socket_source
from penstock.native.sockets.vector import SocketVector

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gymnasium.spaces import Space


class ServedEnvironment(gymnasium.Env[Any, Any]):
    """Observes an environment of a server as the server sends it, and finds out whether its infos have a mask."""

    def __init__(self, environment_id: str, settings: Mapping[str, Any]) -> None:
        """Connect, and reset it once or twice.

        Raises:
            ValueError: Nothing answers, or the server refuses.
            RuntimeError: The environment fails in its first reset, or its mask is none.
        """
        self._id, self._settings = environment_id, settings
        self._vector = self._connected(Encoding())
        self.observation_space = self._vector.single_observation_space
        self.action_space = self._vector.single_action_space
        in_space = isinstance(self.observation_space, Dict) and MASK in self.observation_space.spaces
        try:
            self._vector.reset(seed=0)
            if isinstance(self.action_space, Discrete) and not in_space:
                self._ask_for_masks()
        except BaseException:
            self._vector.close()
            raise

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed, options=options)
        return self._shown(self._vector.reset(seed=seed)[0])

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step; at an episode's end the mask is already that of the next one."""
        room: Any = create_empty_array(self.action_space, 1)
        actions = concatenate(self.action_space, [action], room)
        seen, reward, terminated, truncated, _ = self._vector.step(actions)
        observation, info = self._shown(seen)
        return observation, float(reward[0]), bool(terminated[0]), bool(truncated[0]), info

    def close(self) -> None:
        """End the connection."""
        self._vector.close()

    def _connected(self, encoding: Encoding) -> SocketVector:
        vector = socket_source(self._id, 1, 1, None, self._settings, encoding).build(AutoresetMode.NEXT_STEP)
        assert isinstance(vector, SocketVector)
        return vector

    def _ask_for_masks(self) -> None:
        """Go on with a connection that has masks, if the server has any."""
        try:
            masked = self._connected(Encoding(action_mask="info"))
        except ValueError as error:
            if isinstance(error.__cause__, RefusedError):  # a server in C, or of version 1
                return
            raise
        try:
            masked.reset(seed=0)
        except RefusedError as error:
            masked.close()
            if MISSING_MASK in str(error):
                return
            raise
        self._vector.close()
        self._vector = masked

    def _shown(self, seen: Any) -> tuple[Any, dict[str, Any]]:
        allowed = self._vector.allowed
        return _first(self.observation_space, seen), {} if allowed is None else {MASK: allowed[0]}


def _first(space: Space[Any], batch: Any) -> Any:
    """Return the first value of a batch, in which a number of a Box is an array too."""
    if isinstance(space, Dict):
        return {key: _first(part, batch[key]) for key, part in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(_first(part, values) for part, values in zip(space.spaces, batch, strict=True))
    return batch[0] if isinstance(space, Discrete) else np.asarray(batch[0])

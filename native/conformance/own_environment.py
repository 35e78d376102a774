"""An environment of Gymnasium's or of a server by itself, beside the pool that a run makes of it."""

from __future__ import annotations

import warnings
from contextlib import closing
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.spaces import Dict, Discrete
from gymnasium.spaces.utils import flatten
from gymnasium.utils.env_checker import check_env

from penstock.native.adapters.gymnasium import PREFIX as GYMNASIUM
from penstock.native.adapters.gymnasium import gymnasium_knows, gymnasium_types
from penstock.native.adapters.one_array import MASK, is_one_array
from penstock.native.conformance.served_environment import ServedEnvironment
from penstock.native.sockets.source import PREFIX as SOCKET

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray


class OwnEnvironment:
    """Observes an environment before a pool makes one array of it, and finds its mask of allowed choices.

    Attributes:
        space: of its observations.
        mask: where its mask is, as the setting `action_mask` has it; None without one.
        structured: whether its observations are more than one array.
    """

    def __init__(self, make: Callable[[], gymnasium.Env[Any, Any]]) -> None:
        """Make it, and reset it once."""
        self._make = make
        self._env = make()
        _, info = self._env.reset(seed=0)
        self.space: Any = self._env.observation_space
        self.mask: Any = None
        if isinstance(self._env.action_space, Discrete):
            of_dict = isinstance(self.space, Dict) and MASK in self.space.spaces
            self.mask = "observation" if of_dict else "info" if MASK in info else None
        rest = self._without_mask()
        arrays = list(rest.spaces.values()) if isinstance(rest, Dict) else [rest]
        self.structured = not (len(arrays) == 1 and is_one_array(arrays[0])) and self.space.is_np_flattenable

    @property
    def is_plain(self) -> bool:
        """Return whether there are no leaves, no mask, and an observation that an array can hold."""
        return not self.structured and self.mask is None and self.space.is_np_flattenable

    def first_array(self) -> NDArray[Any]:
        """Return the numbers of its first observation, the mask in front."""
        observation, info = self._env.reset(seed=0)
        mask = self._mask_of(observation, info)
        flat = flatten(self._without_mask(), observation)
        return np.concatenate([() if mask is None else mask, flat])

    def observed(self, steps: int) -> Iterator[Any]:
        """Yield what it observes, with random choices that are allowed."""
        observation, info = self._env.reset(seed=0)
        self._env.action_space.seed(0)
        for _ in range(steps):
            yield observation
            mask = self._mask_of(observation, info)
            action = self._env.action_space.sample(None if mask is None else np.asarray(mask, np.int8))
            observation, _, terminated, truncated, info = self._env.step(action)
            if terminated or truncated:
                yield observation
                observation, info = self._env.reset()

    def check(self) -> str:
        """Run Gymnasium's checker on it; return its remarks."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with closing(self._make()) as single:
                check_env(single.unwrapped, skip_render_check=True)
        first = str(caught[0].message).removeprefix("\x1b[33mWARN: ").removesuffix("\x1b[0m") if caught else ""
        return f"{len(caught)} remark{'s' * (len(caught) > 1)}, first: {first}" if caught else ""

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _without_mask(self) -> Any:
        """Return the space of the rest; a Dict sorts its keys, as in runs."""
        if self.mask == "observation":
            return Dict({key: part for key, part in self.space.spaces.items() if key != MASK})
        return self.space

    def _mask_of(self, observation: Any, info: Any) -> Any:
        return {"info": info, "observation": observation}[self.mask][MASK] if self.mask else None


def own_environment(environment_id: str, settings: Mapping[str, Any]) -> OwnEnvironment | None:
    """Return the environment of an id of Gymnasium's or of a server; None of another family.

    Args:
        environment_id: as `native.make` takes it.
        settings: likewise, without the options of an array.

    Raises:
        ValueError: It can't be made or reset.
    """
    if environment_id.startswith(SOCKET):
        try:
            return OwnEnvironment(lambda: ServedEnvironment(environment_id, settings))
        except RuntimeError as error:
            raise ValueError(f"{environment_id}: {error}") from error
    name = environment_id.removeprefix(GYMNASIUM)
    if not gymnasium_knows(name):
        return None
    gymnasium_types(name)  # or ValueError, of an id that there is not
    of_pools = ("wrappers", "vectorization_mode")
    given = {name: value for name, value in settings.items() if name not in of_pools}

    def made() -> gymnasium.Env[Any, Any]:
        env = gymnasium.make(name, disable_env_checker=True, **given)
        for wrap in settings.get("wrappers", ()):
            env = wrap(env)
        return env

    try:
        return OwnEnvironment(made)
    except Exception as error:  # whatever the environment throws
        raise ValueError(f"Gymnasium cannot make and reset {environment_id}: {error}") from error

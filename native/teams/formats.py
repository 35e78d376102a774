"""The formats of a team: observations and actions of agents whose spaces may differ, as arrays with an agent axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.spaces.utils import flatten, flatten_space

from penstock.native.teams.team_env import MASK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gymnasium.spaces import Space
    from numpy.typing import NDArray

    from penstock.native.interface import ActionFormat


class TeamObservations:
    """The observations of agents as one array `[agents, *shape]`.

    Arrays of one shape and type stay as they are. Others are flattened, as by Gymnasium's FlattenObservation, and
    padded with zeros to the longest, float32. The mask in an observation is not a part of it.

    Raises:
        ValueError: A space has no fixed size.
    """

    def __init__(self, environment_id: str, spaces: Mapping[str, Space[Any]]) -> None:
        self._agents = list(spaces)
        self._spaces = {name: _without_mask(space) for name, space in spaces.items()}
        self.in_observation = [name for name, space in spaces.items() if _has_mask(space)]
        """Agents whose observations hold their mask."""
        first = next(iter(self._spaces.values()))
        self._as_they_are = all(
            isinstance(space, Box) and space.shape and space.shape == first.shape and space.dtype == first.dtype
            for space in self._spaces.values()
        ) and first.dtype in (np.float32, np.float64, np.uint8)
        if self._as_they_are:
            self.shape, self.dtype = (len(self._agents), *(first.shape or ())), np.dtype(first.dtype)
            self.low = np.stack([space.low for space in self._spaces.values()])  # type: ignore[attr-defined]
            self.high = np.stack([space.high for space in self._spaces.values()])  # type: ignore[attr-defined]
            return
        for name, space in self._spaces.items():
            if not space.is_np_flattenable:
                raise ValueError(
                    f"{environment_id}: the observation space of {name} is {space}, of no fixed size; expected spaces "
                    f"that Gymnasium can flatten: wrap the environment"
                )
        flat: list[Any] = [flatten_space(space) for space in self._spaces.values()]
        width = max(space.shape[0] for space in flat)
        self.shape, self.dtype = (len(self._agents), width), np.dtype(np.float32)
        self.low, self.high = np.zeros(self.shape, np.float32), np.zeros(self.shape, np.float32)
        for row, space in enumerate(flat):
            self.low[row, : space.shape[0]], self.high[row, : space.shape[0]] = space.low, space.high

    def __call__(self, observation: Mapping[str, Any]) -> NDArray[Any]:
        """Return the array; zeros for an agent that observes nothing."""
        if self._as_they_are and not self.in_observation and len(observation) == len(self._agents):
            return np.array([observation[name] for name in self._agents], self.dtype)
        rows = np.zeros(self.shape, self.dtype)
        for row, name in enumerate(self._agents):
            if name not in observation:
                continue
            seen = observation[name]
            if name in self.in_observation:
                seen = _rest(seen)
            if self._as_they_are:
                rows[row] = seen
            else:
                values = np.asarray(flatten(self._spaces[name], seen))
                rows[row, : len(values)] = values
        return rows


class TeamActions:
    """The actions of agents: choices `[num_envs, agents]`, or floats `[num_envs, agents, numbers]`.

    Agents with fewer choices have a mask that forbids the others; of numbers, an agent gets as many as it has.

    Raises:
        ValueError: Some agents have choices and some numbers, or a space is neither Discrete nor a float Box.
    """

    def __init__(self, environment_id: str, spaces: Mapping[str, Space[Any]], num_envs: int) -> None:
        self._spaces = dict(spaces)
        self._agents, self.num_envs = list(spaces), num_envs
        each = list(spaces.values())
        discrete = [isinstance(space, Discrete) for space in each]
        floats = [isinstance(space, Box) and np.issubdtype(space.dtype, np.floating) for space in each]
        if not all(discrete) and not all(floats):
            listed = ", ".join(f"{name}: {space}" for name, space in spaces.items())
            raise ValueError(
                f"{environment_id} has the action spaces {listed}; expected Discrete for all agents, or a Box of "
                f"floats for all: wrap the environment, or choose settings with such actions (continuous_actions, say)"
            )
        self.spec: ActionFormat
        if all(discrete):
            self.choices = [int(space.n) for space in each]  # type: ignore[attr-defined]
            self._starts = [int(space.start) for space in each]  # type: ignore[attr-defined]
            count = max(self.choices)
            self.spec = {"kind": "discrete", "dtype": "int64", "shape": (len(each),), "n": count}
            return
        self.choices = []
        widths = [int(np.prod(space.shape)) for space in each]  # type: ignore[arg-type]
        low, high = -np.ones((len(each), max(widths)), np.float32), np.ones((len(each), max(widths)), np.float32)
        for row, (space, width) in enumerate(zip(each, widths, strict=True)):
            box: Any = space
            low[row, :width], high[row, :width] = box.low.reshape(-1), box.high.reshape(-1)
        self.spec = {
            "kind": "box",
            "dtype": "float32",
            "shape": low.shape,
            "low": low.tolist(),
            "high": high.tolist(),
        }

    def for_step(self, actions: Any) -> Any:
        """Check and convert the actions of `step`."""
        array = np.asarray(actions)
        kinds, dtype = ("iu", np.int64) if self.choices else ("fiu", np.float32)
        if array.dtype.kind not in kinds:
            raise ValueError(f"expected {'integers' if self.choices else 'floats'} as actions, got {array.dtype}")
        return self.for_round(np.ascontiguousarray(array, dtype=dtype))

    def for_round(self, action: NDArray[Any]) -> NDArray[Any]:
        """Check the actions of `step_round`: int64 that counts from 0, or float32."""
        shape, dtype = (self.num_envs, *self.spec["shape"]), np.dtype(self.spec["dtype"])
        if action.dtype != dtype or action.shape != shape or not action.flags.c_contiguous:
            raise ValueError(
                f"actions: expected a C-contiguous {dtype} array of shape {shape}, got {action.dtype} {action.shape}"
            )
        wrong = (action < 0) | (action >= self.spec["n"]) if self.choices else ~np.isfinite(action)
        if wrong.any():
            at = np.argwhere(wrong)[0].tolist()
            expected = f"0 to {self.spec['n'] - 1}" if self.choices else "finite numbers"
            raise ValueError(f"action {action[tuple(at)]} of agent {at[1]} of environment {at[0]}: expected {expected}")
        return action

    def own(self, action: NDArray[Any], acting: Sequence[str]) -> dict[str, Any]:
        """Return one environment's actions, `[agents, ...]`, as its agents take them; others than `acting` get a 0."""
        chosen: dict[str, Any] = {}
        choices = action.tolist() if self.choices else []
        for row, (name, space) in enumerate(self._spaces.items()):
            if self.choices:
                choice = choices[row] if name in acting else 0
                if choice >= self.choices[row]:
                    raise ValueError(
                        f"{name} has {self.choices[row]} choices, got {choice}: its mask forbids the others"
                    )
                chosen[name] = choice + self._starts[row]
            else:
                box: Any = space
                numbers = action[row, : int(np.prod(box.shape))].reshape(box.shape)
                chosen[name] = np.clip(numbers.astype(box.dtype), box.low, box.high)
        return chosen


def _has_mask(space: Space[Any]) -> bool:
    return isinstance(space, Dict) and MASK in space.spaces


def _without_mask(space: Space[Any]) -> Space[Any]:
    if not isinstance(space, Dict) or MASK not in space.spaces:
        return space
    rest = {key: part for key, part in space.spaces.items() if key != MASK}
    return next(iter(rest.values())) if len(rest) == 1 else Dict(rest)


def _rest(observation: Mapping[str, Any]) -> Any:
    rest = {key: part for key, part in observation.items() if key != MASK}
    return next(iter(rest.values())) if len(rest) == 1 else rest

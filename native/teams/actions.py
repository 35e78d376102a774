"""The actions of a team, whose agents' spaces may differ, as arrays with an agent axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.vector.utils import batch_space

from penstock.native.adapters.structured_actions import UnsupportedActionError, VectorSpace
from penstock.native.teams.masks import AgentMask
from penstock.native.teams.structured import TeamSpace, TeamVectors
from penstock.native.teams.team_env import OWN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gymnasium.spaces import Space
    from numpy.typing import NDArray

    from penstock.native.interface import ActionFormat


class TeamActions:
    """The actions of agents: choices `[num_envs, agents]`, or floats `[num_envs, agents, numbers]`.

    Agents with fewer choices have a mask that forbids the others; of numbers, an agent gets as many as it has. Unless
    all have one Discrete, or all a Box of floats, an agent's numbers are the vector of its action (`teams.structured`).

    Raises:
        ValueError: A space is neither of these, nor of choices and numbers alone.
    """

    def __init__(self, environment_id: str, spaces: Mapping[str, Space[Any]], num_envs: int) -> None:
        self._spaces = dict(spaces)
        self.num_envs = num_envs
        each = list(spaces.values())
        self.spec: ActionFormat
        self.masks: list[AgentMask] = []
        """Each agent's part of a mask; none if they have numbers alone."""
        self.own_space: Space[Any]
        """One environment's actions, as it has them or, of choices and numbers alone, as arrays."""
        self._vectors: TeamVectors | None = None
        self._choices: list[int] = []
        if all(isinstance(space, Discrete) for space in each):
            self._choices = [int(space.n) for space in each]  # type: ignore[attr-defined]
            self._starts = [int(space.start) for space in each]  # type: ignore[attr-defined]
            count = max(self._choices)
            self.masks = [AgentMask.of_choice(own, count) for own in self._choices]
            self.spec = {"kind": "discrete", "dtype": "int64", "shape": (len(each),), "n": count}
            self.own_space = MultiDiscrete(np.full(len(each), count))
        elif all(isinstance(space, Box) and np.issubdtype(space.dtype, np.floating) for space in each):
            low, high = _padded_bounds(each)
            limits = {"low": low.tolist(), "high": high.tolist()}
            self.spec = {"kind": "box", "dtype": "float32", "shape": low.shape, **limits}  # type: ignore[typeddict-item]
            self.own_space = Box(low, high, dtype=np.float32)
        else:
            space = TeamSpace(spaces)
            try:
                self._vectors = TeamVectors(space)
            except UnsupportedActionError as error:
                raise ValueError(
                    f"{environment_id}: {error}; name a function of yours that wraps the environment and makes other "
                    f"actions of these, as {OWN}"
                ) from None
            self.spec, self.masks, self.own_space = self._vectors.format, self._vectors.masks, space
        self.single_space: Space[Any] = self.own_space
        """The actions of `step`: arrays of one environment."""
        self.space: Space[Any] = batch_space(self.own_space, num_envs)
        """Those of all."""
        if self._vectors is not None:
            self.single_space, self.space = (
                VectorSpace(self.own_space, self._vectors, count) for count in (None, num_envs)
            )

    @property
    def need_masks(self) -> bool:
        """Return whether agents have unequally many choices, of which only a mask can forbid some."""
        return len(set(self._choices)) > 1

    def for_step(self, actions: Any) -> Any:
        """Check and convert the actions of `step`."""
        array = np.asarray(actions)
        kinds, dtype = ("iu", np.int64) if self._choices else ("fiub" if self._vectors else "fiu", np.float32)
        if array.dtype.kind not in kinds:
            raise ValueError(f"expected {'integers' if self._choices else 'floats'} as actions, got {array.dtype}")
        return self.for_round(np.ascontiguousarray(array, dtype=dtype))

    def for_round(self, action: NDArray[Any]) -> NDArray[Any]:
        """Check the actions of `step_round`: int64 that counts from 0, or float32."""
        shape, dtype = (self.num_envs, *self.spec["shape"]), np.dtype(self.spec["dtype"])
        if action.dtype != dtype or action.shape != shape or not action.flags.c_contiguous:
            raise ValueError(
                f"actions: expected a C-contiguous {dtype} array of shape {shape}, got {action.dtype} {action.shape}"
            )
        if self._vectors is not None:
            self._vectors.check(action)
            return action
        wrong = (action < 0) | (action >= self.spec["n"]) if self._choices else ~np.isfinite(action)
        if wrong.any():
            at = np.argwhere(wrong)[0].tolist()
            expected = f"0 to {self.spec['n'] - 1}" if self._choices else "finite numbers"
            raise ValueError(f"action {action[tuple(at)]} of agent {at[1]} of environment {at[0]}: expected {expected}")
        return action

    def own(self, action: NDArray[Any], acting: Sequence[str]) -> dict[str, Any]:
        """Return one environment's actions, `[agents, ...]`, as its agents take them.

        Of choices, others than `acting` get a 0; all else is as it is given.
        """
        if self._vectors is not None:
            return self._vectors.decode(action)
        chosen: dict[str, Any] = {}
        choices = action.tolist() if self._choices else []
        for row, (name, space) in enumerate(self._spaces.items()):
            if self._choices:
                choice = choices[row] if name in acting else 0
                if choice >= self._choices[row]:
                    raise ValueError(
                        f"{name} has {self._choices[row]} choices, got {choice}: its mask forbids the others"
                    )
                chosen[name] = choice + self._starts[row]
            else:
                box: Any = space
                numbers = action[row, : int(np.prod(box.shape))].reshape(box.shape)
                chosen[name] = np.clip(numbers.astype(box.dtype), box.low, box.high)
        return chosen


def _padded_bounds(spaces: Sequence[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the bounds of Boxes, `[agents, numbers]` each, padded with -1 and 1."""
    widths = [int(np.prod(space.shape)) for space in spaces]
    shape = (len(spaces), max(widths))
    low, high = -np.ones(shape, np.float32), np.ones(shape, np.float32)
    for row, (space, width) in enumerate(zip(spaces, widths, strict=True)):
        low[row, :width], high[row, :width] = space.low.reshape(-1), space.high.reshape(-1)
    return low, high

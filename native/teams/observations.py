"""The array of a team's observations: with an agent axis, or leaf by leaf where their structure is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Box, Dict, Text
from gymnasium.spaces.utils import flatdim, flatten, flatten_space

from penstock.native.adapters.one_array import exact_dtype, leaf_format, leaf_name, leaves_of
from penstock.native.teams.team_env import MASK, OWN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gymnasium.spaces import Space
    from numpy.typing import NDArray

    from penstock.native.interface import ObservationLeafFormat
    from penstock.native.teams.masks import AgentMask
    from penstock.native.teams.structured import TeamSpace


class TeamObservations:
    """The observations of agents as one array `[agents, *shape]`.

    Arrays of one shape and type stay as they are. Others are flattened, as by Gymnasium's FlattenObservation, and
    padded with zeros to the longest, float32. The mask in an observation is not a part of it.

    Raises:
        ValueError: A space has no fixed size, or holds text.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    low: NDArray[Any]
    high: NDArray[Any]
    leaves: tuple[ObservationLeafFormat, ...] = ()
    """Those of the array, if their structure is kept."""

    def __init__(self, environment_id: str, spaces: Mapping[str, Space[Any]]) -> None:
        self._agents = list(spaces)
        self._spaces = {name: _without_mask(space) for name, space in spaces.items()}
        self.in_observation = [name for name, space in spaces.items() if _has_mask(space)]
        """Agents whose observations hold their mask."""
        self._describe(environment_id)

    def _describe(self, environment_id: str) -> None:
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
        self._check(environment_id)
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
            seen = self._seen(observation, name)
            if self._as_they_are:
                rows[row] = seen
            else:
                values = np.asarray(flatten(self._spaces[name], seen))
                rows[row, : len(values)] = values
        return rows

    def _seen(self, observation: Mapping[str, Any], name: str) -> Any:
        """Return what an agent observes besides its mask."""
        seen = observation[name]
        if name not in self.in_observation:
            return seen
        rest = {key: part for key, part in seen.items() if key != MASK}
        return next(iter(rest.values())) if len(rest) == 1 else rest

    def _check(self, environment_id: str) -> None:
        for name, space in self._spaces.items():
            if unfit := _unfit(space):
                raise ValueError(
                    f"{environment_id}: what {name} observes {unfit}; expected choices and numbers alone: name a "
                    f"function of yours that makes the environment and encodes it as a Box, or leaves it out, as {OWN} "
                    f"(docs/other_environments.md shows one)"
                )


class TeamLeaves(TeamObservations):
    """The observations of agents as one flat array of their leaves: of each leaf all agents' numbers, `[agents, ...]`.

    Leaves of one name are one leaf. Of an agent without it, and of one that observes nothing, its numbers are 0 and its
    choices 0. The array holds every leaf exactly: it is float32, or float64 if a leaf needs that.

    Raises:
        ValueError: A space has no fixed size, or holds text; or leaves of one name differ in kind, type or shape.
    """

    def _describe(self, environment_id: str) -> None:
        self._check(environment_id)
        of_agents = {
            name: [(leaf_name(path), path, part) for path, part in leaves_of(space) if flatdim(part)]
            for name, space in self._spaces.items()
        }
        self.dtype = exact_dtype(part for parts in of_agents.values() for _, _, part in parts)
        formats = _formats(environment_id, of_agents, self.dtype)
        count = len(self._agents)
        starts: dict[str, int] = {}
        nothing: list[NDArray[Any]] = []
        for leaf, (one, width) in formats.items():
            starts[leaf] = sum(map(len, nothing))
            nothing.append(np.tile(_nothing(one, width), count))
        self._nothing = np.concatenate(nothing, dtype=self.dtype)
        self.shape = self._nothing.shape
        self.leaves = tuple(
            {**one, "shape": (count, *one["shape"]), "sizes": tuple(one["sizes"]) * count}
            for one, _ in formats.values()
        )
        self.low, self.high = self._nothing.copy(), self._nothing.copy()
        self._parts: dict[str, list[tuple[Sequence[str | int], Space[Any], slice]]] = {}
        for row, (name, parts) in enumerate(of_agents.items()):
            self._parts[name] = []
            for leaf, path, part in parts:
                flat: Any = flatten_space(part)
                first = starts[leaf] + row * formats[leaf][1]
                place = slice(first, first + formats[leaf][1])
                self.low[place], self.high[place] = np.minimum(0, flat.low), np.maximum(0, flat.high)
                self._parts[name].append((path, part, place))

    def __call__(self, observation: Mapping[str, Any]) -> NDArray[Any]:
        """Return the array."""
        array = self._nothing.copy()
        for name, parts in self._parts.items():
            if name not in observation:
                continue
            seen = self._seen(observation, name)
            for path, space, place in parts:
                value = seen
                for key in path:
                    value = value[key]
                array[place] = flatten(space, value)
        return array


@dataclass(frozen=True, slots=True)
class TeamEncoder:
    """Makes the array of what the agents of a team observe, by name. All of them are there, and are to act."""

    space: TeamSpace
    observe: TeamObservations
    masks: Mapping[str, AgentMask] | None
    """By agent; None if the array does not begin with masks."""
    dtype: np.dtype[Any]

    def __call__(self, observation: Mapping[str, Any]) -> NDArray[Any]:
        """Return the array."""
        shown = self.observe(observation).astype(self.dtype, copy=False)
        if self.masks is None:
            return shown
        allowed = [
            mask.given(name, observation[name][MASK]) if name in self.observe.in_observation else mask.free
            for name, mask in self.masks.items()
        ]
        return np.concatenate([*allowed, shown.reshape(-1)], dtype=self.dtype)


def _formats(
    environment_id: str,
    of_agents: Mapping[str, Sequence[tuple[str, Any, Space[Any]]]],
    dtype: np.dtype[Any],
) -> dict[str, tuple[ObservationLeafFormat, int]]:
    """Return by name the format of one agent's leaf, and its numbers in an array of `dtype`."""
    found: dict[str, tuple[ObservationLeafFormat, int]] = {}
    owner: dict[str, str] = {}
    for name, parts in of_agents.items():
        names = [leaf for leaf, _, _ in parts]
        if twice := sorted({leaf for leaf in names if names.count(leaf) > 1}):
            raise ValueError(
                f"{environment_id}: what {name} observes has two leaves called {twice[0]!r}, since keys with a dot "
                f"look like nested ones: rename a key, or leave out structured"
            )
        for leaf, _, part in parts:
            one = leaf_format(leaf, part, dtype)
            other, _ = found.setdefault(leaf, (one, flatdim(part)))
            if other != one:
                raise ValueError(
                    f"{environment_id}: the leaf {leaf!r} of {name} is {_said(one)}, and that of {owner[leaf]} "
                    f"{_said(other)}, expected one kind, type and shape under one name: leave out structured, so that "
                    f"observations are flattened, or name a function of yours that gives one of them another key, as "
                    f"{OWN} (docs/other_environments.md shows one)"
                )
            owner.setdefault(leaf, name)
    return found


def _nothing(leaf: ObservationLeafFormat, width: int) -> NDArray[Any]:
    """Return the numbers of a leaf that an agent does not observe: zeros, and choice 0."""
    numbers = np.zeros(width)
    if leaf["sizes"]:
        numbers[np.cumsum([0, *leaf["sizes"][:-1]])] = 1
    return numbers


def _said(leaf: ObservationLeafFormat) -> str:
    sizes = f" of {list(leaf['sizes'])}" if leaf["sizes"] else ""
    return f"{leaf['kind']} {leaf['dtype']}{list(leaf['shape'])}{sizes}"


def _unfit(space: Space[Any]) -> str:
    """Name what no network can read, such as `has the leaf 'radio.said', a text`; '' if there is nothing."""
    for path, each in leaves_of(space):
        if isinstance(each, Text) or not each.is_np_flattenable:
            reason = "a text" if isinstance(each, Text) else f"{each}, of no fixed size"
            return f"has the leaf '{leaf_name(path)}', {reason}" if path else f"is {reason}"
    return ""


def _has_mask(space: Space[Any]) -> bool:
    return isinstance(space, Dict) and MASK in space.spaces


def _without_mask(space: Space[Any]) -> Space[Any]:
    if not isinstance(space, Dict) or MASK not in space.spaces:
        return space
    rest = {key: part for key, part in space.spaces.items() if key != MASK}
    return next(iter(rest.values())) if len(rest) == 1 else Dict(rest)

"""The types by which an algorithm, an environment and the runtime describe data to each other.

This module and the pure-torch helpers (networks, returns, optimizers: `docs/algorithm.md` names them) are all that an
algorithm may import of Penstock. Nothing here knows a process, a device or a file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from storage.specs import Spec

__all__ = [
    "ActionSpec",
    "Batch",
    "EnvironmentSpec",
    "Facts",
    "NoiseSpec",
    "ParameterGroup",
    "Spec",
    "State",
    "Trajectory",
]

Batch: TypeAlias = dict[str, Tensor]
"""Rows by column name; the first axis of every column is the row."""


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """What an environment accepts: one of `n` choices (`discrete`), or a vector within bounds (`box`)."""

    kind: Literal["discrete", "box"]
    n: int = 0
    """Number of choices of a discrete action, for each agent where there are several; 0 for a box."""
    shape: tuple[int, ...] = ()
    """Of a box; with several agents the first axis is theirs, and a discrete action has that axis alone."""
    low: tuple[float, ...] = ()
    """Of a box, one bound a number, in row-major order."""
    high: tuple[float, ...] = ()

    @property
    def spec(self) -> Spec:
        """The column that stores the action: int64 (a scalar, or one an agent), or float32 of the box's shape."""
        return Spec("int64" if self.kind == "discrete" else "float32", self.shape)


class Facts(Mapping[str, NDArray[np.float64]]):
    """What an environment says of itself in arrays of numbers, which are the same in every episode.

    Hashed by identity, so that what is worked out from them can be kept.
    """

    def __init__(self, values: Mapping[str, NDArray[np.float64]]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
        """An algorithm may be a pydantic model: there these stay what they are."""
        from pydantic_core import core_schema  # noqa: PLC0415  (algorithms need none of it)

        return core_schema.is_instance_schema(cls)


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """What an algorithm may know of an environment."""

    name: str
    observation: Spec
    action: ActionSpec
    max_episode_steps: int | None
    reward_threshold: float | None
    agents: int = 0
    """Length of the agent axis, the first one of observation, action and reward; 0 where there is none."""
    behind_mask: Spec | None = None
    """Of an environment that forbids some of its choices at times: what it shows beside that. Its `observation` is then
    flat: 0 or 1 for each choice, of one agent after the other, whether it is allowed, and behind that mask these
    numbers. None where all is allowed.
    """
    facts: Facts | None = None
    """Of an environment that has any, such as the netlist of a block that is placed."""

    @property
    def seen(self) -> Spec:
        """What networks see of an observation: all of it but the mask."""
        return self.behind_mask or self.observation

    def split(self, observation: Tensor) -> tuple[Tensor, Tensor | None]:
        """Take observations `[rows, *observation]` apart: `[rows, *seen]`, and what is allowed, bool `[rows, n]`.

        With several agents the latter is `[rows, agents, n]`; without a mask it is None.
        """
        if self.behind_mask is None:
            return observation, None
        each = (*self.action.shape, self.action.n)
        mask, shown = observation.tensor_split([math.prod(each)], dim=1)
        return shown.unflatten(1, self.behind_mask.shape), (mask != 0).unflatten(1, each)

    @property
    def reward(self) -> Spec:
        """The column that stores the reward of a step: float32, one an agent where there are several."""
        return Spec("float32", (self.agents,) if self.agents else ())

    @classmethod
    def from_pool(cls, name: str, described: dict[str, Any]) -> EnvironmentSpec:
        """Read what `native.Pool.environment` says of an environment."""
        action, observation = described["action"], described["observation"]
        behind_mask = observation.get("behind_mask")
        return cls(
            name=name,
            observation=Spec(observation["dtype"], tuple(observation["shape"])),
            action=ActionSpec(
                kind=action["kind"],
                n=int(action.get("n", 0)),
                shape=tuple(action.get("shape", ())),
                low=tuple(np.ravel(action.get("low", ())).tolist()) if action["kind"] == "box" else (),
                high=tuple(np.ravel(action.get("high", ())).tolist()) if action["kind"] == "box" else (),
            ),
            max_episode_steps=described["max_episode_steps"],
            reward_threshold=described["reward_threshold"],
            agents=int(described["agents"]),
            behind_mask=None if behind_mask is None else Spec(observation["dtype"], tuple(behind_mask)),
            facts=Facts(described["facts"]) if "facts" in described else None,
        )


@dataclass(frozen=True, slots=True)
class NoiseSpec:
    """The random numbers that one row needs. All-zero noise must make `act` deterministic (evaluation relies on it)."""

    kind: Literal["uniform", "normal", "gumbel"]
    shape: tuple[int, ...] = ()


class ParameterGroup(Mapping[str, Tensor]):
    """Named parameters that lie in one vector, so that an optimizer step is a few operations and not a few a tensor.

    The tensors are leaves that share the vector's memory: write to the vector, without gradients, and they change.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors.values()])
        """All parameters, `[P]`, in the order of the names."""
        pieces = torch.split(self.flat, [tensor.numel() for tensor in tensors.values()])
        self._views: dict[str, Tensor] = {
            name: piece.view(tensor.shape).requires_grad_()
            for (name, tensor), piece in zip(tensors.items(), pieces, strict=True)
        }
        self.leaves = tuple(self._views.values())
        """The tensors, in the same order; gradients are taken by these."""

    def __getitem__(self, name: str) -> Tensor:
        return self._views[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)

    def to(self, device: torch.device) -> ParameterGroup:
        """The same parameters on a device."""
        return ParameterGroup({name: tensor.detach().to(device) for name, tensor in self.items()})


@dataclass(slots=True)
class State:
    """Everything that an algorithm carries from one minibatch to the next; all of it goes into a checkpoint.

    `update` and `after_minibatch` may change it in place and return it: the runtime owns it and keeps no second copy.
    """

    params: dict[str, ParameterGroup]
    """Parameters by group. A loss is differentiated by one group."""
    optimizer: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    """Optimizer state by group; names are the algorithm's own."""
    targets: dict[str, Tensor] = field(default_factory=dict)
    """What losses read and no gradient reaches: target networks, schedules' counters, normalisers."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One tile's round as `post` sees it.

    Attributes:
        columns: name -> `[T, B, ...]`, time-major; the environment's and the algorithm's row columns.
        bootstrap_rows: int64 `[K]`, ascending; rows `t * B + b` whose successor is not row `t + 1` of the same
            environment, because the episode ended there (terminated, truncated or both) or the round did.
        bootstrap_observation: `[K, ...]`, the observation that followed each of these rows.
    """

    columns: dict[str, Tensor]
    bootstrap_rows: Tensor
    bootstrap_observation: Tensor

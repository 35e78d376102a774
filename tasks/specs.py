"""The types with which algorithms, environments and the runtime describe data to each other.

This module and the pure-torch helpers (networks, returns, optimizers: `docs/algorithm.md` names them) are all that an
algorithm may import of Penstock. Nothing here knows a process, a device or a file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.storage.shards.specs import Leaf, Spec
from penstock.tasks.tape.capture import current_capture
from penstock.tasks.tape.operations import call
from penstock.tasks.tape.recording import current_tape, factor_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence


Batch: TypeAlias = dict[str, Tensor]
"""Rows by column name; the first axis of every column is the row."""

Params: TypeAlias = Mapping[str, Mapping[str, Tensor]]
"""Parameters by group, and then by name."""

LossResult: TypeAlias = tuple[Tensor, dict[str, Tensor]]
"""A loss's scalar, and outputs per row by name."""

LossFunction: TypeAlias = "Callable[[Params, LossInputs], LossResult]"
"""Computes a loss: `loss(params, batch)`."""

__all__ = [
    "ActionLeaf",
    "ActionSpec",
    "Batch",
    "EnvironmentSpec",
    "Facts",
    "Leaf",
    "LossFunction",
    "LossInputs",
    "LossResult",
    "NoiseSpec",
    "ParameterGroup",
    "Params",
    "Spec",
    "State",
    "Trajectory",
]


@dataclass(frozen=True, slots=True)
class ActionLeaf:
    """A part of a structured action: numbers of its vector that are all choices, or all numbers of a box."""

    name: str
    """Keys and places on the way to it, such as `arm/0`; empty if it is the whole action."""
    sizes: tuple[int, ...]
    """For each of its numbers that number's choices, or 0 for a number of a box."""


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """The actions of an environment: one of `n` choices, a vector within bounds (`box`), or a `structured` one.

    A structured action is a vector of choices and of a box's numbers: its leaves, one after the other. A choice is a
    whole number from 0. A box's number is from -1 to 1 where the environment bounds it, unless the bounds are very
    wide; the environment gets it within its bounds. Of several agents it is such a vector for each, and zeros after it
    up to the longest.
    """

    kind: Literal["discrete", "box", "structured"]
    n: int = 0
    """Number of choices of a discrete action, for each agent where there are several; 0 for a box. For the structured
    actions of several agents, the numbers of an agent's mask: for each of its vector's numbers as many as that has
    choices, or one for a number of a box, then zeros, and at last whether it is there."""
    shape: tuple[int, ...] = ()
    """Shape of a box; with several agents the first axis is theirs, and a discrete action has that axis alone."""
    low: tuple[float, ...] = ()
    """Lower bounds of a box, one per number, in row-major order."""
    high: tuple[float, ...] = ()
    """Upper bounds, likewise."""
    leaves: tuple[ActionLeaf, ...] = ()
    """Parts of a structured action, whose `shape` is (numbers,)."""
    of_agents: tuple[ActionSpec, ...] = ()
    """Each agent's own structured action, where there are several: the first numbers of its row of `shape` (agents,
    numbers)."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """For each number of a structured action's vector that number's choices, or 0 for a number of a box.

        Of several agents, those of one row after the other; a number that only fills a row up has one choice.
        """
        if self.of_agents:
            return tuple(
                size for own in self.of_agents for size in own.sizes + (1,) * (self.shape[-1] - len(own.sizes))
            )
        return tuple(size for leaf in self.leaves for size in leaf.sizes)

    @property
    def mask_shape(self) -> tuple[int, ...]:
        """Shape of a mask of allowed choices: (n,), or (agents, n)."""
        return (*(self.shape[:1] if self.of_agents else self.shape), self.n)

    @property
    def spec(self) -> Spec:
        """The column that stores the action: int64 (a scalar, or one an agent), or float32 of a vector's shape."""
        return Spec("int64" if self.kind == "discrete" else "float32", self.shape)


class Facts(Mapping[str, NDArray[np.float64]]):
    """Constant arrays that describe an environment, the same in every episode.

    Hashed by identity, so that results computed from them can be cached.
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
        """Accept instances as they are, since an algorithm may be a pydantic model."""
        from pydantic_core import core_schema  # noqa: PLC0415  (algorithms need none of it)

        return core_schema.is_instance_schema(cls)


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """The facts about an environment that an algorithm may use."""

    name: str
    observation: Spec
    """Its `leaves` are the parts of a structured observation, in the order in which the flat array has them; of several
    agents each has their axis first."""
    action: ActionSpec
    max_episode_steps: int | None
    reward_threshold: float | None
    agents: int = 0
    """Length of the agent axis, the first one of action, reward and `policy_input`; 0 where there is none."""
    unmasked_observation: Spec | None = None
    """The observation without the action mask, of an environment that forbids some of its choices at times. Its
    `observation` is then flat: 0 or 1 for each choice, of one agent after the other, whether it is allowed, followed by
    these numbers. None if all choices are always allowed.
    """
    facts: Facts | None = None
    """Constant arrays of the environment, such as the netlist of a block that is placed; None if it has none."""
    num_envs: int = 0
    """Environments of the run that learns, over all tiles; 0 where an algorithm only acts."""

    @property
    def policy_input(self) -> Spec:
        """The part of an observation that networks take: all of it but the action mask.

        Of agents with structured observations `[agents, numbers]`: each agent's `agent_leaves`.
        """
        if leaves := self.agent_leaves:
            return Spec(self.observation.dtype, (self.agents, sum(leaf.width for leaf in leaves)))
        return self._unmasked

    @property
    def agent_leaves(self) -> tuple[Leaf, ...]:
        """The parts of what one agent observes, in order; () where observations are not structured, or no agents are.

        Each is a leaf of `observation` without its first axis, the agents'.
        """
        return _leaves_of_one(self._unmasked.leaves, self.agents) if self.agents else ()

    def split(self, observation: Tensor) -> tuple[Tensor, Tensor | None]:
        """Split observations `[rows, *observation]` into `[rows, *policy_input]` and the mask, bool `[rows, n]`.

        The mask is True for allowed choices, `[rows, agents, n]` with several agents, and None if nothing is masked.
        """
        if self.unmasked_observation is None:
            return self._by_agent(observation), None
        each = self.action.mask_shape
        mask, unmasked = observation.tensor_split([math.prod(each)], dim=1)
        unmasked = self._by_agent(unmasked.unflatten(1, self.unmasked_observation.shape))
        return unmasked, (mask != 0).unflatten(1, each)

    @property
    def _unmasked(self) -> Spec:
        return self.unmasked_observation or self.observation

    def _by_agent(self, unmasked: Tensor) -> Tensor:
        """Return `[rows, agents, numbers]` of leaves that all agents have; what is not structured stays as it is."""
        leaves = self._unmasked.leaves
        if not self.agents or not leaves:
            return unmasked
        parts = unmasked.split([leaf.width for leaf in leaves], 1)
        return torch.cat([part.unflatten(1, (self.agents, -1)) for part in parts], 2)

    @property
    def reward(self) -> Spec:
        """The column that stores the reward of a step: float32, one an agent where there are several."""
        return Spec("float32", (self.agents,) if self.agents else ())

    @classmethod
    def from_pool(cls, name: str, described: Mapping[str, Any], num_envs: int = 0) -> EnvironmentSpec:
        """Read the description of an environment that `native.Pool.environment` gives, for a run of `num_envs`."""
        action, observation = described["action"], described["observation"]
        behind_mask = observation.get("behind_mask")
        leaves = tuple(Leaf.from_json(leaf) for leaf in observation.get("leaves", ()))
        return cls(
            name=name,
            observation=Spec(observation["dtype"], tuple(observation["shape"]), leaves=leaves),
            action=ActionSpec(
                kind=action["kind"],
                n=int(action.get("n", 0)),
                shape=tuple(action.get("shape", ())),
                low=tuple(np.ravel(action.get("low", ())).tolist()) if action["kind"] == "box" else (),
                high=tuple(np.ravel(action.get("high", ())).tolist()) if action["kind"] == "box" else (),
                leaves=tuple(_leaf(leaf) for leaf in action.get("leaves", ())),
                of_agents=tuple(_of_agent(agent) for agent in action.get("agents", ())),
            ),
            max_episode_steps=described["max_episode_steps"],
            reward_threshold=described["reward_threshold"],
            agents=int(described["agents"]),
            unmasked_observation=None
            if behind_mask is None
            else Spec(observation["dtype"], tuple(behind_mask), leaves=leaves[1:]),
            facts=Facts(described["facts"]) if "facts" in described else None,
            num_envs=num_envs,
        )


@lru_cache(maxsize=64)
def _leaves_of_one(leaves: tuple[Leaf, ...], agents: int) -> tuple[Leaf, ...]:
    return tuple(replace(leaf, shape=leaf.shape[1:], sizes=leaf.sizes[: len(leaf.sizes) // agents]) for leaf in leaves)


def _leaf(described: Mapping[str, Any]) -> ActionLeaf:
    """Read a leaf as `native.interface.ObservationLeafFormat` describes it."""
    return ActionLeaf(described["name"], tuple(described.get("sizes", (0,) * math.prod(described["shape"]))))


def _of_agent(described: Mapping[str, Any]) -> ActionSpec:
    """Read an agent's own action as `native.interface.AgentFormat` describes it."""
    leaves = tuple(_leaf(leaf) for leaf in described["leaves"])
    return ActionSpec("structured", shape=(sum(len(leaf.sizes) for leaf in leaves),), leaves=leaves)


@dataclass(frozen=True, slots=True)
class NoiseSpec:
    """Distribution and shape of a row's random numbers. Zero noise must make `act` greedy: evaluation relies on it."""

    kind: Literal["uniform", "normal", "gumbel"]
    shape: tuple[int, ...] = ()


class ParameterGroup(Mapping[str, Tensor]):
    """Named parameters stored in one vector, so that an optimizer step is a few operations and not a few per tensor.

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
        """The tensors, in the same order; gradients are taken with respect to these."""
        starts = accumulate((tensor.numel() for tensor in self.leaves), initial=0)
        self._places = {id(tensor): start for tensor, start in zip(self.leaves, starts, strict=False)}
        self.networks: dict[Hashable, Any] = {}
        """Perceptrons of these tensors, which `tasks.tape` keeps from one loss to the next."""
        self.programs: dict[Hashable, Any] = {}
        """Losses of this group that were captured, or could not be; as `tasks.roles.learning.gradients` keeps them."""

    def __getitem__(self, name: str) -> Tensor:
        return self._views[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)

    def place_of(self, tensor: Tensor) -> int | None:
        """Return where one of the leaves begins in the vector; None if the tensor is none of them."""
        return self._places.get(id(tensor))

    def to(self, device: torch.device) -> ParameterGroup:
        """Copy the parameters to a device."""
        return ParameterGroup({name: tensor.detach().to(device) for name, tensor in self.items()})


@dataclass(slots=True)
class State:
    """Everything that an algorithm carries from one minibatch to the next; all of it goes into a checkpoint.

    `update` and `after_minibatch` may change it in place and return it: the runtime owns it and keeps no second copy.
    """

    params: dict[str, ParameterGroup]
    """Parameters by group. A loss is differentiated with respect to one group."""
    optimizer: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    """Optimizer state by group; names are the algorithm's own."""
    targets: dict[str, Tensor] = field(default_factory=dict)
    """Tensors that losses read and no gradient reaches: target networks, schedules' counters, normalisers' moments."""


@dataclass(frozen=True, slots=True)
class LossInputs:
    """The rows of a minibatch, or of a part of it, and everything besides parameters that a loss may read.

    `batch["action"]` is a column `[rows, ...]`; `batch.get("allowed")` is one that may be missing.
    """

    rows: Batch
    """Training rows, as `post` made them."""
    count: int
    """Rows of the whole minibatch; larger than the number of `rows` where these are a part of it."""
    stats: Mapping[str, float | Tensor] = field(default_factory=dict)
    """Totals of `Algorithm.stats` over the round: floats, or float64 tensors `[]` where rounds stay on a device. Both
    take arithmetic; `math.sqrt` of a tensor works, and waits for the device."""
    targets: Mapping[str, Tensor] = field(default_factory=dict)
    """The state's targets; no gradient reaches them."""
    noise: Tensor | None = None
    """Random numbers `[rows, *shape]` of the loss's `NoiseSpec`; None if it declares none."""

    def __getitem__(self, column: str) -> Tensor:
        return self.rows[column]

    def get(self, column: str) -> Tensor | None:
        """Return a column, or None if the rows do not have it."""
        return self.rows.get(column)

    def mean(self, values: Tensor) -> Tensor:
        """Return the share of `values`, `[rows, ...]`, in their mean over the whole minibatch: parts of it add up."""
        return self.weighted_mean((values, 1.0))

    def weighted_mean(self, *terms: tuple[Tensor, float | Tensor]) -> Tensor:
        """Return the sum of `mean(values * weight)` over terms `(values, weight)`; those of weight 0.0 are left out.

        A weight is a number, or a tensor of the values' shape or of shape `[]`, without a gradient.
        """
        kept = [term for term in terms if isinstance(term[1], Tensor) or term[1]] or list(terms)
        shares = [(values, weight, 1.0 / (self.count * values.shape[1:].numel())) for values, weight in kept]
        tape = current_tape()
        if tape is None or not torch.is_grad_enabled() or not all(map(_is_kernels, shares)):
            return _weighted_sum(shares)
        with torch.no_grad():
            # A captured loss has no use for its own value; one that has can't be captured, and is called again.
            total = torch.empty(()) if current_capture() else _weighted_sum(shares)

        def back(gradients: Sequence[Tensor | None]) -> Sequence[Tensor]:
            outer = factor_of(gradients[0])
            return [_weighted(values, weight, share * outer) for values, weight, share in shares]

        tape.record([values for values, *_ in shares], (total,), back)
        return total


def _is_kernels(term: tuple[Tensor, float | Tensor, float]) -> bool:
    """Return whether a term has a gradient for its values alone, which kernels made."""
    values, weight, _ = term
    return values.is_leaf and not (isinstance(weight, Tensor) and weight.requires_grad)


def _weighted(values: Tensor, weight: float | Tensor, factor: float) -> Tensor:
    """Return the weight times the factor in the shape of the values."""
    is_float32 = values.dtype is torch.float32 and values.is_cpu
    if isinstance(weight, Tensor):
        if not (is_float32 and _is_alike(weight, values)):
            return (weight * factor).to(values.dtype).expand(values.shape)
        found = torch.empty(values.shape)
        call(0, "scale", (weight, found), (found.numel(),), (factor,))
        return found
    if not is_float32:
        return torch.full_like(values, weight * factor, requires_grad=False)
    found = torch.empty(values.shape)
    call(0, "fill", (found,), (found.numel(),), (weight * factor,))
    return found


def _is_alike(tensor: Tensor, values: Tensor) -> bool:
    return tensor.dtype is values.dtype and tensor.shape == values.shape and tensor.is_contiguous()


def _weighted_sum(shares: Sequence[tuple[Tensor, float | Tensor, float]]) -> Tensor:
    first, *others = (
        (values * weight).sum() * share if isinstance(weight, Tensor) else values.sum() * (weight * share)
        for values, weight, share in shares
    )
    return sum(others, first)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One tile's round, the argument of `post`.

    Attributes:
        columns: name -> `[T, B, ...]`, time-major; the environment's and the algorithm's row columns.
        bootstrap_rows: int64 `[K]`, ascending; rows `t * B + b` whose successor is not row `t + 1` of the same
            environment, because the episode ended there (terminated, truncated or both) or the round did. Where rounds
            stay on a device K is T * B: the last row repeats, with its observation.
        bootstrap_observation: `[K, ...]`, the observation that followed each of these rows.
        first_env: the tile's first environment, counted over all tiles of the run; its others follow.
    """

    columns: dict[str, Tensor]
    bootstrap_rows: Tensor
    bootstrap_observation: Tensor
    first_env: int = 0

"""Networks of several agents: what each agent's network gets, a memory for each, and their actions. Pure torch.

An algorithm may import this. Agents are an axis after the row's, `[rows, agents, ...]`, or after the step's in training
sequences, `[rows, steps, agents, ...]`. To a network, agents are rows of their own.

An agent that has left before its episode's end observes nothing (death masking: Yu et al. 2022, arXiv 2103.01955): the
others' networks get zeros in its place, and its own gets zeros and its id.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from penstock.tasks.model.nn import kernels
from penstock.tasks.model.nn.distributions import (
    ActionDistribution,
    choice_probability,
    choose,
    displace,
    vector_probability,
    with_fixed_choice,
)
from penstock.tasks.specs import ActionSpec, NoiseSpec
from penstock.tasks.tape.operations import call

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.tasks.model.nn.network import Network
    from penstock.tasks.specs import Trajectory


def agent_inputs(
    features: Tensor, agents: range, *, central: bool, gives_id: bool, present: Tensor | None = None
) -> Tensor:
    """Return the inputs of some agents' networks, from what all agents observe. No gradient passes.

    Args:
        features: `[..., all, n]`, float32, of all agents.
        agents: those whose inputs are wanted.
        central: each gets what all observe: its own features first, then those of the agents after it, around to the
            one before it. Otherwise it gets its own alone.
        gives_id: append the agent's number, one-hot among all.
        present: `[..., all]`, nonzero for agents that have not left; None if all are there. What the others observe is
            a zero in all inputs, whatever `features` has of them, and so is everything but the id in their own.

    Returns:
        `[..., len(agents), width]`.
    """
    *outer, every, numbers = features.shape
    width = numbers * (every if central else 1) + (every if gives_id else 0)
    number = kernels.level_number(features)
    if (
        number is not None
        and kernels.plain(features)
        and (present is None or (kernels.plain(present) and present.shape == features.shape[:-1]))
    ):
        found = torch.empty(*outer, len(agents), width)
        rows = features.numel() // (every * numbers) if numbers else 0
        sizes = (rows, every, numbers, agents.start, len(agents), int(central), int(gives_id))
        call(number, "agent_inputs", (features, present, found), sizes)
        return found
    with torch.no_grad():
        return _arranged(
            features if central else features[..., axis_of(agents), :],
            agents,
            every,
            central=central,
            gives_id=gives_id,
            present=present,
        )


def _arranged(
    features: Tensor, agents: range, every: int, *, central: bool, gives_id: bool, present: Tensor | None
) -> Tensor:
    """Return the inputs as `agent_inputs` does, with gradients; of `features` `[..., agents, n]` unless `central`."""
    own = axis_of(agents)
    there = None if present is None else (present != 0).unsqueeze(-1)
    if there is not None:
        features = torch.where(there if central else there[..., own, :], features, 0.0)
    seen = features
    if central:
        seen = torch.stack([features.roll(-agent, -2).flatten(-2) for agent in agents], -2)
        if there is not None:
            seen = torch.where(there[..., own, :], seen, 0.0)
    if not gives_id:
        return seen if there is None else seen.contiguous()
    ids = torch.eye(every, device=features.device)[own]
    return torch.cat([seen, ids.expand(*features.shape[:-2], *ids.shape)], -1)


def agent_means(values: Tensor) -> Tensor:
    """Reduce values `[rows, ..., agents]` of training rows to their means `[rows]`, without a gradient."""
    values = values.detach().flatten(1)
    number = kernels.level_number(values)
    if number is None or not kernels.plain(values):
        return values.mean(-1)
    found = torch.empty(len(values))
    call(number, "row_means", (values, found), values.shape)
    return found


def present_agents(allowed: Tensor | None) -> Tensor | None:
    """Return 1 for agents that are there and 0 for those that have left, float32 `[..., agents]`.

    An agent that its mask `[..., agents, n]` allows nothing has left. Without masks (None) all are there: None.
    """
    return None if allowed is None else allowed.any(-1).float()


def flat_features(observation: Tensor) -> Tensor:
    """Convert `[rows, agents, ...]` of any number type to float32 `[rows, agents, inputs]`."""
    return observation.flatten(2).float()


def axis_of(agents: range) -> slice:
    """Return these agents' part of the agent axis."""
    return slice(agents.start, agents.stop)


def memory_of(memories: Tensor | None, network: int, agents: range) -> Tensor | None:
    """Take some agents' memories of one network `[rows, agents, features]` from `[rows, networks, all, features]`."""
    return None if memories is None else memories[:, network, axis_of(agents)]


def join_agents(parts: Sequence[Tensor], axis: int) -> Tensor:
    """Join tensors of several agents."""
    return torch.cat(list(parts), axis) if len(parts) > 1 else parts[0]


@dataclass(frozen=True, slots=True)
class _Alike:
    """Neighbours among agents whose actions have one structure."""

    agents: slice
    """Their places."""
    distribution: ActionDistribution
    output: int
    """The first of the network's outputs for them; those of agents that are alike are the same."""
    number: int
    """The first of their numbers in `log_std`."""


@lru_cache(maxsize=64)
def _alike(action: ActionSpec, agents: range) -> tuple[_Alike, ...]:
    places: dict[ActionSpec, tuple[int, int]] = {}
    found, output, number, first = [], 0, 0, 0
    for own, group in groupby(action.of_agents[axis_of(agents)]):
        distribution, count = ActionDistribution(own), len([*group])
        if own not in places:
            places[own] = (output, number)
            output, number = output + distribution.outputs, number + distribution.numbers
        found.append(_Alike(slice(first, first + count), distribution, *places[own]))
        first += count
    return tuple(found)


@dataclass(frozen=True, slots=True)
class TeamDistribution:
    """One network's distribution over the actions of agents, whatever their kind.

    Structured actions may differ between agents: those of one structure share the network's outputs and deviations,
    those of another have their own.

    Attributes:
        action: of the whole team.
        agents: those that act.
    """

    action: ActionSpec
    agents: range

    @property
    def outputs(self) -> int:
        """Outputs of the network for one agent."""
        if self.action.kind == "structured":
            return sum(one.outputs for one in self._kinds)
        return self.action.n if self.action.kind == "discrete" else math.prod(self.action.shape[1:])

    @property
    def numbers(self) -> int:
        """Numbers with a deviation: the length of `log_std`; 0 where there are choices alone."""
        if self.action.kind == "structured":
            return sum(one.numbers for one in self._kinds)
        return 0 if self.action.kind == "discrete" else self.outputs

    @property
    def noise(self) -> NoiseSpec:
        """Random numbers of a row, for all agents of the team; zero noise is greedy. As `ActionDistribution.noise`."""
        if self.action.kind == "structured":
            widest = max(ActionDistribution(own).outputs for own in self.action.of_agents)
            return NoiseSpec("normal", (len(self.action.of_agents), widest))
        if self.action.kind == "discrete":
            return NoiseSpec("gumbel", (*self.action.shape, self.action.n))
        return NoiseSpec("normal", self.action.shape)

    def sample(
        self, output: Tensor, log_std: Tensor | None, noise: Tensor, allowed: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Sample actions `[B, agents, ...]`, as columns store them, and their log-probabilities `[B, agents]`.

        Args:
            output: `[B, agents, outputs]`, of the network.
            log_std: `[numbers]`; None if there are none.
            noise: `[B, agents, ...]`, these agents' part of `noise`.
            allowed: bool `[B, agents, n]`; None allows all.
        """
        if self.action.kind == "discrete":
            return choose(output, noise, allowed)
        if self.action.kind == "box":
            vector, log_probability = displace(output, cast("Tensor", log_std), noise.flatten(2))
            return vector.view(*vector.shape[:2], *self.action.shape[1:]), log_probability
        found = []
        for one in _alike(self.action, self.agents):
            distribution = one.distribution
            action, log_probability = distribution.sample(
                self._outputs_of(one, output),
                self._numbers_of(one, log_std),
                noise[:, one.agents, : distribution.outputs],
                None if allowed is None else allowed[:, one.agents, : distribution.outputs],
            )
            padding = self.action.shape[-1] - action.shape[-1]
            found.append((torch.nn.functional.pad(action, (0, padding)), log_probability))
        actions, log_probabilities = (join_agents(parts, 1) for parts in zip(*found, strict=True))
        return actions, log_probabilities

    def probability(
        self, output: Tensor, log_std: Tensor | None, action: Tensor, allowed: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Compute the log-probability or log-density `[..., agents]` of actions, and the entropy `[..., agents]`.

        Args:
            output: `[..., agents, outputs]`, of the network.
            log_std: `[numbers]`; None if there are none.
            action: `[..., agents, *shape]`, as columns store it.
            allowed: bool `[..., agents, n]`; None allows all.
        """
        if self.action.kind == "discrete":
            return choice_probability(output, action, allowed)
        if self.action.kind == "box":
            return vector_probability(output, cast("Tensor", log_std), action.flatten(output.dim() - 1))
        found = []
        for one in _alike(self.action, self.agents):
            outputs, numbers = one.distribution.outputs, one.distribution.action.shape[0]
            found.append(
                one.distribution.probability(
                    self._outputs_of(one, output),
                    self._numbers_of(one, log_std),
                    action[..., one.agents, :numbers],
                    None if allowed is None else allowed[..., one.agents, :outputs],
                )
            )
        log_probabilities, entropies = (join_agents(parts, -1) for parts in zip(*found, strict=True))
        return log_probabilities, entropies

    def with_fixed_choices(self, allowed: Tensor) -> Tensor:
        """Let agents that have left take choice 0 alone, and 0 for numbers: masks `[..., agents, n]` that say that.

        Such an agent's action has a log-probability and an entropy of exactly 0, and no gradient.
        """
        if self.action.kind != "structured":
            return with_fixed_choice(allowed)
        rows = []
        for one in _alike(self.action, self.agents):
            own, rest = allowed[..., one.agents, :].tensor_split([one.distribution.outputs], -1)
            rows.append(torch.cat([one.distribution.with_fixed_choices(own), rest], -1))
        return join_agents(rows, -2)

    @property
    def _kinds(self) -> tuple[ActionDistribution, ...]:
        return tuple(dict.fromkeys(one.distribution for one in _alike(self.action, self.agents)))

    def _outputs_of(self, one: _Alike, output: Tensor) -> Tensor:
        own: Tensor = output[..., one.agents, one.output : one.output + one.distribution.outputs]
        return own

    def _numbers_of(self, one: _Alike, log_std: Tensor | None) -> Tensor | None:
        return None if log_std is None else log_std.narrow(0, one.number, one.distribution.numbers)


@dataclass(frozen=True, slots=True)
class AgentNetwork:
    """A network that several agents apply, each to inputs and with a memory of its own."""

    network: Network
    """From an agent's inputs to outputs."""
    encoder: Network | None = None
    """Encodes what each agent observes, before inputs are made of it; None leaves it as it is. Its perceptron is not
    used."""
    central: bool = False
    """True if an agent's inputs have what all agents observe, otherwise its own alone."""
    gives_id: bool = False
    """True if they end with the agent's id."""

    def init(self, outputs: int, gain: float, generator: torch.Generator) -> dict[str, Tensor]:
        """Return orthogonal weights of encoder and network, as `Network.init` makes them."""
        body = {} if self.encoder is None else self.encoder.init_body(generator)
        return {**body, **self.network.init(outputs, gain, generator)}

    def inputs(
        self, params: Mapping[str, Tensor], features: Tensor, agents: range, present: Tensor | None = None
    ) -> Tensor:
        """Return the inputs of some agents' networks `[..., len(agents), n]`, from what all observe.

        With an encoder, gradients pass to its parameters, and zeros stand for what it makes of agents that have left.

        Args:
            params: as `init` makes them.
            features: `[..., all, n]`, float32.
            agents: those whose inputs are wanted.
            present: as for `agent_inputs`.
        """
        if self.encoder is None:
            return agent_inputs(features, agents, central=self.central, gives_id=self.gives_id, present=present)
        observed = features if self.central else features[..., axis_of(agents), :]
        encoded = self.encoder.encoded(params, observed.flatten(0, -2))
        return _arranged(
            encoded.unflatten(0, (-1, *observed.shape[1:-1])),
            agents,
            features.shape[-2],
            central=self.central,
            gives_id=self.gives_id,
            present=present,
        )

    def step(self, params: Mapping[str, Tensor], memory: Tensor | None, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Compute outputs `[B, agents, outputs]` of inputs `[B, agents, n]`, and the memories after.

        `memory` is `[B, agents, features]`; None for a network without one.
        """
        if memory is None:
            return self.network.step(params, None, inputs)
        agents = inputs.shape[:2]
        outputs, after = self.network.step(params, memory.flatten(0, 1), inputs.flatten(0, 1))
        return outputs.unflatten(0, agents), None if after is None else after.unflatten(0, agents)

    def over_round(
        self,
        params: Mapping[str, Tensor],
        trajectory: Trajectory,
        inputs: Tensor,
        final: Tensor,
        memory: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Compute outputs of a round, `[T, B, agents, outputs]`, and of its bootstrap rows, `[K, agents, outputs]`.

        Args:
            params: as `Network.init` makes them.
            trajectory: of a tile; its flags and bootstrap rows are read.
            inputs: `[T * B, agents, n]`.
            final: `[K, agents, n]`, of the bootstrap observations.
            memory: `[B, agents, features]`, before the first step; None for a network without one.
        """
        steps, envs = trajectory.columns["terminated"].shape
        if memory is None:
            return self.network.step(params, None, inputs)[0].unflatten(0, (steps, envs)), self.network.step(
                params, None, final
            )[0]
        agents = inputs.shape[1]
        flat = _agents_as_environments(trajectory, agents)
        outputs, after = self.network.over_round(
            params, flat, inputs.flatten(0, 1), final.flatten(0, 1), memory.flatten(0, 1)
        )
        return outputs.unflatten(1, (envs, agents)), after.unflatten(0, (-1, agents))

    def over_rows(
        self, params: Mapping[str, Tensor], inputs: Tensor, memory: Tensor | None, fresh: Tensor | None
    ) -> Tensor:
        """Compute outputs of training rows: of `[rows, agents, n]`, or of sequences `[rows, steps, agents, n]`.

        `memory` is `[rows, agents, features]`, before the first step of each, and `fresh` is `[rows, steps]`; None both
        for a network without memory.
        """
        if memory is None or fresh is None:
            return self.network.over_rows(params, inputs, None, None)
        rows, agents = memory.shape[:2]
        outputs = self.network.over_rows(
            params,
            inputs.transpose(1, 2).flatten(0, 1),
            memory.flatten(0, 1),
            fresh.repeat_interleave(agents, 0),
        )
        of_agents: Tensor = outputs.unflatten(0, (rows, agents))
        return of_agents.transpose(1, 2)


def _agents_as_environments(trajectory: Trajectory, agents: int) -> Trajectory:
    """Return the flags and bootstrap rows of a round as if every agent were an environment: `[T, B * agents]`."""
    flags = {name: trajectory.columns[name].repeat_interleave(agents, 1) for name in ("terminated", "truncated")}
    rows = (trajectory.bootstrap_rows.unsqueeze(-1) * agents) + torch.arange(
        agents, device=trajectory.bootstrap_rows.device
    )
    # `Network.over_round` reads the shape of a round from its rewards.
    return replace(trajectory, columns={**flags, "reward": flags["terminated"]}, bootstrap_rows=rows.flatten())

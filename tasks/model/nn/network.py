"""Networks that settings choose by name: from an observation to an algorithm's outputs. Pure torch.

An algorithm may import this. All of them end in a perceptron, after convolutions for images (`nature`, `residual`) or
for grids of cells (`small`, `lines`), convolutions for the images and grids among a structured observation's leaves
(`leaves`), or a memory of the episode (`recurrent`). `floorplan` differs: it has an output for each cell of a grid
(`penstock.tasks.model.nn.placement_network`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from torch import Tensor

from penstock.tasks.model.nn.layers import (
    gru,
    gru_sequence,
    init_gru,
    init_lines,
    init_mlp,
    init_nature,
    init_noise,
    init_residual,
    init_small,
    lines,
    mlp,
    nature,
    noise_numbers,
    noisy_mlp,
    part,
    residual,
    small,
)
from penstock.tasks.model.nn.leaves import (
    NATURE_SIDE,
    encoded_leaves,
    init_leaves,
    is_convolved,
    packed_leaves,
    unpacked_leaves,
)
from penstock.tasks.model.nn.placement_network import floorplan, init_floorplan
from penstock.tasks.model.nn.squashed import joined as with_action

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.tasks.model.nn.leaves import Cells
    from penstock.tasks.specs import Batch, Facts, LossInputs, Spec, Trajectory

NetworkName: TypeAlias = Literal["mlp", "nature", "residual", "small", "lines", "leaves", "recurrent", "floorplan"]

ChannelAxis: TypeAlias = Literal["first", "last"]

_BODY = "body."
_GRIDS = ("small", "lines")
"""Networks of grids of cells, whose channels are usually last."""
_CONVOLUTIONS = {
    "nature": (init_nature, nature),
    "residual": (init_residual, residual),
    "small": (init_small, small),
    "lines": (init_lines, lines),
}


@dataclass(frozen=True, slots=True)
class Network:
    """One network's structure; its parameters are the caller's. Observations are as `prepared` gives them."""

    name: NetworkName
    observation: Spec
    features: int
    """Width of the convolutions' output, for each image, or of the memory."""
    hidden: tuple[int, ...]
    """Widths of the perceptron's hidden layers."""
    facts: Facts | None = None
    """The environment's; `floorplan` needs them."""
    relu: bool = False
    """True if the perceptron's hidden layers have ReLUs, as is usual for values; otherwise they have tanh."""
    noisy_scale: float = 0.0
    """Initial scale of the noise of the perceptron's weights (`penstock.tasks.model.nn.layers`), for `noisy_step`; 0:
    they have none."""
    channels: ChannelAxis | None = None
    """Axis of an image's channels. None: as older runs have it, first for `residual`, last for `small` and `lines`, and
    for `nature` last if only that axis is shorter than 36."""
    cells: Cells = field(default_factory=dict, hash=False)
    """Leaves that `leaves` reads as grids of cells."""

    @property
    def recurrent(self) -> bool:
        """True if it has a memory, `[B, features]`, which is zero where an episode begins."""
        return self.name == "recurrent"

    @property
    def encoded_size(self) -> int:
        """Return the number of inputs that the perceptron gets from an observation."""
        if self.name == "leaves":
            leaves = self.observation.leaves
            return sum(self.features if is_convolved(leaf, self.cells) else leaf.width for leaf in leaves)
        return math.prod(self.observation.shape) if self.name == "mlp" else self.features

    def init(self, outputs: int, gain: float, generator: torch.Generator, joined: int = 0) -> dict[str, Tensor]:
        """Return orthogonal weights; `gain` scales those of the last layer, `<layers of hidden>.weight`.

        With `joined`, the perceptron takes so many numbers more than the observation gives: for `over_pairs`.
        """
        if self.name == "floorplan":
            return init_floorplan(self._known, self.features, self.hidden, outputs, gain, generator)
        body = self.init_body(generator)
        sizes = (self.encoded_size + joined, *self.hidden, outputs)
        head = init_mlp(sizes, gain, generator)
        scales = init_noise(sizes, self.noisy_scale) if self.noisy_scale else {}
        return {**body, **head, **scales}

    def init_body(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the weights of what is before the perceptron, which `encoded` applies, or of the memory."""
        body: dict[str, Tensor] = {}
        if self.name == "recurrent":
            body = init_gru(math.prod(self.observation.shape), self.features, generator)
        elif self.name == "leaves":
            body = init_leaves(self.observation.leaves, self.features, generator, self.cells)
        elif self.name != "mlp":
            body = _CONVOLUTIONS[self.name][0](self._channels_first, self.features, generator)
        return {f"{_BODY}{name}": value for name, value in body.items()}

    def near_uniform(self, params: Mapping[str, Tensor], outputs: int) -> None:
        """Scale down the weights of the first outputs, the policy's, made with gain 1: it then starts near uniform."""
        if self.name == "floorplan":
            params["cell.0.weight"].mul_(0.01)
        else:
            params[f"{len(self.hidden)}.weight"][:outputs].mul_(0.01)

    def without_rule(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return fresh parameters whose outputs estimate values: `floorplan` then does not begin with its rule."""
        if "rule.weight" in params:
            params["rule.weight"].zero_()
        return params

    def prepared(self, observation: Tensor) -> Tensor:
        """Convert `[rows, ...]` to the network's input: float32 `[rows, n]`, for `floorplan` the bytes.

        Images stay bytes, but become `[rows, height, width, channels]`, since a CPU convolves about twice as fast in
        that order, and changing it once costs less than in every epoch. Those with their channels last have that order.
        """
        if self.name == "floorplan" or self._is_channels_last:
            return observation
        return observation.movedim(1, -1).contiguous() if self.name in _CONVOLUTIONS else observation.flatten(1).float()

    def packed(self, observation: Tensor) -> Tensor:
        """Convert `[rows, ...]` to what training rows hold, which `encoded` takes as it takes `prepared` ones.

        The pixels of `leaves` are bytes in it. For acting they are floats: an exported policy has no packed rows.
        """
        prepared = self.prepared(observation)
        return packed_leaves(self.observation.leaves, prepared) if self.name == "leaves" else prepared

    def step(
        self, params: Mapping[str, Tensor], memory: Tensor | None, observation: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Compute outputs `[B, outputs]` for `prepared` observations, and the next memory.

        `memory` is None for a network without one. Other names in `params` are ignored.
        """
        if self.name == "floorplan":
            return floorplan(params, self._known, observation), None
        if memory is not None:
            memory = self.remembered(params, memory, observation)
            return self.over_encoded(params, memory), memory
        return self.over_encoded(params, self.encoded(params, observation)), None

    def remembered(self, params: Mapping[str, Tensor], memory: Tensor, observation: Tensor) -> Tensor:
        """Compute the next memory `[B, features]`, which the perceptron gets, of `prepared` observations."""
        return gru(part(params, _BODY), memory, observation)

    def encoded(self, params: Mapping[str, Tensor], observation: Tensor) -> Tensor:
        """Compute the perceptron's inputs `[B, encoded_size]` of `prepared` observations: for `mlp` these themselves.

        Images become features; a memory is none of it (`step`).
        """
        if self.name == "mlp":
            return observation
        if self.name == "leaves":
            leaves = self.observation.leaves
            numbers = unpacked_leaves(leaves, observation) if observation.dtype == torch.uint8 else observation
            return encoded_leaves(part(params, _BODY), leaves, numbers, self.cells)
        return _CONVOLUTIONS[self.name][1](part(params, _BODY), observation.movedim(-1, 1))

    def noise_numbers(self, outputs: int) -> int:
        """Return the number of random numbers that `noisy_step` takes for each row."""
        return noise_numbers((self.encoded_size, *self.hidden, outputs))

    def noisy_step(self, params: Mapping[str, Tensor], observation: Tensor, noise: Tensor) -> Tensor:
        """Compute outputs `[B, outputs]` of `prepared` observations by weights with normal noise `[B, noise_numbers]`.

        Convolutions have no noise.
        """
        return noisy_mlp(params, self.encoded(params, observation), noise, self._activation, len(self.hidden) + 1)

    def over_pairs(self, params: Mapping[str, Tensor], observation: Tensor, joined: Tensor) -> Tensor:
        """Compute outputs `[B, outputs]` of `prepared` observations, each with numbers of its own, `[B, n]`.

        So a critic judges vectors of actions: images are convolved, and the perceptron gets both. `params` are as
        `init` makes them with `joined=n`.
        """
        return self.over_encoded(params, self.encoded(params, observation), joined)

    def over_encoded(self, params: Mapping[str, Tensor], encoded: Tensor, joined: Tensor | None = None) -> Tensor:
        """Compute outputs `[B, outputs]` of what `encoded` or `remembered` gives, with numbers of its own or without.

        Args:
            params: as `init` makes them.
            encoded: `[B, encoded_size]`.
            joined: `[B, n]`, as `over_pairs` takes them; None for a network without.
        """
        return self._perceptron(params, encoded if joined is None else with_action(encoded, joined))

    def over_round(
        self,
        params: Mapping[str, Tensor],
        trajectory: Trajectory,
        observation: Tensor,
        final: Tensor,
        memory: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Compute outputs of a round, `[T, B, outputs]`, and of its bootstrap observations, `[K, outputs]`.

        Args:
            params: as `init` makes them.
            trajectory: of a tile.
            observation: its prepared observations, `[T * B, ...]`.
            final: its prepared bootstrap observations, `[K, ...]`.
            memory: `[B, features]`, before the first step; None for a network without one.
        """
        shape = trajectory.columns["reward"].shape[:2]
        if memory is None:
            return self.step(params, None, observation)[0].unflatten(0, shape), self.step(params, None, final)[0]
        fresh = fresh_rows(trajectory.columns)
        outputs, memories = self._sequence(params, memory, observation.unflatten(0, shape), fresh)
        return outputs, self.step(params, memories.flatten(0, 1)[trajectory.bootstrap_rows], final)[0]

    def training_rows(
        self, trajectory: Trajectory, observation: Tensor, learned: Mapping[str, Tensor], steps: int
    ) -> Batch:
        """Make training rows of prepared observations `[T * B, ...]` and the columns `learned` `[T, B, ...]`.

        Rows are `[T * B, ...]`. With a memory they are sequences, `[T / steps * B, steps, ...]`, with `fresh` and the
        `memory` before the first step.

        Raises:
            ValueError: a round is not a whole number of sequences.
        """
        if not self.recurrent:
            return {"observation": observation, **{name: column.flatten(0, 1) for name, column in learned.items()}}
        columns = trajectory.columns
        shape = columns["reward"].shape[:2]
        if shape[0] % steps:
            raise ValueError(f"a round of {shape[0]} steps is not a whole number of sequences of {steps} steps")
        whole = {"observation": observation.unflatten(0, shape), "memory": columns["memory"], **learned}
        whole["fresh"] = fresh_rows(columns)
        cut = {name: column.unflatten(0, (-1, steps)).transpose(1, 2).flatten(0, 1) for name, column in whole.items()}
        return {**cut, "memory": cut["memory"][:, 0]}

    def replayed_rows(
        self,
        columns: Mapping[str, Tensor],
        observation: Tensor,
        learned: Mapping[str, Tensor],
        steps: int,
        burn_in_steps: int,
        memory: Tensor | None = None,
    ) -> Batch:
        """Cut a tile's round into sequences for `over_replayed`, rows `[T / steps * B, steps, ...]`.

        Each step is in one sequence. Its `observation` and `fresh` also have the `burn_in_steps` steps before it; a
        round's first sequences have none (`burned` is False).

        Args:
            columns: of the round.
            observation: its prepared observations, `[T * B, ...]`.
            learned: further columns, `[T, B, ...]`, of a sequence's own steps.
            steps: of a sequence.
            burn_in_steps: of each row.
            memory: stored, before each step; rows have the one before their first step. None: they have none.

        Raises:
            ValueError: a round is not a whole number of sequences.
        """
        fresh, device = fresh_rows(columns), observation.device
        count, envs = shape = fresh.shape
        if count % steps:
            raise ValueError(f"a round of {count} steps is not a whole number of sequences of {steps} steps")
        starts = torch.arange(0, count, steps, device=device).unsqueeze(-1)
        own = starts + torch.arange(steps, device=device)
        longer = (starts + torch.arange(-burn_in_steps, steps, device=device)).clamp(min=0)

        def cut(column: Tensor, at: Tensor) -> Tensor:
            return column[at].transpose(1, 2).flatten(0, 1)

        return {
            "observation": cut(observation.unflatten(0, shape), longer),
            "fresh": cut(fresh, longer),
            "burned": (starts > 0).expand(-1, envs).flatten(),
            **({} if memory is None else {"memory": cut(memory, longer[:, :1]).squeeze(1)}),
            **{name: cut(column, own) for name, column in learned.items()},
        }

    def over_rows(
        self, params: Mapping[str, Tensor], observation: Tensor, memory: Tensor | None, fresh: Tensor | None
    ) -> Tensor:
        """Compute outputs of training rows: `[rows, outputs]`, or of sequences `[rows, steps, outputs]`.

        `memory` is `[rows, features]`, before the first step of each; None, as `fresh`, for a network without one.
        """
        if memory is None or fresh is None:
            return self.step(params, None, observation)[0]
        outputs, _ = self._sequence(params, memory, observation.transpose(0, 1), fresh.T)
        return outputs.transpose(0, 1)

    def over_replayed(
        self, params: Mapping[str, Tensor], batch: LossInputs, burn_in_steps: int
    ) -> tuple[Tensor, Tensor]:
        """Compute outputs of replayed sequences, `[rows, steps, outputs]`, and the memory after each step.

        Burn-in (Kapturowski et al. 2019, section 3): the steps before a sequence are run from the memory,
        without a gradient, so that the sequence begins with a memory of these parameters.

        Args:
            params: as `init` makes them, of a network with a memory.
            batch: has `observation` `[rows, burn_in_steps + steps, n]`, `fresh` likewise, `memory` `[rows, features]`
                before the first of them, which is empty if it has none, and `burned` `[rows]`: False where no step came
                before in the round, so that the memory is that of the sequence's first step.
            burn_in_steps: of each row.

        Returns:
            The outputs, and memories `[rows, steps, features]`.
        """
        memories = self.replayed_memories(params, batch, batch["observation"], batch.get("memory"), burn_in_steps)
        by_step = memories.transpose(0, 1)
        outputs = self._perceptron(params, by_step.flatten(0, 1)).unflatten(0, by_step.shape[:2])
        return outputs.transpose(0, 1), memories

    def replayed_memories(
        self,
        params: Mapping[str, Tensor],
        batch: LossInputs,
        observation: Tensor,
        memory: Tensor | None,
        burn_in_steps: int,
    ) -> Tensor:
        """Compute the memory after each step of replayed sequences, `[rows, steps, features]`, after their burn-in.

        Args:
            params: as `init` makes them, of a network with a memory.
            batch: has `fresh` and `burned`, as in `over_replayed`.
            observation: `[rows, burn_in_steps + steps, n]`.
            memory: `[rows, features]`, before the first of them; None: empty.
            burn_in_steps: of each row.
        """
        observation, fresh = observation.transpose(0, 1), batch["fresh"].T
        if memory is None:
            memory = observation.new_zeros(observation.shape[1], self.features)
        body = part(params, _BODY)
        if burn_in_steps:
            with torch.no_grad():
                _, burned = gru_sequence(body, memory, observation[:burn_in_steps], fresh[:burn_in_steps])
                memory = torch.where(batch["burned"].unsqueeze(-1), burned, memory)
        memories, _ = gru_sequence(body, memory, observation[burn_in_steps:], fresh[burn_in_steps:])
        return memories.transpose(0, 1)

    def after_replayed(self, params: Mapping[str, Tensor], batch: LossInputs, memories: Tensor) -> Tensor:
        """Compute outputs `[rows, steps, outputs]` of what was `following`, each with the memory after step `last`."""
        last = batch["last"].unsqueeze(-1).expand(-1, -1, memories.shape[-1])
        memory = memories.gather(1, last).flatten(0, 1)
        outputs, _ = self.step(params, memory, batch["following"].flatten(0, 1))
        return outputs.view(*batch["last"].shape, -1)

    @property
    def _channels_first(self) -> tuple[int, ...]:
        """Return the shape of what is convolved: channels, height, width."""
        shape = self.observation.shape
        return (shape[-1], *shape[:-1]) if self._is_channels_last else shape

    @property
    def _is_channels_last(self) -> bool:
        if self.channels is not None:
            return self.channels == "last"
        if self.name != "nature":
            return self.name in _GRIDS
        *size, last = self.observation.shape
        return last < NATURE_SIDE <= min(size)

    @property
    def _known(self) -> Facts:
        if self.facts is None:
            raise ValueError("network 'floorplan': the environment's facts have no netlist; choose another network")
        return self.facts

    def _sequence(
        self, params: Mapping[str, Tensor], memory: Tensor, observation: Tensor, fresh: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute outputs `[T, B, outputs]`, and the memory after each step `[T, B, features]`."""
        memories, _ = gru_sequence(part(params, _BODY), memory, observation, fresh)
        return self._perceptron(params, memories.flatten(0, 1)).unflatten(0, fresh.shape), memories

    @property
    def _activation(self) -> Callable[[Tensor], Tensor]:
        return torch.relu if self.relu else torch.tanh

    def _perceptron(self, params: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        return mlp(params, inputs, self._activation, len(self.hidden) + 1)


def rowwise(values: Tensor) -> Tensor:
    """Reduce values of training rows to `[rows]`: a sequence to its mean."""
    return values.flatten(1).mean(-1) if values.dim() > 1 else values


def fresh_rows(columns: Mapping[str, Tensor]) -> Tensor:
    """Return float `[T, B]`, 1 in rows after an episode's end in this round; stored memories reflect earlier ends."""
    ended = (columns["terminated"] != 0) | (columns["truncated"] != 0)
    return torch.cat([torch.zeros_like(ended[:1]), ended[:-1]]).float()

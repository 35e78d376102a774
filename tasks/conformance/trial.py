"""Acts rows with the algorithm under test in a real pool, for checks that change the rows a little."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from penstock.native import fill_noise
from penstock.native.conformance.report import CheckFailedError
from penstock.tasks.model.algorithms.contract import WEIGHT, SumsMinibatches, window_spec
from penstock.tasks.roles.acting.tile import RoundBuffers, TileActor
from penstock.tasks.roles.learning.gradients import minibatch_gradient
from penstock.tasks.roles.learning.minibatches import loss_noise
from penstock.tasks.roles.learning.shard_feed import learned_columns
from penstock.tasks.seeds import Purpose
from penstock.tasks.specs import LossInputs, ParameterGroup, State, Trajectory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from penstock.tasks.model.algorithms.contract import Algorithm, Loss
    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.specs import Batch, Params

Learned = tuple["Batch", dict[str, "Tensor"]]
Marks = dict[str, "Tensor | str"]
"""Copies of the tensors in a value, and the texts of its other parts, by path."""

_SPREAD = 0.2
_BIG = 1 << 30


class Trial:
    """Two tiles of a run's first round, acted with parameters far from their initial values.

    A fresh policy is nearly uniform, which would hide a difference between acting and learning.
    """

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.algorithm: Algorithm = context.algorithm
        settings = context.config
        self.steps, self.envs = settings.schedule.round_steps, settings.environment.envs_per_tile
        self.tiles = settings.environment.tiles

    @cached_property
    def state(self) -> State:
        """The state that acts and learns."""
        state = self.algorithm.init(1)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for name in sorted({loss.group for loss in self.algorithm.losses}):
                flat = state.params[name].flat
                flat += _SPREAD * torch.randn(flat.shape, generator=generator)
        return state

    @cached_property
    def snapshot(self) -> dict[str, ParameterGroup]:
        """The parameter groups that actors get."""
        return {name: self.state.params[name] for name in self.algorithm.actor_groups}

    @cached_property
    def trajectories(self) -> list[Trajectory]:
        """One trajectory for each tile."""
        found = []
        for tile in range(self.tiles):
            actor, buffers = TileActor(self.context, tile), RoundBuffers(self.context, tile)
            actor.start()
            end = actor.act_round(0, self.snapshot, buffers).end
            actor.close()
            columns = {name: torch.from_numpy(buffers.arrays[name].copy()) for name in learned_columns(self.context)}
            rows, following = end.bootstrap_rows.copy(), end.bootstrap_observation.copy()
            ends = torch.from_numpy(rows), torch.from_numpy(following)
            found.append(Trajectory(columns, *ends, self.context.envs_of(tile).start))
        return found

    def noise(self, draws: int) -> Tensor:
        """Draw noise as actors get it, float32 `[draws, envs, ...]`."""
        spec = self.algorithm.noise
        drawn = np.empty((draws, self.envs, *spec.shape), dtype=np.float32)
        fill_noise(spec.kind, 1, Purpose.ACTION, np.arange(self.envs), 0, drawn)
        return torch.from_numpy(drawn)

    @property
    def params(self) -> Params:
        """The parameters that `post` gets: none if rows stay in a window."""
        return {} if window_spec(self.algorithm) else self.state.params

    def learn(self, trajectories: list[Trajectory]) -> Learned:
        """Return the training rows of all trajectories, one after the other, and the global sums."""
        with torch.no_grad():
            batches = [self.algorithm.post(self.params, trajectory) for trajectory in trajectories]
            sums = [self.algorithm.stats(batch) for batch in batches]
        stats = {name: torch.stack([part[name] for part in sums]).sum(0) for name in sums[0]}
        return {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}, stats

    def losses(
        self, rows: Batch, stats: Mapping[str, Tensor], cut: slice = slice(None), state: State | None = None
    ) -> dict[str, tuple[Tensor, dict[str, Tensor]]]:
        """Return gradient and row outputs of every loss, by name, over a part of the rows, all at one state."""
        found = {}
        state = state or self.state
        for loss, batch in self.inputs(rows, stats):
            part = {name: column[cut] for name, column in batch.rows.items()}
            noise = None if batch.noise is None else batch.noise[cut]
            found[loss.name] = minibatch_gradient(loss, state, part, batch.stats, _BIG, batch.count, noise)
        return found

    def inputs(self, rows: Batch, stats: Mapping[str, Tensor]) -> Iterator[tuple[Loss, LossInputs]]:
        """Yield every loss with its inputs, as for one minibatch of all rows."""
        count = len(next(iter(rows.values())))
        totals = {name: value.item() for name, value in stats.items() if not value.dim()}
        totals |= self._minibatch_totals(rows)
        if window_spec(self.algorithm):
            rows = {**rows, WEIGHT: torch.ones(count)}
        for number, loss in enumerate(self.algorithm.losses):
            noise = loss_noise(loss.noise, 1, number, 0, 0, torch.arange(count)) if loss.noise else None
            yield loss, LossInputs(rows, count, totals, self.state.targets, noise)

    def _minibatch_totals(self, rows: Batch) -> dict[str, float]:
        algorithm = self.algorithm
        if not isinstance(algorithm, SumsMinibatches) or not algorithm.summed_columns:
            return {}
        columns = {name: rows[name] for name in algorithm.summed_columns}
        cut = len(next(iter(columns.values()))) // 3
        whole, first, second = (
            algorithm.minibatch_stats({name: column[part] for name, column in columns.items()})
            for part in (slice(None), slice(cut), slice(cut, None))
        )
        for name, value in whole.items():
            added = (first[name] + second[name]).item()
            if not math.isclose(added, value.item(), rel_tol=1e-6, abs_tol=1e-6):
                raise CheckFailedError(
                    f"minibatch_stats: '{name}' of two parts of a minibatch adds up to {added:.4g}, and is "
                    f"{value.item():.4g} of the whole; expected the same: give sums, and divide in the loss"
                )
        return {name: value.item() for name, value in whole.items()}

    def gradients(self, trajectories: list[Trajectory]) -> dict[str, Tensor]:
        """Return the gradient of every loss over all rows of a round."""
        rows, stats = self.learn(trajectories)
        return {name: gradient for name, (gradient, _) in self.losses(rows, stats).items()}

    def ends(self, trajectory: Trajectory) -> tuple[Tensor, Tensor, Tensor]:
        """Return for bootstrap rows whether they are terminated, only truncated, and neither: bool `[K]` each."""
        rows = trajectory.bootstrap_rows
        terminated = trajectory.columns["terminated"].reshape(-1)[rows] != 0
        truncated = (trajectory.columns["truncated"].reshape(-1)[rows] != 0) & ~terminated
        return terminated, truncated, ~(terminated | truncated)

    def pure(self, name: str, function: Callable[..., Any], *given: Any) -> Any:
        """Call a function twice with the same arguments and return its result.

        Raises:
            CheckFailedError: the results differ, or the function has a side effect.
        """
        fields, arguments, generators = _marks(_fields(self.algorithm)), _marks(given), _generators()
        first = function(*given)
        for changing, before, after, advice in (
            ("a global random generator", generators, _generators(), "take noise, or the given seed or generator"),
            ("the algorithm object", fields, _marks(_fields(self.algorithm)), "keep what changes in State.targets"),
            ("its arguments", arguments, _marks(given), "compute new tensors"),
        ):
            changed = sorted(key for key in {*before, *after} if not _same(before.get(key), after.get(key)))
            if changed:
                raise CheckFailedError(
                    f"{name} changes {changing} ({', '.join(changed[:3])}), expected no side effect: {advice}"
                )
        again = function(*given)
        differing = [key for key, value in _marks(first).items() if not _same(value, _marks(again).get(key))]
        if differing:
            raise CheckFailedError(
                f"{name} returns another result when it is called again with the same arguments "
                f"({differing[0] or 'its result'} differs), expected a function of its arguments: draw from the given "
                f"noise, seed or generator alone"
            )
        return first


def clone(state: State) -> State:
    """Copy a state."""
    return State(
        params={name: group.to(torch.device("cpu")) for name, group in state.params.items()},
        optimizer={name: {key: value.clone() for key, value in kept.items()} for name, kept in state.optimizer.items()},
        targets={name: value.clone() for name, value in state.targets.items()},
    )


def tensors_of(value: State | Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a copy of every tensor in a state or a part of it, by its path.

    Raises:
        CheckFailedError: there is something else in it.
    """
    tensors = {}
    for path, mark in _leaves(value, ""):
        if not isinstance(mark, torch.Tensor):
            raise CheckFailedError(f"the state has {mark} as '{path}', expected tensors alone: make it a tensor")
        tensors[path] = mark
    return tensors


def _marks(value: object) -> Marks:
    return dict(_leaves(value, ""))


def _leaves(value: object, path: str) -> Iterator[tuple[str, Tensor | str]]:
    if isinstance(value, torch.Tensor):
        yield path, value.detach().clone()
    elif isinstance(value, np.ndarray):
        yield path, torch.from_numpy(value.copy())
    elif isinstance(value, ParameterGroup):
        yield path, value.flat.clone()
    elif isinstance(value, torch.nn.Module):
        yield from _leaves(value.state_dict(), path)
    elif isinstance(value, torch.Generator):
        yield path, value.get_state()
    elif isinstance(value, np.random.Generator):
        yield path, repr(value.bit_generator.state)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{path}/{key}".strip("/"))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}/{index}".strip("/"))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _leaves(getattr(value, field.name), f"{path}/{field.name}".strip("/"))
    else:
        yield path, repr(value)


def _fields(algorithm: Algorithm) -> dict[str, object]:
    slots = [name for kind in type(algorithm).__mro__ for name in getattr(kind, "__slots__", ())]
    named = {name: getattr(algorithm, name) for name in slots if hasattr(algorithm, name)}
    return {**named, **getattr(algorithm, "__dict__", {})}


def _generators() -> Marks:
    numpy = np.random.get_state(legacy=False)  # noqa: NPY002  (its use is the fault to detect)
    # To write an array's numbers takes 25 times as long as its bytes.
    state = {
        name: value.tobytes() if isinstance(value, np.ndarray) else value for name, value in numpy["state"].items()
    }
    return {
        "torch": torch.get_rng_state(),
        "numpy": repr({**numpy, "state": state}),
        "random": repr(random.getstate()),
    }


def _same(one: Tensor | str | None, other: Tensor | str | None) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and bool(torch.equal(one, other))
    return type(one) is type(other) and bool(one == other)

"""A round's update as one piece of work on a device: trajectories in, optimizer's steps taken, no host in between.

The plan is copied to the device before the round, and the row outputs are read after its last step. In between,
`post`, statistics, minibatches, gradients, steps and `after_round` are functions of tensors at fixed addresses, so that
a GPU can replay them as one CUDA graph (`CapturedWork`). They are the functions that every other learner calls: tests
compare the two on a CPU, byte for byte, and count the host's copies on a device that shows them.
"""

from __future__ import annotations

from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Self

import torch

from penstock.tasks.data.input.fixed_shapes import has_fixed_shapes
from penstock.tasks.environments.torch.device_work import CapturedWork, Staged
from penstock.tasks.model.algorithms.contract import Draw, round_limit
from penstock.tasks.roles.learning.minibatches import rows_of, take_share
from penstock.tasks.roles.learning.round_update import (
    plan_round,
    row_count_of,
    summed_columns,
    sums_of_minibatches,
    take_steps,
    together,
)
from penstock.tasks.roles.learning.window import RoundWindow
from penstock.tasks.roles.reducing.reduction import LocalReduction
from penstock.tasks.specs import Trajectory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import Tensor

    from penstock.tasks.roles.learning.minibatches import Share
    from penstock.tasks.roles.learning.round_update import StageTally
    from penstock.tasks.roles.reducing.reduction import Reduction
    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.specs import State


class DeviceRounds:
    """Learns rounds of fixed shapes, alone. For one thread.

    Args:
        context: of the run; its algorithm is on-policy, and its losses need no noise.
        device: of the state and the rows.
        reduction: of a single learner.
    """

    def __init__(self, context: RunContext, device: torch.device, reduction: Reduction) -> None:
        self._context = context
        self._device = device
        self._reduction = reduction
        self._work = CapturedWork("learning a round", device)
        self._round = self._planned_round = -1
        self._row_count = 0
        self._plan: Staged | None = None
        self._sizes: list[int] = []
        self._trajectories: list[Trajectory] = []
        self._state: State | None = None
        self._outputs: list[tuple[str, int]] = []
        self._means = torch.empty(0, dtype=torch.float64)

    @classmethod
    def of(cls, context: RunContext, device: torch.device, reduction: Reduction) -> Self | None:
        """Return what learns a stage's rounds, or None where rounds have no fixed shapes, or a step needs the host.

        That is so on a CPU, with several learners, with losses whose noise the host draws, and where the host decides
        whether a round goes on.
        """
        algorithm = context.algorithm
        asks_host = any(loss.noise for loss in algorithm.losses) or round_limit(algorithm) is not None
        if type(reduction) is not LocalReduction or asks_host:
            return None
        return cls(context, device, reduction) if has_fixed_shapes(context, device) else None

    def prepare(self, round_: int) -> None:
        """Plan a round and start to copy the plan, before the rows are there; not in the first, whose rows are unknown.

        It depends on the number of rows alone, which is the same in every round.
        """
        if self._row_count:
            self._make_plan(round_)

    def learn(self, state: State, round_: int, trajectories: Sequence[Trajectory], tally: StageTally) -> State:
        """Learn a round; returns the state after it, whose tensors are those of before where the algorithm keeps them.

        Args:
            state: before the round; its parameters change in place.
            round_: counted over the whole run.
            trajectories: the round's, one a tile, always of the same shapes.
            tally: gets the outputs and the number of rows.
        """
        self._round, self._state = round_, state
        self._take_in(trajectories)
        self._work.run(self._update, *self._fixed(state))
        after = self._state
        # From here on the host may wait.
        tally.update_rows += sum(self._sizes)
        for (name, rows), mean in zip(self._outputs, self._means.cpu().tolist(), strict=True):
            tally.outputs.setdefault(name, {})[round_] = mean, rows
        return after

    def _fixed(self, state: State) -> tuple[object, ...]:
        """Return what a captured update depends on, besides the contents of tensors.

        An algorithm that replaces its tensors instead of writing to them has others each round, and stays eager.
        """
        tensors = [group.flat for group in state.params.values()]
        tensors += [value for group in state.optimizer.values() for value in group.values()]
        tensors += list(state.targets.values())
        return *tensors, *(column for each in self._trajectories for column in _tensors(each)), tuple(self._sizes)

    def _take_in(self, trajectories: Sequence[Trajectory]) -> None:
        """Copy a round to where the work reads it."""
        if [_shapes(each) for each in trajectories] != [_shapes(each) for each in self._trajectories]:
            self._trajectories = [
                Trajectory(
                    {name: torch.empty_like(column) for name, column in each.columns.items()},
                    torch.empty_like(each.bootstrap_rows),
                    torch.empty_like(each.bootstrap_observation),
                    each.first_env,
                )
                for each in trajectories
            ]
        for mine, given in zip(self._trajectories, trajectories, strict=True):
            for to, values in zip(_tensors(mine), _tensors(given), strict=True):
                to.copy_(values)

    def _make_plan(self, round_: int) -> None:
        planned = plan_round(self._context, round_, RoundWindow.of_round(self._row_count, round_))
        minibatches = [each.rows if isinstance(each, Draw) else each for each in planned]
        self._sizes = [len(each) for each in minibatches]
        rows = sum(self._sizes)
        if self._plan is None or len(self._plan.tensor) != rows:
            self._plan = Staged((rows,), torch.int64, self._device)
        if rows:
            self._plan.send(torch.cat(minibatches))
        self._planned_round = round_

    def _update(self) -> None:
        """Learn the round that was taken in, from `_state` to `_state`; this is what a GPU captures."""
        algorithm, state = self._context.algorithm, self._state
        assert state is not None
        with torch.no_grad():
            batches = [algorithm.post(state.params, each) for each in self._trajectories]
            sums = [algorithm.stats(batch) for batch in batches]
            stats = {name: torch.stack([part[name] for part in sums]).sum(0).double() for name in sums[0]}
        rows = row_count_of(batches)
        if (self._round, rows) != (self._planned_round, self._row_count):
            # The first round, which is never captured.
            self._row_count = rows
            self._make_plan(self._round)
        assert self._plan is not None
        window = RoundWindow.of_round(rows, self._round)
        shares: Iterable[Share] = take_share(self._plan.tensor.split(self._sizes), range(rows), rows)
        of_round: dict[str, float | Tensor] = {name: value for name, value in stats.items() if not value.dim()}
        totals: Iterable[Mapping[str, float | Tensor]] = repeat(of_round)
        batch = together(batches)
        if summed := summed_columns(self._context, batch):
            shares = [*shares]
            found = sums_of_minibatches(self._context, summed, shares)
            numbers = zip(*(value.unbind(0) for value in found.values()), strict=True)
            totals = (of_round | dict(zip(found, values, strict=True)) for values in numbers)
        take = partial(rows_of, batch)
        state, outputs, _ = take_steps(self._context, state, self._round, window, shares, take, totals, self._reduction)
        with torch.no_grad():
            self._state = self._reduction.after_round(state, stats)
            found = {name: torch.cat(parts) for name, parts in outputs.items()}
            self._outputs = [(name, len(values)) for name, values in found.items()]
            if found:
                self._means = torch.stack([values.double().mean() for values in found.values()])


def _tensors(trajectory: Trajectory) -> list[Tensor]:
    return [*trajectory.columns.values(), trajectory.bootstrap_rows, trajectory.bootstrap_observation]


def _shapes(trajectory: Trajectory) -> list[tuple[torch.Size, torch.dtype]]:
    return [(tensor.shape, tensor.dtype) for tensor in _tensors(trajectory)]

"""Trajectories get as many bootstrap rows as rows, and mean the same."""

from __future__ import annotations

import torch

from penstock.tasks.data.input.fixed_shapes import with_fixed_shapes
from penstock.tasks.model.nn.returns import successor_values, transitions
from penstock.tasks.specs import Trajectory

STEPS, ENVS = 4, 3


def played() -> Trajectory:
    """An episode of environment 1 ends after two steps, and the round after four."""
    columns = {"reward": torch.arange(12.0).view(STEPS, ENVS), "observation": torch.arange(12.0).view(STEPS, ENVS, 1)}
    return Trajectory(columns, torch.tensor([4, 9, 10, 11]), torch.tensor([[40.0], [90.0], [100.0], [110.0]]))


def test_the_last_row_is_repeated_with_its_observation():
    """The columns are the same objects, and a trajectory that has its shape is returned as it is."""
    trajectory = played()
    fixed = with_fixed_shapes(trajectory)
    assert fixed.columns is trajectory.columns
    assert fixed.bootstrap_rows.tolist() == [4, 9, 10, *[11] * 9]
    assert fixed.bootstrap_observation.flatten().tolist() == [40.0, 90.0, 100.0, *[110.0] * 9]
    assert with_fixed_shapes(fixed) is fixed


def test_successors_and_returns_are_the_same():
    """The functions with which algorithms use bootstrap rows."""
    both = [played(), with_fixed_shapes(played())]
    values = torch.rand(STEPS, ENVS, generator=torch.Generator().manual_seed(1))
    found = [successor_values(values, each.bootstrap_rows, each.bootstrap_observation[:, 0]) for each in both]
    assert torch.equal(*found)
    ends = torch.zeros(STEPS, ENVS, dtype=torch.uint8)
    ends[1, 1] = 1
    several = [
        transitions(
            each.columns["reward"],
            each.columns["observation"],
            each.bootstrap_rows,
            each.bootstrap_observation,
            ends,
            0.9,
            3,
        )
        for each in both
    ]
    assert all(torch.equal(one, other) for one, other in zip(*several, strict=True))

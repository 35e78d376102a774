"""Rounds whose tensors have the same shapes whatever happened in them, so that no host has to count anything.

The number of rows without a successor depends on the episodes that ended. On a device the host would have to wait for
it, and work whose shapes change can't be captured as a CUDA graph. There the last of these rows, which is the round's
last row, is repeated until there are as many as rows. `post` computes the same with it: a repeated row sets the same
value again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from penstock.tasks.model.algorithms.contract import window_spec
from penstock.tasks.specs import Trajectory

if TYPE_CHECKING:
    from penstock.tasks.runtime.run_context import RunContext


def has_fixed_shapes(context: RunContext, device: torch.device) -> bool:
    """Return whether a run's rounds have fixed shapes on a device: where torch environments act for a learner.

    On a CPU they have not, since nothing is waited for there, and repeated rows cost time. Neither have those of an
    off-policy algorithm, whose window is on the host.
    """
    return (
        device.type != "cpu"
        and context.policy.pools == "torch"
        and context.config.requires_full_round
        and window_spec(context.algorithm) is None
    )


def with_fixed_shapes(trajectory: Trajectory) -> Trajectory:
    """Return a trajectory with as many bootstrap rows as rows, by repeating the last one; no copy if it has them."""
    rows, after = trajectory.bootstrap_rows, trajectory.bootstrap_observation
    missing = trajectory.columns["reward"].shape[:2].numel() - len(rows)
    if not missing:
        return trajectory
    return Trajectory(
        trajectory.columns,
        torch.cat([rows, rows[-1:].expand(missing)]),
        torch.cat([after, after[-1:].expand(missing, *after.shape[1:])]),
        trajectory.first_env,
    )

"""Advantages and returns over time-major trajectories. Pure torch; an algorithm may import this."""

from __future__ import annotations

import torch
from torch import Tensor


def successor_values(values: Tensor, bootstrap_rows: Tensor, bootstrap_values: Tensor) -> Tensor:
    """Value of what followed each row: the next row's, or the stored final observation's where there is no next row.

    Args:
        values: `[T, B]`, value of each row's observation.
        bootstrap_rows: int64 `[K]`, rows `t * B + b` without a successor in the trajectory.
        bootstrap_values: `[K]`, values of the observations that followed these.

    Returns:
        `[T, B]`. Meaningless only if a last-step row is missing in `bootstrap_rows`, which shards rule out.
    """
    successors = torch.empty_like(values)
    successors[:-1] = values[1:]
    successors.view(-1)[bootstrap_rows] = bootstrap_values
    return successors


def generalized_advantages(
    rewards: Tensor,
    values: Tensor,
    successors: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    discount: float,
    trace_decay: float,
) -> Tensor:
    """Generalized advantage estimation (Schulman et al. 2016, arXiv 1506.02438, equations 11 and 16).

    delta_t = r_t + discount * successor_t * (1 - terminated_t) - V_t, and
    A_t = delta_t + discount * trace_decay * (1 - done_t) * A_{t+1}.
    A truncated episode bootstraps from its final observation, a terminated one does not; neither leaks into the next.

    Args:
        rewards: float `[T, B]`.
        values: `[T, B]`, of each row's observation.
        successors: `[T, B]`, as `successor_values` gives them.
        terminated: `[T, B]`, nonzero where the episode ended so.
        truncated: `[T, B]`, likewise.
        discount: gamma.
        trace_decay: lambda.

    Returns:
        float `[T, B]`.
    """
    alive = (terminated == 0).to(values.dtype)
    ongoing = alive * (truncated == 0).to(values.dtype)
    advantages = torch.addcmul(rewards - values, successors, alive, value=discount)
    decay = ongoing * (discount * trace_decay)
    rows, factors = advantages.unbind(0), decay.unbind(0)
    for step in range(len(rows) - 2, -1, -1):
        rows[step].addcmul_(factors[step], rows[step + 1])
    return advantages

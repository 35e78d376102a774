"""Advantages and returns over time-major trajectories. Pure torch; an algorithm may import this."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}

if TYPE_CHECKING:
    from penstock.tasks.specs import Trajectory


def successor_values(values: Tensor, bootstrap_rows: Tensor, bootstrap_values: Tensor) -> Tensor:
    """Return the value after each row: the next row's, or the stored final observation's if there is no next row.

    Args:
        values: `[T, B]`, values of the rows' observations; or `[T, B, agents]`.
        bootstrap_rows: int64 `[K]`, rows `t * B + b` without a successor in the trajectory.
        bootstrap_values: `[K]`, values of the observations that followed these; or `[K, agents]`.

    Returns:
        As `values`. Meaningless only if a last-step row is missing in `bootstrap_rows`, which shards rule out.
    """
    successors = torch.empty_like(values)
    successors[:-1] = values[1:]
    successors.view(-1, *values.shape[2:])[bootstrap_rows] = bootstrap_values
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
    """Compute generalized advantages (Schulman et al. 2016, arXiv 1506.02438, equations 11 and 16).

    delta_t = r_t + discount * successor_t * (1 - terminated_t) - V_t, and
    A_t = delta_t + discount * trace_decay * (1 - done_t) * A_{t+1}.
    A truncated episode bootstraps from its final observation, a terminated one does not; neither leaks into the next.

    Args:
        rewards: float `[T, B]`; with several agents this and the next two are `[T, B, agents]`.
        values: `[T, B]`, of each row's observation.
        successors: `[T, B]`, as `successor_values` gives them.
        terminated: `[T, B]`, nonzero where the episode ended so; with several agents `[T, B, 1]`.
        truncated: `[T, B]`, likewise.
        discount: gamma.
        trace_decay: lambda.

    Returns:
        float, as `values`.
    """
    alive = (terminated == 0).to(values.dtype)
    ongoing = alive * (truncated == 0).to(values.dtype)
    advantages = torch.addcmul(rewards - values, successors, alive, value=discount)
    decay = ongoing * (discount * trace_decay)
    rows, factors = advantages.unbind(0), decay.unbind(0)
    for step in range(len(rows) - 2, -1, -1):
        rows[step].addcmul_(factors[step], rows[step + 1])
    return advantages


class Transitions(NamedTuple):
    """Returns and successors of each row over n steps.

    Attributes:
        returns: `[T, B]`, discounted sums of the rewards of these steps.
        following: `[T * B, ...]`, the observations after them.
        factors: `[T, B]`, factors of the values of `following`: the discount of these steps, or 0 after a termination.
        last: int64 `[T, B]`, the step of the last reward: `following` comes after it.
    """

    returns: Tensor
    following: Tensor
    factors: Tensor
    last: Tensor


def set_rows(into: Tensor, rows: Tensor, values: Tensor) -> None:
    """Set rows of a tensor; torch can't index unsigned numbers of several bytes, which are set as the signed ones."""
    signed = _SIGNED.get(into.dtype)
    if signed is None:
        into[rows] = values
    else:
        into.view(signed)[rows] = values.view(signed)


def take_rows(column: Tensor, rows: Tensor) -> Tensor:
    """Return rows of a tensor, in the order of int64 `rows`; unsigned numbers of several bytes as `set_rows` does."""
    signed = _SIGNED.get(column.dtype)
    if signed is None:
        return column.index_select(0, rows)
    return column.view(signed).index_select(0, rows).view(column.dtype)


def transitions(
    rewards: Tensor,
    observation: Tensor,
    bootstrap_rows: Tensor,
    bootstrap_observation: Tensor,
    terminated: Tensor,
    discount: float,
    steps: int = 1,
) -> Transitions:
    """Compute n-step returns and the observations after them; fewer steps at an episode's or the trajectory's end.

    Args:
        rewards: float `[T, B]`.
        observation: `[T, B, ...]`.
        bootstrap_rows: int64 `[K]`, rows `t * B + b` without a successor in the trajectory, the last step's among them.
        bootstrap_observation: `[K, ...]`, the observations after these.
        terminated: `[T, B]`, nonzero where the episode ended so.
        discount: gamma.
        steps: n of n-step returns.
    """
    rounds, envs = rewards.shape
    after = observation.flatten(0, 1).roll(-envs, 0)
    set_rows(after, bootstrap_rows, bootstrap_observation)
    continues = torch.ones(rounds * envs, dtype=torch.bool, device=rewards.device)
    continues[bootstrap_rows] = False
    flat = rewards.flatten()
    returns = flat.clone()
    last = torch.arange(rounds * envs, device=rewards.device)
    power = torch.full_like(returns, discount)
    for _ in range(steps - 1):
        ongoing = continues[last]
        last = torch.where(ongoing, last + envs, last)
        returns = torch.where(ongoing, returns + power * flat[last], returns)
        power = torch.where(ongoing, power * discount, power)
    factors = power * (terminated.flatten()[last] == 0)
    shape = rounds, envs
    return Transitions(returns.view(shape), after[last], factors.view(shape), (last // envs).view(shape))


def transitions_of(trajectory: Trajectory, discount: float, steps: int = 1, reward_scale: float = 1.0) -> Transitions:
    """Compute the `transitions` of a tile's round; `reward_scale` is a factor on its rewards."""
    columns = trajectory.columns
    return transitions(
        columns["reward"] if reward_scale == 1.0 else columns["reward"] * reward_scale,
        columns["observation"],
        trajectory.bootstrap_rows,
        trajectory.bootstrap_observation,
        columns["terminated"],
        discount,
        steps,
    )


class VTrace(NamedTuple):
    """V-trace targets and advantages of a round.

    Attributes:
        targets: `[T, B]`, v_s, the targets of the values.
        advantages: `[T, B]`, r_s + discount * v_{s+1} - V_s. The policy gradient weights them by rho_s, which the
            loss computes: the policy has changed there since.
    """

    targets: Tensor
    advantages: Tensor


def vtrace(
    rewards: Tensor,
    values: Tensor,
    successors: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    log_ratios: Tensor,
    discount: float,
    *,
    trace_decay: float = 1.0,
    rho_limit: float = 1.0,
    c_limit: float = 1.0,
) -> VTrace:
    """Compute V-trace targets and advantages (Espeholt et al. 2018, arXiv 1802.01561, equation 1 and below).

    With rho_t = min(rho_limit, ratio_t) and c_t = trace_decay * min(c_limit, ratio_t):
    delta_t = rho_t * (r_t + discount * successor_t * (1 - terminated_t) - V_t), and
    v_t - V_t = delta_t + discount * c_t * (1 - done_t) * (v_{t+1} - V_{t+1}).
    A truncated episode bootstraps from its final observation, a terminated one does not; neither leaks into the next.
    At an end that bootstraps, v of the final observation is its value.

    `rho_limit` decides which policy's values are learned, `c_limit` how fast; the paper requires rho_limit >= c_limit.

    Args:
        rewards: float `[T, B]`.
        values: `[T, B]`, of each row's observation.
        successors: `[T, B]`, as `successor_values` gives them.
        terminated: `[T, B]`, nonzero where the episode ended so.
        truncated: `[T, B]`, likewise.
        log_ratios: `[T, B]`, log-probability of the action under the policy that learns, less that under the one that
            acted.
        discount: gamma.
        trace_decay: lambda.
        rho_limit: rho-bar; infinity does not clip.
        c_limit: c-bar, likewise.

    Returns:
        Float `[T, B]` each. Gradients flow through both: call it without them.
    """
    ratios = log_ratios.exp()
    rho = ratios.clamp(max=rho_limit)
    alive = (terminated == 0).to(values.dtype)
    ongoing = alive * (truncated == 0).to(values.dtype)
    corrections = rho * torch.addcmul(rewards - values, successors, alive, value=discount)
    decay = ongoing * ratios.clamp(max=c_limit) * (discount * trace_decay)
    rows, factors = corrections.unbind(0), decay.unbind(0)
    for step in range(len(rows) - 2, -1, -1):
        rows[step].addcmul_(factors[step], rows[step + 1])
    following = successors.clone()
    following[:-1].addcmul_(ongoing[:-1], corrections[1:])
    return VTrace(values + corrections, torch.addcmul(rewards - values, following, alive, value=discount))

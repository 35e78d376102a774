"""Values of choices: dueling outputs, and errors of the values of what was chosen. Pure torch.

An algorithm may import this.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from penstock.tasks.model.nn import kernels
from penstock.tasks.model.nn.distributions import best
from penstock.tasks.model.nn.returns import transitions_of
from penstock.tasks.tape.operations import call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.tasks.model.nn.network import Network
    from penstock.tasks.specs import Batch, EnvironmentSpec, Trajectory

_ETA = 0.9
"""Weight of a sequence's largest error in its priority."""
_EPSILON = 1e-3
"""Slope that rescaled values keep, so that they can be restored."""


def epsilon_after(minibatches: int, first: float, last: float, over_minibatches: int) -> float:
    """Return the probability of a random choice after so many minibatches of a run: it changes linearly, then stays."""
    return first + min(1.0, minibatches / over_minibatches) * (last - first)


def explored(values: Tensor, noise: Tensor, epsilon: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Take a random choice with probability epsilon, otherwise the one of the largest value.

    Args:
        values: `[rows, n]`.
        noise: `[rows, 1 + n]`, uniform in [0, 1): one number decides, and one for each choice, of which the largest
            wins. Zeros never explore.
        epsilon: `[1]`.
        allowed: bool `[rows, n]`; None allows everything.

    Returns:
        int64 `[rows]`.
    """
    level = kernels.level_number(values)
    if level is not None and _are_explored_by_kernel(values, noise, epsilon, allowed):
        found = torch.empty(len(values), dtype=torch.int64)
        call(level, "explore", (values, noise, epsilon, found), values.shape)
        return found
    return torch.where(noise[:, 0] > 1.0 - epsilon, best(noise[:, 1:], allowed), best(values, allowed))


def _are_explored_by_kernel(values: Tensor, noise: Tensor, epsilon: Tensor, allowed: Tensor | None) -> bool:
    """Return whether the kernel takes these. Not for `torch.export`, which would fix the number of rows here."""
    if allowed is not None or values.dim() != 2 or not values.shape[1] or epsilon.shape != (1,):
        return False
    return noise.shape == (len(values), values.shape[1] + 1) and all(map(kernels.plain, (values, noise, epsilon)))


def rows_of_choices(
    environment: EnvironmentSpec, network: Network, trajectory: Trajectory, discount: float, steps: int
) -> Batch:
    """Make training rows `[T * B, ...]` of a tile's round, for values of choices.

    Each has its `observation` and `action`, the n-step `return`, the observation that was `following` after these
    steps, the `factor` of its value, and the choices that were `allowed` there, if the environment forbids some.
    """
    columns = trajectory.columns
    followed = transitions_of(trajectory, discount, steps)
    following, allowed = environment.split(followed.following)
    unmasked, _ = environment.split(columns["observation"].flatten(0, 1))
    return {
        "observation": network.packed(unmasked),
        "action": columns["action"].flatten(),
        "return": followed.returns.flatten(),
        "following": network.packed(following),
        "factor": followed.factors.flatten(),
        **({} if allowed is None else {"allowed": allowed}),
    }


def sequences_of_choices(
    environment: EnvironmentSpec,
    network: Network,
    trajectory: Trajectory,
    discount: float,
    steps: int,
    sequence_steps: int,
    burn_in_steps: int,
) -> Batch:
    """Cut a tile's round into training rows of `sequence_steps` steps, for values of choices with a memory.

    Each step is in one sequence. A row also has the `burn_in_steps` steps before its sequence, with the `memory` before
    the first of these; a round's first sequences have none (`burned` is False). Columns are those of `rows_of_choices`
    by step; returns of several steps end with the sequence.

    Raises:
        ValueError: a round is not a whole number of sequences.
    """
    columns, shape = trajectory.columns, trajectory.columns["reward"].shape
    followed = transitions_of(_ended_every(trajectory, sequence_steps), discount, steps)
    following, allowed = environment.split(followed.following)
    unmasked, _ = environment.split(columns["observation"].flatten(0, 1))
    learned = {
        "action": columns["action"],
        "return": followed.returns,
        "following": network.prepared(following).unflatten(0, shape),
        "last": followed.last % sequence_steps,
        "factor": followed.factors,
        **({} if allowed is None else {"allowed": allowed.unflatten(0, shape)}),
    }
    observation, cut = network.prepared(unmasked), (sequence_steps, burn_in_steps)
    return network.replayed_rows(columns, observation, learned, *cut, columns["memory"])


def _ended_every(trajectory: Trajectory, steps: int) -> Trajectory:
    """Return a round none of whose rows has a successor beyond its sequence of so many steps."""
    columns = trajectory.columns
    count, envs = columns["reward"].shape
    cut = torch.zeros(count, envs, dtype=torch.bool, device=columns["reward"].device)
    cut[steps - 1 :: steps] = True
    cut.view(-1)[trajectory.bootstrap_rows] = False
    more = cut.flatten().nonzero().squeeze(-1)
    after = columns["observation"].flatten(0, 1)[more + envs]
    return replace(
        trajectory,
        bootstrap_rows=torch.cat([trajectory.bootstrap_rows, more]),
        bootstrap_observation=torch.cat([trajectory.bootstrap_observation, after]),
    )


def priorities(errors: Tensor) -> Tensor:
    """Return priorities `[rows]` of magnitudes of errors `[rows]`, or of sequences `[rows, steps]`.

    A sequence's is 0.9 times its largest error and 0.1 times their mean (Kapturowski et al. 2019, section 2.3). None is
    0: that row would never be drawn again.
    """
    if errors.dim() > 1:
        errors = _ETA * errors.amax(-1) + (1.0 - _ETA) * errors.mean(-1)
    return errors + 1e-6


def by_step(weights: Tensor, values: Tensor) -> Tensor:
    """Return the weights of rows `[rows]` in the shape of values: these themselves, or of sequences `[rows, steps]`."""
    return weights if values.dim() == 1 else weights.unsqueeze(-1).expand_as(values)


def rescaled(values: Tensor) -> Tensor:
    """Return `h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x` of values (Pohlen et al. 2018, arXiv 1805.11593)."""
    return values.sign() * ((values.abs() + 1.0).sqrt() - 1.0) + _EPSILON * values


def restored(values: Tensor) -> Tensor:
    """Return the values of which these are the `rescaled` ones (proposition A.2 of the same).

    The paper's `(root - 1) / (2 epsilon)` loses three digits of float32, so it is written without the difference.
    """
    shifted = values.abs() + 1.0 + _EPSILON
    root = (1.0 + 4.0 * _EPSILON * shifted).sqrt()
    return values.sign() * ((2.0 * shifted / (root + 1.0)).square() - 1.0)


def dueling_values(outputs: Tensor) -> Tensor:
    """Return the values `[..., n]` of choices by a dueling network's outputs `[..., 1 + n]`.

    Equation 9 of Wang et al. 2016 (arXiv 1511.06581): the state's value, and advantages without their mean.
    """
    level, tape = kernels.level_number(outputs), kernels.tape_for(outputs)
    followed = tape is None and torch.is_grad_enabled() and outputs.requires_grad
    if level is None or followed or not kernels.plain(outputs) or outputs.dim() != 2 or outputs.shape[1] < 2:
        advantage = outputs[..., 1:]
        return outputs[..., :1] + advantage - advantage.mean(-1, keepdim=True)
    rows, n = outputs.shape[0], outputs.shape[1] - 1
    found = torch.empty(rows, n)
    call(level, "dueling", (outputs, found), (rows, n))

    def back(gradients: Sequence[Tensor | None]) -> Sequence[Tensor]:
        to_outputs = torch.empty(rows, n + 1)
        call(level, "dueling_back", (kernels.contiguous_or_none(gradients[0]), to_outputs), (rows, n))
        return (to_outputs,)

    if tape is not None:
        tape.record((outputs,), (found,), back)
    return found


def choice_error(values: Tensor, action: Tensor, target: Tensor, *, huber: bool) -> tuple[Tensor, Tensor]:
    """Return by how much the value of each choice is above its target, and half the square of that.

    Args:
        values: `[rows, n]`.
        action: the choices, int64 `[rows]`.
        target: `[rows]`, without a gradient.
        huber: beyond 1 the loss is linear (Huber 1964, doi 10.1214/aoms/1177703732).

    Returns:
        The error `[rows]`, detached, and the loss `[rows]`.
    """
    tape, level = kernels.tape_for(values), kernels.level_number(values)
    is_plain = kernels.plain(values) and kernels.constant(target) and kernels.plain_choices(action)
    if tape is None or level is None or not (is_plain and target.shape == action.shape == values.shape[:1]):
        error = values.gather(-1, action.unsqueeze(-1)).squeeze(-1) - target
        # The gradient of either loss is the slope: detached, it makes their product's.
        slope = (error.clamp(-1.0, 1.0) if huber else error).detach()
        return error.detach(), slope * (error - 0.5 * slope)
    rows, n = values.shape
    error, slope, found = (torch.empty(rows) for _ in range(3))
    call(level, "choice_error", (values, action, target, error, slope, found), (rows, n), (huber,))

    def back(gradients: Sequence[Tensor | None]) -> Sequence[Tensor]:
        to_values = torch.empty(rows, n)
        tensors = (kernels.contiguous_or_none(gradients[0]), slope, action, to_values)
        call(level, "choice_error_back", tensors, (rows, n))
        return (to_values,)

    tape.record((values,), (found,), back)
    return error, found


def dueling_quantiles(outputs: Tensor, quantiles: int, *, dueling: bool) -> Tensor:
    """Return the quantiles `[rows, n, quantiles]` of choices' returns by outputs `[rows, (n or 1 + n) * quantiles]`.

    A dueling network has outputs for the state's quantiles first. To each of them it adds advantages without their mean
    over choices (section 3 of Hessel et al. 2018, arXiv 1710.02298).
    """
    if not dueling:
        return outputs.reshape(outputs.shape[0], -1, quantiles)  # an export traces the shape, and `len` would fix it
    level, tape = kernels.level_number(outputs), kernels.tape_for(outputs)
    if level is None or not kernels.plain(outputs) or (tape is None and _is_torchs(outputs)):
        parts = outputs.reshape(outputs.shape[0], -1, quantiles)
        return parts[:, :1] + parts[:, 1:] - parts[:, 1:].mean(1, keepdim=True)
    sizes = (outputs.shape[0], outputs.shape[1] // quantiles - 1, quantiles)
    found = torch.empty(sizes)
    call(level, "dueling_quantiles", (outputs, found), sizes)

    def back(gradients: Sequence[Tensor | None]) -> Sequence[Tensor]:
        to_outputs = torch.empty(outputs.shape)
        call(level, "dueling_quantiles_back", (kernels.contiguous_or_none(gradients[0]), to_outputs), sizes)
        return (to_outputs,)

    if tape is not None:
        tape.record((outputs,), (found,), back)
    return found


def quantile_means(quantiles: Tensor) -> Tensor:
    """Return the means `[rows, n]` of quantiles `[rows, n, q]`, which are the values of choices; without a gradient."""
    with torch.no_grad():
        level = kernels.level_number(quantiles)
        if level is None or not kernels.plain(quantiles):
            return quantiles.mean(-1)
        rows, n, q = quantiles.shape
        found = torch.empty(rows, n)
        call(level, "quantile_means", (quantiles, found), (rows * n, q))
        return found


def quantile_targets(quantiles: Tensor, choice: Tensor, returns: Tensor, factors: Tensor) -> Tensor:
    """Return `returns + factors * quantiles` of each row's choice, `[rows, q]`, without a gradient.

    Args:
        quantiles: `[rows, n, q]`, of what followed.
        choice: int64 `[rows]`.
        returns: `[rows]`.
        factors: `[rows]`.
    """
    with torch.no_grad():
        level, (rows, n, q) = kernels.level_number(quantiles), quantiles.shape
        is_plain = all(map(kernels.plain, (quantiles, returns, factors))) and kernels.plain_choices(choice)
        is_plain = is_plain and choice.shape == returns.shape == factors.shape == (rows,)
        if level is None or not is_plain:
            chosen = quantiles.gather(1, choice.view(-1, 1, 1).expand(-1, 1, q)).squeeze(1)
            return returns.unsqueeze(-1) + factors.unsqueeze(-1) * chosen
        found = torch.empty(rows, q)
        call(level, "quantile_targets", (quantiles, choice, returns, factors, found), (rows, n, q))
        return found


def quantile_error(quantiles: Tensor, action: Tensor, target: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """Return the value of each row's choice and its quantile Huber loss: equation 10 of Dabney et al. 2017.

    The loss (arXiv 1710.10044) is summed over the quantiles of the choice, and a mean over those of the target, as in
    algorithm 1.

    Args:
        quantiles: `[rows, n, q]`, of all choices.
        action: the choices, int64 `[rows]`.
        target: `[rows, q]`, without a gradient.
        limit: kappa, above 0; beyond it the loss is linear.

    Returns:
        The mean of the choice's quantiles `[rows]`, detached, and the loss `[rows]`.
    """
    rows, n, q = quantiles.shape
    tape, level = kernels.tape_for(quantiles), kernels.level_number(quantiles)
    action = action.contiguous()
    is_plain = kernels.plain(quantiles) and kernels.constant(target) and kernels.plain_choices(action)
    is_plain = is_plain and target.shape == (rows, q) and action.shape == (rows,)
    if tape is None or level is None or not is_plain:
        chosen = quantiles.gather(1, action.view(-1, 1, 1).expand(-1, 1, q)).squeeze(1)
        with torch.no_grad():
            middles = (torch.arange(q, device=target.device) + 0.5) / q
            error = target.unsqueeze(1) - chosen.unsqueeze(2)
            weight = (middles.unsqueeze(1) - (error < 0.0).float()).abs()
            limited = error.clamp(-limit, limit)
            slope = (weight * limited).mean(2)
            loss = (weight * limited * (error - 0.5 * limited)).mean(2).sum(1)
        # The gradient of the loss is minus the slope: this has it, without a table of errors for autograd.
        return chosen.detach().mean(-1), loss - (slope * (chosen - chosen.detach())).sum(1)
    value, slope, found = torch.empty(rows), torch.empty(rows, q), torch.empty(rows)
    call(level, "quantile_error", (quantiles, action, target, value, slope, found), (rows, n, q), (limit,))

    def back(gradients: Sequence[Tensor | None]) -> Sequence[Tensor]:
        to_quantiles = torch.empty(rows, n, q)
        tensors = (kernels.contiguous_or_none(gradients[0]), slope, action, to_quantiles)
        call(level, "quantile_error_back", tensors, (rows, n, q))
        return (to_quantiles,)

    tape.record((quantiles,), (found,), back)
    return value, found


def _is_torchs(tensor: Tensor) -> bool:
    """Return whether autograd follows a tensor."""
    return torch.is_grad_enabled() and tensor.requires_grad

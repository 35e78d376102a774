"""Networks, distributions, rounds and advantages, written out in float64, with which tests compare algorithms.

Nothing here calls a function of `tasks.model.nn`. Gradients are torch's own, of the formulas of docs/algorithms.md.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from penstock.tasks.model.algorithms.contract import Loss
from penstock.tasks.roles.learning.gradients import minibatch_gradient
from penstock.tasks.specs import ActionLeaf, ActionSpec, Batch, EnvironmentSpec, LossInputs, Spec, State, Trajectory
from penstock.tasks.tape.totals import RoundTotals

from .ppo_cases import random

STEPS, ENVS = 7, 4
TERMINATED, TRUNCATED = ((1, 0), (4, 1), (5, 3), (6, 2)), ((2, 1), (3, 3), (5, 3))
"""Steps and environments: two episodes end in both ways, one is terminated by a round's last step, three go on."""
MASKED = EnvironmentSpec(
    "masked", Spec("float32", (7,)), ActionSpec("discrete", n=4), None, None, unmasked_observation=Spec("float32", (3,))
)
VECTORS = EnvironmentSpec(
    "vectors", Spec("float32", (3,)), ActionSpec("box", shape=(2,), low=(-2.0, -0.5), high=(2.0, 1.0)), None, None
)
HYBRID = EnvironmentSpec(
    "hybrid",
    Spec("float32", (3,)),
    ActionSpec("structured", shape=(4,), leaves=(ActionLeaf("turn", (3, 2)), ActionLeaf("push", (0, 0)))),
    None,
    None,
)
"""Two choices, of three and of two, and two numbers; masks are for single choices alone."""


# Comparisons


def exact(params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy parameters to float64 leaves of torch's autograd."""
    return {name: value.detach().double().requires_grad_() for name, value in params.items()}


def near(found: Tensor, expected: Tensor, tolerance: float = 2e-6) -> None:
    """Check numbers of float32 against those of float64, relative to the largest."""
    expected = expected.detach()
    assert found.shape == expected.shape
    scale = float(expected.abs().max())
    assert 0 < scale < math.inf
    difference = float((found.detach().double() - expected).abs().max())
    assert difference <= tolerance * scale, f"{difference:.3g} of {scale:.3g}"


def compare(
    loss: Loss,
    state: State,
    rows: Batch,
    expected: Tensor,
    leaves: Mapping[str, Tensor],
    totals: Mapping[str, float] | None = None,
    noise: Tensor | None = None,
    tolerance: float = 2e-6,
) -> None:
    """Check a loss and its gradient, which learners compute by kernels, the second time as they were captured."""
    totals = RoundTotals(totals or {})
    count = len(next(iter(rows.values())))
    scalar, _ = loss.function(state.params, LossInputs(rows, count, totals, state.targets, noise))
    near(scalar.reshape(1), expected.reshape(1), 10 * tolerance)
    assert list(leaves) == list(state.params[loss.group]), "gradients are in the order of the group's vector"
    wanted = torch.autograd.grad(expected, list(leaves.values()), retain_graph=True, allow_unused=True)
    flat = torch.cat([torch.zeros(leaf.numel()) if part is None else part.reshape(-1)
                      for part, leaf in zip(wanted, leaves.values(), strict=True)])  # fmt: skip
    for _ in range(3):
        gradient, _ = minibatch_gradient(loss, state, rows, totals, 1000, None, noise)
        near(gradient, flat, tolerance)


def sums_of(algorithm: Any, batch: Batch) -> dict[str, float]:
    """Return a round's totals, as losses get them."""
    return {name: float(value) for name, value in algorithm.stats(batch).items() if not value.dim()}


def moved(state: State, group: str, by: float, seed: int) -> None:
    """Move the parameters of a group, as minibatches before would."""
    with torch.no_grad():
        flat = state.params[group].flat
        flat.add_(by * random(len(flat), seed=seed))


# Networks and distributions


def perceptron(
    params: Mapping[str, Tensor], inputs: Tensor, activation: Callable[[Tensor], Tensor], prefix: str = ""
) -> Tensor:
    """Return outputs `[..., n]`: layers with an activation between any two of them."""
    layers = sum(name.startswith(prefix) and name.endswith(".weight") for name in params)
    for layer in range(layers):
        inputs = inputs @ params[f"{prefix}{layer}.weight"].T + params[f"{prefix}{layer}.bias"]
        inputs = activation(inputs) if layer < layers - 1 else inputs
    return inputs


def split(environment: EnvironmentSpec, observation: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return what networks get of observations `[..., n]`, in float64, and the mask before it, if there is one."""
    if environment.unmasked_observation is None:
        return observation.double(), None
    return observation[..., environment.action.n :].double(), observation[..., : environment.action.n] != 0


def log_likelihood(
    spec: ActionSpec, output: Tensor, log_std: Tensor | None, action: Tensor, allowed: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return ln π(a|s) `[...]` and the entropy: of allowed choices, of normal numbers, or of all parts."""
    if spec.kind == "discrete":
        sizes, action = (spec.n,), action.unsqueeze(-1)
    else:
        sizes = spec.sizes if spec.kind == "structured" else (0,) * len(spec.low)
    first, number = 0, 0
    total, entropy = torch.zeros(2, *output.shape[:-1], dtype=torch.float64)
    for place, size in enumerate(sizes):
        value, own = action[..., place], slice(first, first + (size or 1))
        here = torch.ones_like(output[..., own], dtype=torch.bool) if allowed is None else allowed[..., own]
        if size:
            odds = output[..., own].exp() * here
            chances = odds / odds.sum(-1, keepdim=True)
            total = total + chances.gather(-1, value.long().unsqueeze(-1)).squeeze(-1).log()
            entropy = entropy - (chances * torch.where(here, chances, 1.0).log()).sum(-1)
        else:
            assert log_std is not None
            normal = torch.distributions.Normal(output[..., first], log_std[number].exp())
            total = total + here[..., 0] * normal.log_prob(value.double())
            entropy = entropy + here[..., 0] * normal.entropy()
            number += 1
        first = own.stop
    return total, entropy


# Rounds


def observed(environment: EnvironmentSpec, rows: int, seed: int) -> Tensor:
    """Return random observations `[rows, ...]`, after masks, if there are any, that forbid about a third."""
    numbers, choices = random(rows, 3, seed=seed), environment.action.n
    if environment.unmasked_observation is None:
        return numbers
    allowed = torch.rand(rows, choices, generator=torch.Generator().manual_seed(seed)) > 0.4
    allowed[range(rows), torch.arange(rows) % choices] = True
    return torch.cat([allowed.float(), numbers], -1)


def played(algorithm: Any, params: Any, see: Callable[[int, int], Tensor], seed: int = 0) -> Trajectory:
    """Return a round as actors store it, whose episodes end in every way; `see(rows, seed)` gives observations."""
    observation = see(STEPS * ENVS, seed).unflatten(0, (STEPS, ENVS))
    noise = random(STEPS, ENVS, *algorithm.noise.shape, seed=seed + 1)
    with torch.no_grad():
        acted = [algorithm.act(params, None, observation[step], noise[step])[0] for step in range(STEPS)]
    columns = {name: torch.stack([rows[name] for rows in acted]) for name in algorithm.rows}
    flags = torch.zeros(2, STEPS, ENVS, dtype=torch.uint8)
    for kind, places in enumerate((TERMINATED, TRUNCATED)):
        for place in places:
            flags[(kind, *place)] = 1
    columns |= {"observation": observation, "terminated": flags[0], "truncated": flags[1]}
    columns["reward"] = random(STEPS, ENVS, *algorithm.environment.reward.shape, seed=seed + 2)
    ended = flags.any(0)
    ended[-1] = True
    rows = ended.flatten().nonzero().squeeze(-1)
    return Trajectory(columns, rows, see(len(rows), seed + 3))


def after(now: Tensor, final: Tensor, trajectory: Trajectory) -> Tensor:
    """Return of each row what followed it: `now` `[T, B, ...]` of the next row, or `final` `[K, ...]` of an end."""
    found = torch.empty_like(now)
    ends = {int(row): number for number, row in enumerate(trajectory.bootstrap_rows)}
    for step in range(STEPS):
        for env in range(ENVS):
            end = ends.get(step * ENVS + env)
            found[step, env] = now[step + 1, env] if end is None else final[end]
    return found


def backwards(terms: Tensor, factors: Tensor, trajectory: Trajectory) -> Tensor:
    """Return x with `x_t = terms_t + factors_t x_{t+1}` in `[T, B, ...]`, in which ends have no successor."""
    ends, found = {int(row) for row in trajectory.bootstrap_rows}, torch.zeros_like(terms)
    for env in range(ENVS):
        for step in reversed(range(STEPS)):
            found[step, env] = terms[step, env]
            if step * ENVS + env not in ends:
                found[step, env] += factors[step, env] * found[step + 1, env]
    return found


def alive(trajectory: Trajectory) -> Tensor:
    """Return 0 where the episode terminated and 1 elsewhere, float64 `[T, B]`."""
    return (trajectory.columns["terminated"] == 0).double()


def standard(values: Tensor, among: Tensor | None = None) -> Tensor:
    """Return values less the mean, divided by the deviation and 1e-8: of `among`, or of all."""
    among = values if among is None else among
    return (values - among.mean()) / (among.std(correction=0) + 1e-8)

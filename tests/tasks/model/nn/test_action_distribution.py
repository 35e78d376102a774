"""The distribution of an action of any kind, against torch's own distributions."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Normal

from penstock.native import fill_noise
from penstock.native.kernel_level import TORCH, use_level
from penstock.tasks.model.nn.distributions import ActionDistribution, gumbel_noise, squashed_within
from penstock.tasks.model.nn.squashed import within_bounds
from penstock.tasks.specs import ActionLeaf, ActionSpec, NoiseSpec

MIXED = ActionSpec(
    "structured",
    shape=(8,),
    leaves=(
        ActionLeaf("a", (3,)),
        ActionLeaf("b", (0, 0)),
        ActionLeaf("c", (2, 2, 2)),
        ActionLeaf("d", (4,)),
        ActionLeaf("e", (0,)),
    ),
)
CHOICES = ActionSpec("structured", shape=(4,), leaves=(ActionLeaf("", (3, 3, 2, 5)),))
NUMBERS = ActionSpec("structured", shape=(3,), leaves=(ActionLeaf("x", (0, 0)), ActionLeaf("y", (0,))))
SPECS = [pytest.param(spec, id=name) for name, spec in (("mixed", MIXED), ("choices", CHOICES), ("numbers", NUMBERS))]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def by_torch(spec: ActionSpec, output: Tensor, log_std: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Add up the log-probabilities and entropies of each choice and each number, one by one."""
    place, number = 0, 0
    log_probability = entropy = torch.zeros(output.shape[:-1])
    for index, size in enumerate(spec.sizes):
        if size:
            each = Categorical(logits=output[..., place : place + size])
        else:
            each = Normal(output[..., place], log_std[number].exp())
            number += 1
        place += size or 1
        log_probability = log_probability + each.log_prob(action[..., index])
        entropy = entropy + each.entropy()
    return log_probability, entropy


@pytest.mark.parametrize("rows", [(7,), (2, 5)])
@pytest.mark.parametrize("spec", SPECS)
def test_probabilities_and_entropies_are_the_sums_of_all_parts(spec: ActionSpec, rows: tuple[int, ...]):
    """They hold for rows and for sequences of rows; acting and learning agree on the log-probability."""
    distribution = ActionDistribution(spec)
    output, log_std = random(*rows, distribution.outputs), 0.3 * random(max(distribution.numbers, 1), seed=1)
    flat, noise = output.reshape(-1, distribution.outputs), random(math.prod(rows), *distribution.noise.shape, seed=2)
    action, acted = distribution.sample(flat, log_std, noise)
    assert (action.dtype, action.shape) == (torch.float32, (math.prod(rows), *spec.shape))
    found = distribution.probability(output, log_std, action.view(*rows, -1))
    for one, other in zip(found, by_torch(spec, output, log_std, action.view(*rows, -1)), strict=True):
        assert one.shape == rows
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(acted.view(rows), found[0])


@pytest.mark.parametrize("spec", SPECS)
def test_gradients_are_those_of_torchs_distributions(spec: ActionSpec):
    """By the outputs and by the deviations, without kernels."""
    distribution = ActionDistribution(spec)
    output, log_std = random(6, distribution.outputs), 0.3 * random(max(distribution.numbers, 1), seed=1)
    action, _ = distribution.sample(output, log_std, random(6, *distribution.noise.shape, seed=2))
    gradients = []
    for function in (distribution.probability, lambda *given: by_torch(spec, *given)):
        leaves = [output.clone().requires_grad_(), log_std.clone().requires_grad_()]
        with use_level(TORCH):
            log_probability, entropy = function(*leaves, action)
            total = (log_probability + 0.1 * entropy).sum()
            gradients.append(torch.autograd.grad(total, leaves, allow_unused=True))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_zero_noise_is_greedy():
    """The likeliest choice of each part and the mean of each number, in the order of the vector."""
    distribution = ActionDistribution(MIXED)
    output = torch.tensor([[0.1, 0.3, 0.2, -1.5, 2.5, 1.0, 0.0, 0.0, 1.0, 0.2, 0.1, 0.0, 0.0, 0.5, 0.1, 7.0]])
    action, _ = distribution.sample(output, torch.zeros(3), torch.zeros_like(output))
    assert action.tolist() == [[1.0, -1.5, 2.5, 0.0, 1.0, 0.0, 2.0, 7.0]]


def test_choices_are_drawn_with_their_probabilities():
    """With the noise that actors get; parts are independent, and numbers have their mean and deviation."""
    spec = ActionSpec("structured", shape=(3,), leaves=(ActionLeaf("a", (3, 2)), ActionLeaf("b", (0,))))
    distribution, count = ActionDistribution(spec), 60_000
    assert distribution.noise == NoiseSpec("normal", (6,))
    noise = np.empty((1, count, 6), dtype=np.float32)
    fill_noise("normal", 7, 2, np.arange(count), 0, noise)
    output = torch.tensor([math.log(0.5), math.log(0.3), math.log(0.2), math.log(0.25), math.log(0.75), 1.5])
    action, _ = distribution.sample(output.expand(count, 6), torch.tensor([-1.0]), torch.from_numpy(noise[0]))
    expected = torch.tensor([0.5, 0.3, 0.2]).unsqueeze(-1) * torch.tensor([0.25, 0.75])
    pairs = torch.bincount((action[:, 0] * 2 + action[:, 1]).long(), minlength=6).view(3, 2) / count
    assert (pairs - expected).abs().max() < 4 * 0.5 / math.sqrt(count)
    assert abs(action[:, 2].mean() - 1.5) < 4 * math.exp(-1) / math.sqrt(count)
    assert abs(action[:, 2].std() - math.exp(-1)) < 4 * math.exp(-1) / math.sqrt(2 * count)


def test_gumbel_noise_has_gumbels_distribution_and_no_infinity():
    """Quantiles are those of Gumbel's distribution, to the ends of what normal noise reaches."""
    normal = torch.linspace(-6.8, 6.8, 1001)
    found = gumbel_noise(normal)
    assert bool(found.isfinite().all())
    assert bool((found.diff() >= 0).all())
    wide = normal.double()
    expected = -(-torch.special.log_ndtr(wide)).log()
    inside = normal > -4.0
    torch.testing.assert_close(found[inside], expected[inside].float(), rtol=1e-3, atol=1e-4)
    assert bool((found[~inside] < -2.3).all())


def test_a_critic_gets_choices_one_hot_and_numbers_as_they_are():
    """In the order of the vector; choices and numbers can be taken apart."""
    distribution = ActionDistribution(MIXED)
    action = torch.tensor([[2.0, 0.5, -0.5, 1.0, 0.0, 1.0, 3.0, 0.25]])
    one_hot = [0.0, 0.0, 1.0, 0.5, -0.5, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.25]
    assert distribution.features(action).tolist() == [one_hot]
    assert distribution.outputs == len(one_hot)
    choices, numbers = distribution.parts(action)
    assert (choices.tolist(), numbers.tolist()) == ([[2, 1, 0, 1, 3]], [[0.5, -0.5, 0.25]])


@pytest.mark.parametrize(
    ("spec", "noise", "numbers"),
    [
        (ActionSpec("discrete", n=4), NoiseSpec("gumbel", (4,)), 0),
        (ActionSpec("box", shape=(2, 2), low=(-1.0,) * 4, high=(1.0,) * 4), NoiseSpec("normal", (2, 2)), 4),
    ],
)
def test_single_choices_and_boxes_have_their_own_noise_and_columns(spec: ActionSpec, noise: NoiseSpec, numbers: int):
    """Older runs continue with the noise and the columns that they have."""
    distribution = ActionDistribution(spec)
    assert (distribution.noise, distribution.numbers, distribution.outputs) == (noise, numbers, 4)
    action, _ = distribution.sample(random(3, 4), torch.zeros(4), random(3, *noise.shape))
    assert (str(action.dtype), tuple(action.shape[1:])) == (f"torch.{spec.spec.dtype}", spec.spec.shape)


def test_actions_within_bounds_are_within_them():
    """Also at 1, to which tanh often rounds: the lower bound and the difference add up to more than the upper one."""
    generator = np.random.default_rng(0)
    low = np.append(np.float32(-2.0), generator.uniform(-10, 0, 999).astype(np.float32))
    high = np.append(np.float32(0.4), (low[1:] + generator.uniform(0.1, 10, 999)).astype(np.float32))
    assert (low + (high - low) > high).any()
    spec = ActionSpec("box", shape=(1000,), low=tuple(low.tolist()), high=tuple(high.tolist()))
    ends = torch.ones(2, 1000) * torch.tensor([[1.0], [-1.0]])
    for found in (within_bounds(spec, ends), squashed_within(50 * ends, spec.low, spec.high)[0]):
        top, bottom = found.numpy()
        assert (top <= high).all()
        np.testing.assert_allclose(top, high, rtol=3e-7, atol=3e-6)
        np.testing.assert_array_equal(bottom, low)

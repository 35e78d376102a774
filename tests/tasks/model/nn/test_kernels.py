"""The learner's kernels against torch's autograd in float64, at every level that this processor has."""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from penstock.native.kernel_level import LEVELS, use_level
from penstock.tasks.model.nn import kernels
from penstock.tasks.model.nn.action_values import explored
from penstock.tasks.model.nn.distributions import choice_probability, choose, vector_probability
from penstock.tasks.model.nn.layers import init_mlp, mlp
from penstock.tasks.model.nn.optimizers import clip_norm, init_adam, step_adam
from penstock.tasks.model.nn.squashed import squashed_sample
from penstock.tasks.model.nn.surrogate import clipped_surrogate, value_error
from penstock.tasks.specs import ParameterGroup
from penstock.tasks.tape.recording import Tape, recording

SHAPES = [(4, 64, 64, 2), (17, 64, 64, 6), (1, 1), (3, 5), (5, 7, 3), (33, 40, 1), (4, 100, 17, 9, 12), (250, 256, 8)]


@pytest.fixture(params=LEVELS[1:])
def _level(request: pytest.FixtureRequest) -> Iterator[None]:
    with use_level(request.param):
        yield


def numbers(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def group_of(widths: Sequence[int]) -> ParameterGroup:
    """Make a perceptron whose biases are not 0."""
    group = ParameterGroup(init_mlp(widths, 1.0, torch.Generator().manual_seed(2)))
    group.flat += 0.1 * numbers(len(group.flat), seed=3)
    return group


def differentiated(group: ParameterGroup, loss: Callable[[], Tensor]) -> Tensor:
    """Return the gradient of a loss by the kernels, and check that they took part."""
    tape = Tape(group)
    with recording(tape):
        scalar = loss()
    assert len(tape)
    return tape.gradient(scalar)


def in_float64(group: ParameterGroup, loss: Callable[[ParameterGroup], Tensor]) -> Tensor:
    """Return the gradient of a loss by autograd in float64, which has no kernels."""
    exact = ParameterGroup({name: value.detach().double() for name, value in group.items()})
    return torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss(exact), exact.leaves)])


def near(found: Tensor, expected: Tensor, tolerance: float = 2e-5) -> None:
    """Compare with the largest number as the measure: sums of many terms cancel."""
    assert found.shape == expected.shape
    if found.numel():
        worst = (found.double() - expected.double()).abs().max() / expected.abs().max().clamp_min(1e-3)
        assert worst <= tolerance


@pytest.mark.usefixtures("_level")
@pytest.mark.parametrize("widths", SHAPES, ids=str)
@pytest.mark.parametrize("activation", [torch.tanh, torch.relu], ids=["tanh", "relu"])
@pytest.mark.parametrize("rows", [0, 1, 2, 5, 13, 64, 129, 300])
def test_a_perceptron_and_its_gradient_are_torchs(widths, activation, rows):
    """Outputs and gradients in float64, up to float32's rounding, for whole and partial vectors and chunks of rows."""
    group, inputs, weights = group_of(widths), numbers(rows, widths[0]), numbers(rows, widths[-1], seed=4)
    with torch.no_grad():
        near(
            mlp(group, inputs, activation), mlp({k: v.double() for k, v in group.items()}, inputs.double(), activation)
        )

    def loss(params, values):
        return (mlp(params, values, activation) * weights).sum()

    found = differentiated(group, lambda: loss(group, inputs))
    near(found, in_float64(group, lambda exact: loss(exact, inputs.double())))


@pytest.mark.usefixtures("_level")
@pytest.mark.parametrize("widths", [(4, 64, 64, 2), (5, 7, 3)], ids=str)
def test_a_row_does_not_depend_on_the_others(widths):
    """Bit for bit: acting with a few rows and learning with many compute the same."""
    group, inputs = group_of(widths), numbers(300, widths[0])
    with torch.no_grad():
        whole = mlp(group, inputs)
        assert torch.equal(torch.cat([mlp(group, part) for part in inputs.split([1, 2, 7, 60, 230])]), whole)
        assert torch.equal(mlp(group, inputs.view(3, 100, -1)), whole.view(3, 100, -1))
        assert torch.equal(mlp(group, inputs.T.contiguous().T), whole)


@pytest.mark.usefixtures("_level")
def test_gradients_are_the_same_in_every_thread():
    """Bit for bit: each thread has scratch memory of its own."""
    group, inputs = group_of((17, 64, 64, 6)), numbers(300, 17)

    def once(_: int) -> Tensor:
        return differentiated(group, lambda: mlp(group, inputs).square().sum())

    expected = once(0)
    with ThreadPoolExecutor(4) as threads:
        assert all(torch.equal(found, expected) for found in threads.map(once, range(100)))


@pytest.mark.usefixtures("_level")
def test_what_is_not_a_number_stays_so():
    """A network that diverges must not look sound: NaN and infinities come through, from inputs and from weights."""
    group = group_of((4, 16, 2))
    with torch.no_grad():
        outputs = mlp(group, torch.tensor([[math.nan, 0, 0, 0], [math.inf, 0, 0, 0], [1.0, 0, 0, 0]]))
        assert outputs[0].isnan().all()
        assert outputs[1:].isfinite().all()  # tanh ends at 1
        group["0.weight"][0, 0] = math.nan
        assert mlp(group, numbers(3, 4)).isnan().all()
        assert mlp(group_of((4, 16, 2)), torch.tensor([[math.nan, 0, 0, 0]]), torch.relu).isnan().all()


@pytest.mark.usefixtures("_level")
@pytest.mark.parametrize("shape", [(), (3,)], ids=["rows", "agents"])
def test_a_choices_probability_is_torchs(shape):
    """Value and gradient of both results, together and alone, up to rounding; logits from 0 to 60."""
    actions = torch.randint(5, (40, *shape), generator=torch.Generator().manual_seed(5))
    group, inputs = (
        group_of((4, 8, 5)),
        numbers(40, *shape, 4) * torch.linspace(0, 20, 40).view(40, *(1 for _ in shape), 1),
    )
    for weights in ((1.0, 0.5), (1.0, 0.0), (0.0, 1.0)):

        def loss(params, values, weights=weights):
            results = choice_probability(mlp(params, values) * 3, actions)
            return sum((result.square().sum() * weight for result, weight in zip(results, weights, strict=True)))

        near(
            differentiated(group, lambda: loss(group, inputs)),
            in_float64(group, lambda exact: loss(exact, inputs.double())),
        )


@pytest.mark.usefixtures("_level")
@pytest.mark.parametrize("shape", [(64, 2), (1, 7), (257, 6), (3, 5, 4), (9, 1)])
def test_sampling_has_the_bits_of_learning(shape: tuple[int, ...]):
    """The choice is torch's, and its log-probability to the bit what learning computes, whatever the other rows."""
    logits, noise = 3 * numbers(*shape), numbers(*shape, seed=2)
    with torch.no_grad():
        action, log_probability = choose(logits, noise)
        learned, _ = choice_probability(logits, action)
        last = choose(logits[-1:], noise[-1:])

    assert torch.equal(action, (logits + noise).argmax(-1))
    assert torch.equal(log_probability, learned)
    assert torch.equal(last[0], action[-1:])
    assert torch.equal(last[1], log_probability[-1:])


@pytest.mark.usefixtures("_level")
@pytest.mark.parametrize(
    ("logits", "action"), [([0.0, 0.0], 0), ([-1.0, math.inf], 1), ([math.nan, 1.0], 0), ([1.0, math.nan, 5.0], 1)]
)
def test_sampling_takes_the_first_of_equals_and_a_nan_as_torch_does(logits: list[float], action: int):
    """Numbers that diverge give what torch gives, so that the error is found where it would have been."""
    found, log_probability = choose(torch.tensor([logits]), torch.zeros(1, len(logits)))

    assert found.tolist() == [action] == torch.tensor([logits]).argmax(-1).tolist()
    assert bool(log_probability.isnan()) == bool(torch.log_softmax(torch.tensor([logits]), -1)[0, action].isnan())


@pytest.mark.usefixtures("_level")
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_exploring_takes_the_choices_of_torch(epsilon: float, n: int):
    """The first of equals, and a NaN before all others; zeros of noise never explore."""
    generator = torch.Generator().manual_seed(n)
    values = torch.randint(0, 3, (400, n), generator=generator).float()
    values[::7, n // 2] = math.nan
    noise = torch.rand(400, 1 + n, generator=generator).mul(8).floor().div(8)
    noise[:20] = 0.0
    chance = torch.tensor([epsilon])
    expected = torch.where(noise[:, 0] > 1.0 - chance, noise[:, 1:].argmax(-1), values.argmax(-1))
    found = explored(values, noise, chance)
    assert found.dtype == torch.int64
    assert torch.equal(found, expected)
    assert torch.equal(found[:20], values[:20].argmax(-1))
    with use_level("torch"):
        assert torch.equal(explored(values, noise, chance), expected)
    everything = torch.ones(values.shape, dtype=torch.bool)
    assert torch.equal(explored(values, noise, chance, everything), expected)


def test_a_choice_that_there_is_not_is_refused():
    """As torch refuses it: an index of another row would be read."""
    for action in (-1, 5):
        with torch.no_grad(), pytest.raises(IndexError, match="none of the 5 choices"):
            choice_probability(torch.zeros(2, 5), torch.tensor([0, action]))


@pytest.mark.usefixtures("_level")
@pytest.mark.parametrize("deviation", [0.05, 1.0, 20.0])
def test_a_vectors_probability_is_torchs(deviation):
    """Value and gradient of density and entropy, with respect to the mean's network and the deviation."""
    tensors = {**dict(group_of((4, 8, 3))), "log_std": torch.full((3,), math.log(deviation))}
    group, inputs = ParameterGroup(tensors), numbers(40, 4)
    actions = deviation * numbers(40, 3, seed=6)

    def loss(params, values, actions):
        density, entropy = vector_probability(mlp(params, values, layers=2), params["log_std"], actions)
        return (density * torch.linspace(-1, 1, 40)).sum() + 0.3 * entropy.sum()

    found = differentiated(group, lambda: loss(group, inputs, actions))
    near(found, in_float64(group, lambda exact: loss(exact, inputs.double(), actions.double())), 1e-4)


@pytest.mark.usefixtures("_level")
def test_the_clipped_surrogate_is_torchs():
    """Value, gradient, divergence and clipping, for ratios within and beyond the range and both signs of advantages."""
    group, inputs = group_of((4, 8, 5)), numbers(200, 4)
    actions = torch.randint(5, (200,), generator=torch.Generator().manual_seed(5))
    advantage = numbers(200, seed=7)
    with torch.no_grad():
        behaviour = choice_probability(mlp(group, inputs), actions)[0] + 0.3 * numbers(200, seed=8)

    def results(params, values, behaviour, advantage):
        return clipped_surrogate(choice_probability(mlp(params, values), actions)[0], behaviour, advantage, 0.2)

    def loss(params, *given):
        return results(params, *given)[0].sum()

    found = differentiated(group, lambda: loss(group, inputs, behaviour, advantage))
    doubles = [tensor.double() for tensor in (inputs, behaviour, advantage)]
    near(found, in_float64(group, lambda exact: loss(exact, *doubles)))
    with torch.no_grad():
        value, outputs = results(group, inputs, behaviour, advantage)
        exact, expected = results({name: tensor.double() for name, tensor in group.items()}, *doubles)
    near(value, exact)
    assert 0.2 < outputs["clip_fraction"].mean() < 0.8
    for name in outputs:
        near(outputs[name], expected[name])


@pytest.mark.usefixtures("_level")
@pytest.mark.parametrize("scale", [0.1, 3.0, 30.0])
def test_a_squashed_sample_is_torchs(scale):
    """Value and gradient, near 0 and where tanh rounds to 1, within the deviation's range and beyond it."""
    group, inputs, noise = group_of((4, 8, 6)), numbers(50, 4), numbers(50, 3, seed=10)

    def loss(params, values, noise):
        action, density = squashed_sample(scale * mlp(params, values), noise, (-2.0, 1.0))
        return (action * torch.linspace(-1, 1, 50).unsqueeze(-1)).sum() + 0.3 * density.sum()

    with torch.no_grad():
        outputs = scale * mlp(group, inputs)
        found = squashed_sample(outputs, noise, (-2.0, 1.0))
        for value, exact in zip(found, squashed_sample(outputs.double(), noise.double(), (-2.0, 1.0)), strict=True):
            near(value, exact)
    gradient = differentiated(group, lambda: loss(group, inputs, noise))
    near(gradient, in_float64(group, lambda exact: loss(exact, inputs.double(), noise.double())), 1e-4)


@pytest.mark.usefixtures("_level")
@pytest.mark.parametrize("outputs", [1, 3])
def test_a_values_error_is_torchs(outputs):
    """The gradient of the last output alone."""
    group, inputs, target = group_of((4, 8, outputs)), numbers(50, 4), numbers(50, seed=9)
    found = differentiated(group, lambda: value_error(mlp(group, inputs), target).sum())
    near(found, in_float64(group, lambda exact: value_error(mlp(exact, inputs.double()), target.double()).sum()))


@pytest.mark.usefixtures("_level")
def test_adam_and_the_norm_are_torchs_up_to_rounding():
    """Ten steps, with gradients of very different sizes, above and below the limit of the norm."""
    mine, theirs = (torch.linspace(-1, 1, 1003).clone() for _ in range(2))
    states = init_adam(mine), init_adam(theirs)
    for step in range(10):
        gradient = numbers(1003, seed=step) * 10.0 ** (step % 7 - 5)
        step_adam(mine, clip_norm(gradient, 0.5), states[0], 0.1 / (step + 1))
        with use_level("torch"):
            step_adam(theirs, clip_norm(gradient, 0.5), states[1], 0.1 / (step + 1))
    near(mine, theirs, 1e-5)
    assert states[0]["step"] == states[1]["step"] == 10
    for name in ("mean", "square"):
        near(states[0][name], states[1][name], 1e-5)
    huge = torch.full((8,), 1e30)
    assert clip_norm(huge, 0.5).norm().item() == pytest.approx(0.5)  # its square is no float32


def test_parameters_are_told_apart_by_more_than_their_numbers():
    """New tensors get the numbers and the addresses of old ones; a tensor may also change its layout in place."""
    inputs = numbers(3, 4)
    with torch.no_grad():
        for turn in range(200):
            params = {name: value.clone() for name, value in group_of((4, 5 + turn % 3, 2)).items()}
            near(mlp(params, inputs), mlp({name: value.double() for name, value in params.items()}, inputs.double()))
        square = {"0.weight": numbers(4, 4), "0.bias": numbers(4)}
        for _ in range(2):
            near(mlp(square, inputs), inputs.double() @ square["0.weight"].double().T + square["0.bias"].double())
            square["0.weight"].t_()


def test_torch_computes_what_kernels_do_not():
    """Other types, wide layers, other activations, and what autograd shall follow: all go to torch, none is refused."""
    group, inputs = group_of((4, 8, 2)), numbers(3, 4)
    tensors = list(group.values())
    assert kernels.perceptron(inputs, tensors, relu=False) is None  # autograd follows the parameters
    with torch.no_grad():
        assert kernels.perceptron(inputs, tensors, relu=False) is not None
        assert kernels.perceptron(inputs.double(), [each.double() for each in tensors], relu=False) is None
        assert kernels.perceptron(inputs, [each.bfloat16() for each in tensors], relu=False) is None
        wide = list(group_of((4, 257, 2)).values())
        assert kernels.perceptron(inputs, wide, relu=False) is None
        assert kernels.perceptron(numbers(3, 5), tensors, relu=False) is None  # torch has the message
        near(
            mlp(group, inputs, torch.sigmoid),
            mlp({k: v.double() for k, v in group.items()}, inputs.double(), torch.sigmoid),
        )
    torch.func.vmap(lambda row: mlp(group, row))(inputs)

"""A tape's gradients against autograd, for losses in which kernels and torch alternate."""

import pytest
import torch
from torch import Tensor

from penstock.native.kernel_level import use_level
from penstock.tasks.model.algorithms.contract import Loss
from penstock.tasks.model.nn.action_values import choice_error, dueling_values
from penstock.tasks.model.nn.distributions import choice_probability
from penstock.tasks.model.nn.layers import init_mlp, mlp, part
from penstock.tasks.model.nn.squashed import joined, smaller, squashed_sample
from penstock.tasks.model.nn.surrogate import value_error
from penstock.tasks.roles.learning.gradients import minibatch_gradient
from penstock.tasks.specs import LossInputs, ParameterGroup, State
from penstock.tasks.tape.recording import Tape, current_tape, recording

ROWS = 40


def network(*widths: int, seed: int = 1) -> dict[str, Tensor]:
    return init_mlp(widths, 1.0, torch.Generator().manual_seed(seed))


def prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: value for name, value in tensors.items()}


@pytest.fixture
def state() -> State:
    """Parameters of an actor, with a number beside its network, and of two critics."""
    groups = {
        "actor": {**network(4, 16, 6), "log": torch.tensor([0.3])},
        "critic": {**prefixed("first.", network(7, 16, 1, seed=2)), **prefixed("second.", network(7, 16, 1, seed=3))},
    }
    return State(params={name: ParameterGroup(tensors) for name, tensors in groups.items()})


@pytest.fixture
def rows() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(4)
    return {name: torch.randn(ROWS, width, generator=generator) for name, width in (("observation", 4), ("action", 3))}


def actor_loss(params, batch):
    """An actor through torch, through two critics of another group, and through torch again, as SAC's."""
    mean, spread = mlp(params["actor"], batch["observation"], torch.relu, layers=2).chunk(2, -1)
    action = (mean + spread.exp() * 0.1).tanh() * params["actor"]["log"].exp()
    inputs = torch.cat([batch["observation"], action], -1)
    values = [mlp(part(params["critic"], name), inputs, torch.relu) for name in ("first.", "second.")]
    value = torch.minimum(*values).squeeze(-1)
    return batch.weighted_mean((value, -1.0), (spread.sum(-1), 0.3)), {"value": value.detach()}


def critic_loss(params, batch):
    """Two networks of one group, of which one is used twice, and the size of a weight."""
    inputs = torch.cat([batch["observation"], batch["action"]], -1)
    first, second = (mlp(part(params["critic"], name), inputs) for name in ("first.", "second."))
    again = mlp(part(params["critic"], "first."), inputs * 0.5)
    error = value_error(first, second.squeeze(-1)) + again.squeeze(-1).square()
    return batch.mean(error) * 2.0 + params["critic"]["first.0.weight"].square().sum(), {}


def squashed_loss(params, batch):
    """A squashed actor against the smaller of two critics, with deviations within and beyond their range."""
    actor = mlp(params["actor"], batch["observation"], torch.relu, layers=2)
    action, density = squashed_sample(actor * 3.0, batch["action"], (-2.0, 1.0))
    again, alone = squashed_sample(mlp(params["actor"], batch["observation"], layers=2), batch["action"], (-2.0, 1.0))
    inputs = joined(batch["observation"], again)
    value = smaller(*(mlp(part(params["critic"], name), inputs, torch.relu) for name in ("first.", "second.")))
    temperature = params["actor"]["log"].detach().expand_as(alone)
    total = batch.weighted_mean((alone, temperature), (value, -1.0))
    return total + batch.mean(action.sum(-1) + density) + params["actor"]["log"].sum(), {"value": value.detach()}


def chosen_loss(params, batch):
    """The error of chosen values of a dueling network, weighted by row, as DQN's."""
    values = dueling_values(mlp(params["actor"], batch["observation"], torch.relu, layers=2))
    action = (batch["action"][:, 0] > 0).long() * 4
    losses = [choice_error(values, action, batch["action"][:, 1] * 2, huber=huber) for huber in (True, False)]
    total = batch.weighted_mean(*((loss, batch["action"][:, 2].abs()) for _, loss in losses))
    return total + params["actor"]["log"].sum(), {"error": losses[0][0]}


def penalised_loss(params, batch):
    """A loss that takes a gradient itself, with respect to a network's inputs."""
    inputs = torch.cat([batch["observation"], batch["action"]], -1).requires_grad_()
    values = sum(mlp(part(params["critic"], name), inputs) for name in ("first.", "second."))
    (slope,) = torch.autograd.grad(values.sum(), inputs, create_graph=True)
    return batch.mean(values.squeeze(-1)) + batch.mean(slope.square().sum(-1)), {}


def overwriting_loss(params, batch):
    """A loss that changes a network's output in place."""
    output = mlp(params["actor"], batch["observation"], layers=2)
    output.mul_(2.0)
    return batch.mean(output.square()) + params["actor"]["log"].sum(), {}


LOSSES = [
    ("actor", actor_loss),
    ("critic", critic_loss),
    ("actor", chosen_loss),
    ("actor", squashed_loss),
    ("critic", penalised_loss),
    ("actor", overwriting_loss),
]


@pytest.mark.parametrize(("group", "function"), LOSSES, ids=lambda value: getattr(value, "__name__", value))
def test_the_gradient_is_autograds(state, rows, group, function):
    """With kernels and without, for every way in which a loss may mix them with torch."""
    loss = Loss(group, group, function)
    found, outputs = minibatch_gradient(loss, state, rows, {}, ROWS)
    with use_level("torch"):
        expected, theirs = minibatch_gradient(loss, state, rows, {}, ROWS)
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert expected.any()
    assert outputs.keys() == theirs.keys()
    for name, value in outputs.items():
        assert torch.allclose(value, theirs[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("group", "function"), LOSSES[:4], ids=lambda value: getattr(value, "__name__", value))
def test_the_kernels_take_part(state, rows, group, function):
    """So that the comparison above compares them."""
    tape = Tape(state.params[group])
    with recording(tape):
        function(state.params, LossInputs(rows, ROWS))
    assert len(tape) >= 3


def test_parameters_that_a_loss_does_not_use_are_named(state, rows):
    """A gradient of 0 for them would hide a mistake of the algorithm."""

    def loss(params, batch):
        return batch.mean(mlp(params["actor"], batch["observation"], layers=2)), {}

    with pytest.raises(RuntimeError, match="the loss does not depend on log, which it trains"):
        gradient_of(state, rows, loss)


def gradient_of(state, rows, function):
    tape = Tape(state.params["actor"])
    with recording(tape):
        scalar, _ = function(state.params, LossInputs(rows, ROWS))
    return tape.gradient(scalar)


def test_a_tape_records_within_its_context_alone(state, rows):
    """In this thread, and not where gradients are off."""
    tape = Tape(state.params["actor"])
    assert current_tape() is None
    with recording(tape):
        assert current_tape() is tape
        with torch.no_grad():
            mlp(state.params["actor"], rows["observation"], layers=2)
        with recording(None):
            assert mlp(state.params["actor"], rows["observation"], layers=2).grad_fn is not None
    assert not len(tape)
    assert current_tape() is None


class _Counted(torch.autograd.Function):
    """The identity, which counts how often it is gone back through."""

    times = 0

    @staticmethod
    def forward(_ctx, tensor):
        return tensor.clone()

    @staticmethod
    def backward(_ctx, gradient):
        _Counted.times += 1
        return gradient


def counted_loss(params, batch):
    """A network by torch, into which a kernel's output goes, and whose choices and value two other kernels read."""
    hidden = mlp(params["actor"], batch["observation"], torch.relu, layers=2)
    output = _Counted.apply(hidden * params["actor"]["log"].exp())
    error = value_error(output, batch["action"][:, 0].contiguous())
    probability, entropy = choice_probability(output[:, :-1], (batch["action"][:, 0] > 0).long())
    return batch.weighted_mean((error, 0.5), (probability, -1.0), (entropy, 0.1)), {"error": error.detach()}


def test_what_torch_computes_is_gone_back_through_once(state, rows):
    """A network by torch costs one backward pass, however many kernels read its outputs."""
    _Counted.times = 0
    loss = Loss("counted", "actor", counted_loss)
    found, _ = minibatch_gradient(loss, state, rows, {}, ROWS)
    assert _Counted.times == 1
    with use_level("torch"):
        expected, _ = minibatch_gradient(loss, state, rows, {}, ROWS)
    torch.testing.assert_close(found, expected)

"""Losses that kernels can't take as they are: they are computed as torch does, or refused by name."""

from __future__ import annotations

import pytest
import torch

from penstock.native.kernel_level import TORCH, use_level
from penstock.tasks.model.algorithms.contract import Loss
from penstock.tasks.model.nn import action_values, kernels, squashed
from penstock.tasks.model.nn.distributions import vector_probability
from penstock.tasks.model.nn.layers import init_mlp, mlp
from penstock.tasks.model.nn.surrogate import clipped_surrogate, value_error
from penstock.tasks.model.nn.value_learning import limited_value_error
from penstock.tasks.roles.learning.gradients import minibatch_gradient
from penstock.tasks.specs import ParameterGroup, State
from penstock.tasks.tape.totals import RoundTotals

ROWS, MANY = 24, 10_000


def new_state() -> State:
    return State(params={"net": ParameterGroup(init_mlp((5, 8, 1), 1.0, torch.Generator().manual_seed(1)))})


def new_rows(seed: int = 2):
    generator = torch.Generator().manual_seed(seed)
    numbers = {name: torch.randn(ROWS, generator=generator) for name in ("target", "other")}
    return {"observation": torch.randn(ROWS, 5, generator=generator), **numbers}


def taken(function, state: State, rows):
    return minibatch_gradient(Loss("loss", "net", function), state, rows, RoundTotals({}), MANY)


def by_torch(function, rows):
    with use_level(TORCH):
        return taken(function, new_state(), rows)


def values_of(params, batch):
    return mlp(params["net"], batch["observation"])


def plain(params, batch):
    return batch.mean(value_error(values_of(params, batch), batch["target"])), {}


def with_a_moving_target(params, batch):
    following = mlp(params["net"], -batch["observation"]).squeeze(-1)
    return batch.mean(value_error(values_of(params, batch), batch["target"] + 0.9 * following)), {}


def with_a_moving_limit(params, batch):
    values = values_of(params, batch)
    before = values.squeeze(-1) * 0.5
    return batch.mean(limited_value_error(values, batch["target"], before, huber_delta=0.0, clip_range=0.1)), {}


def with_an_action_of_its_own(params, batch):
    mean = values_of(params, batch)
    return -batch.mean(vector_probability(mean, torch.zeros(1), mean * 2.0 + 0.1)[0]), {}


def with_a_moving_advantage(params, batch):
    value = values_of(params, batch).squeeze(-1)
    return -batch.mean(clipped_surrogate(value * 1.0, value.detach() + 0.1, batch["target"] + value, 0.2)[0]), {}


def with_a_moving_weight(params, batch):
    value = values_of(params, batch)
    return batch.weighted_mean((value_error(value, batch["target"]), value.squeeze(-1))), {}


@pytest.mark.parametrize(
    "function",
    [
        with_a_moving_target,
        with_a_moving_limit,
        with_an_action_of_its_own,
        with_a_moving_advantage,
        with_a_moving_weight,
    ],
)
def test_gradients_that_kernels_do_not_have_are_torchs(function):
    """They take targets, actions and weights for constants; of a loss that moves them torch has the whole gradient."""
    state = new_state()
    for seed in range(3):
        rows = new_rows(seed)
        assert torch.allclose(taken(function, state, rows)[0], by_torch(function, rows)[0], atol=1e-5)


def test_outputs_of_different_lengths_are_not_captured():
    """A program has one length for all; the longer one would be written over other memory."""

    def uneven(params, batch):
        error = value_error(values_of(params, batch), batch["target"])
        few = value_error(mlp(params["net"], batch["observation"][:5]), batch["target"][:5])
        return batch.mean(error), {"few": few.detach(), "all": error.detach()}

    state = new_state()
    for seed in range(3):
        rows = new_rows(seed)
        found, expected = taken(uneven, state, rows)[1], by_torch(uneven, rows)[1]
        for name in ("few", "all"):
            assert torch.allclose(found[name], expected[name], atol=1e-6)


def test_columns_in_another_order_are_found_by_name():
    """Two columns of one size and type would otherwise be taken for one another."""
    state, rows = new_state(), new_rows()
    first = taken(plain, state, rows)[0]
    turned = {name: rows[name] for name in ("observation", "other", "target")}
    assert torch.equal(taken(plain, state, turned)[0], first)


def test_a_column_that_is_changed_in_place_is_changed_once():
    """A loss that can't be captured is called twice for the first minibatch; its rows are the same both times."""

    def changing(params, batch):
        return batch.mean(value_error(values_of(params, batch), batch["target"].sub_(1.0))), {}

    found = taken(changing, new_state(), new_rows())[0]
    expected = by_torch(changing, new_rows())[0]
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("level", ["kernels", "torch"])
def test_a_loss_that_is_no_number_is_refused(level: str):
    """Without `batch.mean` there is nothing to differentiate; kernels would read beyond the one number's gradient."""

    def forgotten(params, batch):
        return value_error(values_of(params, batch), batch["target"]), {}

    with pytest.raises(RuntimeError, match=r"the loss has the shape \[24\], expected one number: return `batch.mean`"):
        taken(forgotten, new_state(), new_rows()) if level == "kernels" else by_torch(forgotten, new_rows())


def test_a_parameter_that_torch_finds_unused_is_named():
    """Also where no kernel was called."""

    def half(params, batch):
        return batch.mean((batch["observation"] @ params["net"]["0.weight"].T).sum(-1)), {}

    with pytest.raises(RuntimeError, match=r"the loss does not depend on 0\.bias, 1\.weight, 1\.bias, which it trains"):
        by_torch(half, new_rows())


@pytest.mark.parametrize(
    "call",
    [
        lambda: squashed.joined(torch.ones(3, 4), torch.zeros(24, 2)),
        lambda: squashed.repeated_exp(torch.empty(0), 3),
        lambda: action_values.quantile_targets(
            torch.zeros(24, 3, 4), torch.zeros(24, dtype=torch.int64), torch.zeros(2), torch.zeros(2)
        ),
        lambda: action_values.quantile_error(
            torch.zeros(24, 3, 4, requires_grad=True), torch.zeros(2, dtype=torch.int64), torch.zeros(24, 4), 1.0
        ),
    ],
)
def test_shapes_that_do_not_fit_are_torchs_error(call):
    """Kernels would read beyond a tensor's memory."""
    with pytest.raises((RuntimeError, IndexError)):
        call()


def test_values_of_another_shape_are_not_read_beyond_their_end():
    """`smaller` broadcasts as torch does, and `normalise` leaves a mean of another length to torch."""
    assert squashed.smaller(torch.full((24, 1), 9.0), torch.full((1, 1), 5.0)).tolist() == [5.0] * 24
    assert kernels.normalise(torch.zeros(2, 3), torch.zeros(2), torch.ones(3), 1.0) is None


def test_places_of_another_type_are_read_by_torch():
    """A kernel would take two of them for one."""

    def picked(params, batch):
        places = torch.zeros(ROWS, 1, dtype=torch.int32)
        target = batch["target"].unsqueeze(1).gather(-1, places).squeeze(-1)
        return batch.mean(value_error(values_of(params, batch), target)), {}

    rows = new_rows()
    assert torch.allclose(taken(picked, new_state(), rows)[0], by_torch(picked, rows)[0], atol=1e-5)

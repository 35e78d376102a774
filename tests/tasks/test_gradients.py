"""Gradients as sums over blocks in a fixed tree, and minibatches as plain rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import torch

from tasks.algorithms.ppo import PPO
from tasks.gradients import minibatch_gradient, sum_in_tree
from tasks.specs import ActionSpec, EnvironmentSpec, Spec

if TYPE_CHECKING:
    from tasks.specs import Batch

CHOICES = EnvironmentSpec("choices", Spec("float32", (3,)), ActionSpec("discrete", n=2), None, None)
ALGORITHM = PPO(environment=CHOICES, hidden=(8,), entropy_weight=0.01)


@dataclass(frozen=True)
class Term:
    """Adds up to the text of the sum."""

    text: str

    def __add__(self, other: Term) -> Term:
        return Term(f"({self.text}{other.text})")


def batch_of(count: int) -> Batch:
    generator = torch.Generator().manual_seed(4)
    return {
        "observation": torch.randn(count, 3, generator=generator),
        "action": torch.randint(0, 2, (count,), generator=generator),
        "log_probability": torch.full((count,), -0.7),
        "advantage": torch.randn(count, generator=generator),
        "value_target": torch.randn(count, generator=generator),
    }


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, "a"),
        (2, "(ab)"),
        (3, "((ab)c)"),
        (4, "((ab)(cd))"),
        (5, "(((ab)(cd))e)"),
        (7, "(((ab)(cd))((ef)g))"),
        (8, "(((ab)(cd))((ef)(gh)))"),
    ],
)
def test_the_tree_depends_on_the_number_of_blocks_alone(count: int, expected: str):
    """The order of additions is part of a run's bytes, so it is pinned here."""
    terms: list = [Term(letter) for letter in "abcdefgh"[:count]]
    assert sum_in_tree(terms).text == expected
    assert [term.text for term in terms] == list("abcdefgh"[:count])


@pytest.mark.parametrize("block_rows", [1, 7, 16, 31, 32, 100])
def test_blocks_add_up_to_the_whole(block_rows: int):
    """However a minibatch is cut, its gradient and its rows' outputs are those of the whole, to rounding."""
    state = ALGORITHM.init(1)
    rows = batch_of(32)
    stats = {name: float(value) for name, value in ALGORITHM.stats(rows).items()}
    for loss in ALGORITHM.losses:
        scalar, outputs = loss.function(state.params, state.targets, rows, None, stats, 32)
        leaves = state.params[loss.group].leaves
        expected = torch.cat([part.reshape(-1) for part in torch.autograd.grad(scalar, leaves)])
        gradient, found = minibatch_gradient(loss, state, rows, stats, block_rows)
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)
        assert gradient.shape == state.params[loss.group].flat.shape
        assert found.keys() == outputs.keys()
        for name, values in outputs.items():
            torch.testing.assert_close(found[name], values)


def test_the_gradient_is_in_the_order_of_the_vector():
    """Element i of the gradient belongs to element i of the group's vector: seen by finite differences, in float64."""
    state = ALGORITHM.init(1)
    rows = {name: value.double() if value.is_floating_point() else value for name, value in batch_of(16).items()}
    loss = ALGORITHM.losses[1]
    gradient, _ = minibatch_gradient(loss, state_in_double(state), rows, {}, 16)
    doubled = state_in_double(state)
    group = doubled.params["value"]
    for index in (0, 5, len(group.flat) // 2, len(group.flat) - 1):
        losses = []
        for change in (1e-6, -2e-6):
            group.flat[index] += change
            losses.append(loss.function(doubled.params, {}, rows, None, {}, 16)[0].item())
        group.flat[index] += 1e-6
        assert gradient[index].item() == pytest.approx((losses[0] - losses[1]) / 2e-6, rel=1e-4, abs=1e-8)


def state_in_double(state):
    groups = {
        name: type(group)({key: value.detach().double() for key, value in group.items()})
        for name, group in state.params.items()
    }
    return type(state)(params=groups)


def test_the_same_blocks_give_the_same_bytes():
    """A gradient is a function of the minibatch and the block size: taken twice, nothing differs."""
    state, rows = ALGORITHM.init(1), batch_of(50)
    stats = {name: float(value) for name, value in ALGORITHM.stats(rows).items()}
    first, _ = minibatch_gradient(ALGORITHM.losses[0], state, rows, stats, 16)
    second, _ = minibatch_gradient(ALGORITHM.losses[0], state, rows, stats, 16)
    assert torch.equal(first, second)

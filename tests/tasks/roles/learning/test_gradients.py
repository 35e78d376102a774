"""Gradients as sums over blocks in a fixed tree, and minibatches as plain rows."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch

from penstock.tasks.model.algorithms.contract import Loss
from penstock.tasks.model.algorithms.ppo import PPO
from penstock.tasks.roles.learning.gradients import each_gradient, is_worth_a_thread, minibatch_gradient, sum_in_tree
from penstock.tasks.setup.config.on_policy import PPOSettings
from penstock.tasks.specs import ActionSpec, EnvironmentSpec, LossInputs, Spec

if TYPE_CHECKING:
    from penstock.tasks.roles.learning.gradients import Gradient
    from penstock.tasks.specs import Batch

CHOICES = EnvironmentSpec("choices", Spec("float32", (3,)), ActionSpec("discrete", n=2), None, None)
ALGORITHM = PPO(PPOSettings(hidden=(8,), entropy_weight=0.01), CHOICES)


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
        scalar, outputs = loss.function(state.params, LossInputs(rows, 32, stats, targets=state.targets))
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
            losses.append(loss.function(doubled.params, LossInputs(rows, 16))[0].item())
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


def cpus(monkeypatch, number: int) -> threading.Barrier:
    """Pretend to have so many CPUs; returns a barrier that needs as many threads."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(number))
    monkeypatch.setattr("penstock.tasks.roles.learning.gradients._THREAD_PRODUCTS", 1)
    return threading.Barrier(number, timeout=150)


def test_independent_losses_give_the_same_bytes_in_two_threads(monkeypatch):
    """Another thread takes one, its blocks too: bit for bit what one thread gives, and really two with two CPUs."""
    state, rows = ALGORITHM.init(3), batch_of(200)
    stats = {name: float(value) for name, value in ALGORITHM.stats(rows).items()}
    found = []
    for number in (1, 2):
        barrier = cpus(monkeypatch, number)

        def gradient_of(_: int, loss: Loss, barrier: threading.Barrier = barrier) -> Gradient:
            barrier.wait()
            return minibatch_gradient(loss, state, rows, stats, 64)

        found.append([gradient for _, (gradient, _) in each_gradient(ALGORITHM.losses, gradient_of, number > 1)])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("independent", [True, False])
def test_blocks_of_an_independent_loss_are_computed_in_two_threads(monkeypatch, independent: bool):
    """Four blocks in two threads give the bytes of one thread; any other loss stays in the caller's."""
    state, rows = ALGORITHM.init(3), batch_of(200)
    stats = {name: float(value) for name, value in ALGORITHM.stats(rows).items()}
    found = []
    for number in (1, 2):
        barrier, threads = cpus(monkeypatch, number), set()

        def function(*args: Any, barrier: threading.Barrier = barrier, threads: set[str] = threads) -> Any:
            threads.add(threading.current_thread().name)
            if independent:
                barrier.wait()
            return ALGORITHM.losses[0].function(*args)

        loss = Loss("policy", "policy", function, independent=independent)
        found.append(minibatch_gradient(loss, state, rows, stats, 50))
        assert len(threads) == (number if independent else 1)
    (one, rows_of_one), (two, rows_of_two) = found
    assert torch.equal(one, two)
    assert all(torch.equal(rows_of_one[name], rows_of_two[name]) for name in rows_of_one)


@pytest.mark.parametrize(("rows", "cpus_here", "worth"), [(7_999, 2, False), (8_000, 2, True), (8_000, 1, False)])
def test_a_second_thread_needs_a_cpu_and_enough_to_multiply(monkeypatch, rows: int, cpus_here: int, worth: bool):
    """Two threads that take turns in Python are slower than one."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(cpus_here))
    assert is_worth_a_thread(torch.zeros(1000), rows) is worth


def test_other_losses_come_after_the_updates_before_them():
    """The caller's update of one is there when the next is taken."""
    losses = [Loss("first", "a", ALGORITHM.losses[0].function), Loss("second", "b", ALGORITHM.losses[1].function)]
    state = {"updates": 0}
    seen = []
    for _, (gradient, _) in each_gradient(losses, lambda *_: (torch.tensor(state["updates"]), {}), True):
        seen.append(int(gradient))
        state["updates"] += 1
    assert seen == [0, 1]


def test_an_error_in_the_helper_thread_reaches_the_caller():
    """An error in the other thread is raised, not lost."""

    def gradient_of(number: int, loss: Loss) -> Gradient:
        if number:
            raise ArithmeticError(loss.name)
        return torch.zeros(1), {}

    with pytest.raises(ArithmeticError, match="value"):
        list(each_gradient(ALGORITHM.losses, gradient_of, True))
    assert [loss.name for loss, _ in each_gradient(ALGORITHM.losses, lambda *_: (torch.zeros(1), {}), True)] == [
        "policy",
        "value",
    ]

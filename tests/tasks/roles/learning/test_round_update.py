"""A round is learned where its algorithm has no loss due in some minibatches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import torch

from penstock.tasks.model.algorithms.contract import Algorithm, Loss
from penstock.tasks.roles.learning.round_update import StageTally, learn_batches
from penstock.tasks.roles.reducing.reduction import LocalReduction
from penstock.tasks.specs import ParameterGroup, State

if TYPE_CHECKING:
    from penstock.tasks.runtime.run_context import RunContext


class EverySecond(Algorithm):
    """Learns the mean of a column in every second minibatch alone."""

    @property
    def losses(self):
        """Have one loss."""
        return (Loss("value", "net", lambda params, batch: (batch.mean(params["net"]["w"] * batch["x"]), {})),)

    def is_due(self, loss, state):
        """Wait for the second, the fourth and so on."""
        return int(state.targets["minibatches"]) % 2 == 1

    def init(self, seed):
        """Begin with 1."""
        params = {"net": ParameterGroup({"w": torch.ones(1)})}
        return State(params, targets={"minibatches": torch.zeros((), dtype=torch.int64)})

    def plan(self, generator, window):
        """Make four minibatches."""
        return torch.arange(window.rows).tensor_split(4)

    def update(self, state, loss, gradient):
        """Take the gradient as the step."""
        state.params["net"].flat.sub_(gradient)
        return state

    def after_minibatch(self, state):
        """Count it."""
        state.targets["minibatches"] += 1
        return state


def test_a_minibatch_without_a_loss_that_is_due_is_passed_over():
    """Its rows are drawn, and nothing is learned from them."""
    algorithm = EverySecond()
    config = SimpleNamespace(seed=1, distribution=SimpleNamespace(gradient_block_rows=512))
    context = cast("RunContext", SimpleNamespace(algorithm=algorithm, config=config))
    rows = {"x": torch.arange(8.0)}
    tally = StageTally()
    state = learn_batches(context, algorithm.init(0), 0, [rows], tally, LocalReduction(algorithm))
    assert state.targets["minibatches"] == 4
    assert tally.update_rows == 8
    torch.testing.assert_close(state.params["net"]["w"], torch.tensor([1.0 - 2.5 - 6.5]))

"""Random actions at a run's start, and the annealed correction of prioritised sampling."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from penstock.native import fill_noise
from penstock.tasks.model.algorithms.contract import WindowSpec
from penstock.tasks.model.algorithms.dqn import DQN
from penstock.tasks.model.algorithms.qr_dqn import QRDQN
from penstock.tasks.model.algorithms.sac import SAC
from penstock.tasks.model.algorithms.td3 import TD3
from penstock.tasks.model.nn.optimizers import RandomStart, corrections
from penstock.tasks.roles.learning.window import RoundWindow
from penstock.tasks.setup.config.off_policy import DQNSettings, QRDQNSettings, SACSettings, TD3Settings
from penstock.tasks.specs import State

from ....support.ppo_cases import CHOICES, VECTORS, random

ALGORITHMS = [
    pytest.param(SAC(SACSettings(hidden=(8,), random_steps=100), VECTORS), id="sac"),
    pytest.param(TD3(TD3Settings(hidden=(8,), random_steps=100), VECTORS), id="td3"),
]


def normal(count: int) -> torch.Tensor:
    drawn = np.empty((1, count, 2), dtype=np.float32)
    fill_noise("normal", 7, 2, np.arange(count), 0, drawn)
    return torch.from_numpy(drawn[0])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_actions_are_uniform_until_the_steps_are_taken(algorithm):
    """In the whole round that reaches them, and not after; zero noise is the policy's at any time."""
    state, noise, observation = algorithm.init(1), normal(20_000), random(20_000, 3)
    state.params["actor"].flat.add_(0.3 * random(len(state.params["actor"].flat), seed=6))
    snapshot = {name: state.params[name] for name in algorithm.actor_groups}
    without = replace(algorithm, settings=algorithm.settings.model_copy(update={"random_steps": 0}))

    def acted(other, given):
        return other.act(snapshot, None, observation, given)[0]["action"].detach()

    for rows, is_random in ((0, True), (60, True), (40, False)):
        batch = {"observation": torch.zeros(rows, 3), "action": torch.zeros(rows, 2)}
        with torch.no_grad():
            algorithm.after_round(state, algorithm.stats(batch))
        found = acted(algorithm, noise)
        assert torch.equal(acted(algorithm, 0 * noise), acted(without, 0 * noise))
        assert torch.equal(found, acted(without, noise)) == (not is_random)
        if is_random:
            # Bounds are -2 and 2: a share of (x + 2) / 4 is below x. Six standard deviations of 20,000 draws.
            for x in (-1.5, -0.5, 0.0, 1.0, 1.8):
                below = (found < x).double().mean(0)
                assert float((below - (x + 2) / 4).abs().max()) < 6 * 0.5 / 20_000**0.5
            assert float(torch.corrcoef(found.T)[0, 1].abs()) < 0.05, "numbers of an action depend on each other"


def test_without_random_steps_nothing_is_added():
    """Neither a group, nor a counter, nor statistics: older runs continue with their bytes."""
    start, state = RandomStart(0), State(params={})
    start.init(state)
    assert (state.params, state.targets, start.actor_groups, start.sums({})) == ({}, {}, (), {})
    sac = SAC(SACSettings(hidden=(8,)), VECTORS)
    assert sac.actor_groups == ("actor",)
    assert SACSettings().identity() == {
        name: value for name, value in SACSettings(random_steps=5).identity().items() if name != "random_steps"
    }


@pytest.mark.parametrize(
    "algorithm",
    [
        pytest.param(DQN(DQNSettings(hidden=(8,)), CHOICES), id="dqn"),
        pytest.param(QRDQN(QRDQNSettings(hidden=(8,)), CHOICES), id="qr_dqn"),
    ],
)
def test_the_correction_rises_with_the_minibatches_of_the_run(algorithm):
    """Rounds of 20 rows, of which the third is the first to learn: three minibatches each, annealed over five."""
    changes = {"priority_correction": 0.5, "warm_up_rows": 41, "minibatches": 3, "correction_minibatches": 5}
    changes |= {"window_rows": 80, "priority_exponent": 0.5}
    algorithm = replace(algorithm, settings=algorithm.settings.model_copy(update=changes))
    asked: list[float] = []

    class Asking(RoundWindow):
        def draw(self, generator, count, correction=1.0):
            asked.append(correction)
            return super().draw(generator, count, correction)

    window = Asking(WindowSpec(80, 0.5), 20)
    for round_ in range(6):
        window.begin_round()
        list(algorithm.plan(torch.Generator().manual_seed(round_), window))
    assert asked == pytest.approx([0.5, 0.6, 0.7, 0.8, 0.9, *[1.0] * 7])
    resumed = Asking(WindowSpec(80, 0.5), 20, 4, window.export())
    asked.clear()
    resumed.begin_round()
    list(algorithm.plan(torch.Generator().manual_seed(4), resumed))
    assert asked == [1.0] * 3


def test_a_constant_correction_stays():
    """Over 0 minibatches, which is the default."""
    assert corrections(0.4, 0, 7, 3) == [0.4] * 3
    assert "correction_minibatches" not in DQNSettings().identity()

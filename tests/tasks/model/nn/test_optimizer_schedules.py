"""Entropy bonuses that change, random actions at a run's start, and the annealed correction of prioritised sampling."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from penstock.native import fill_noise
from penstock.tasks.model.algorithms.contract import WindowSpec
from penstock.tasks.model.algorithms.dqn import DQN
from penstock.tasks.model.algorithms.impala import IMPALA
from penstock.tasks.model.algorithms.mappo import MAPPO
from penstock.tasks.model.algorithms.ppo import PPO
from penstock.tasks.model.algorithms.qr_dqn import QRDQN
from penstock.tasks.model.algorithms.sac import SAC
from penstock.tasks.model.algorithms.td3 import TD3
from penstock.tasks.model.nn.optimizers import RandomStart, corrections, init_adam, step_adam
from penstock.tasks.roles.learning.window import RoundWindow
from penstock.tasks.setup.config.algorithm_base import MOST_COUNTED_UPDATES
from penstock.tasks.setup.config.off_policy import DQNSettings, QRDQNSettings, SACSettings, TD3Settings
from penstock.tasks.setup.config.on_policy import IMPALASettings, IPPOSettings, MAPPOSettings, PPOSettings
from penstock.tasks.specs import ActionSpec, EnvironmentSpec, LossInputs, Spec, State

from ....support.algorithms.ppo_cases import CHOICES, VECTORS, random

TEAM = EnvironmentSpec("team", Spec("float32", (2, 3)), ActionSpec("discrete", n=2, shape=(2,)), None, None, agents=2)
BONUS: dict[str, Any] = {"hidden": (8,), "entropy_weight": 0.1, "anneal_rounds": 4}
BONUSES = [
    pytest.param(kind(settings(**BONUS, final_entropy_weight=0.02), environment), id=settings.__name__)
    for kind, settings, environment in (
        (PPO, PPOSettings, CHOICES),
        (IMPALA, IMPALASettings, CHOICES),
        (MAPPO, MAPPOSettings, TEAM),
        (MAPPO, IPPOSettings, TEAM),
    )
]
ALGORITHMS = [
    pytest.param(SAC(SACSettings(hidden=(8,), random_steps=100), VECTORS), id="sac"),
    pytest.param(TD3(TD3Settings(hidden=(8,), random_steps=100), VECTORS), id="td3"),
]


def normal(count: int) -> torch.Tensor:
    drawn = np.empty((1, count, 2), dtype=np.float32)
    fill_noise("normal", 7, 2, np.arange(count), 0, drawn)
    return torch.from_numpy(drawn[0])


@pytest.mark.parametrize("algorithm", BONUSES)
def test_an_entropy_bonus_changes_linearly_with_rounds_and_then_stays(algorithm):
    """However many minibatches a round has; the loss is that of an algorithm whose weight is the round's."""
    state, loss, shape = algorithm.init(1), algorithm.losses[0], algorithm.environment.action.shape
    numbers = {name: random(6, *shape, seed=5) for name in ("log_probability", "advantage", "value_target")}
    observation = random(6, *algorithm.environment.observation.shape, seed=4)
    rows = {"observation": observation, "action": torch.ones(6, *shape, dtype=torch.int64), **numbers}
    stats = algorithm.stats(rows)

    def scalar(other, targets):
        return other.losses[0].function(state.params, LossInputs(rows, 6, stats, targets))[0].item()

    for weight in (0.1, 0.08, 0.06, 0.04, 0.02, 0.02):
        changes = {"entropy_weight": weight, "final_entropy_weight": None, "anneal_rounds": 0}
        expected = scalar(replace(algorithm, settings=algorithm.settings.model_copy(update=changes)), {})
        assert scalar(algorithm, state.targets) == pytest.approx(expected, rel=1e-6)
        with torch.no_grad():
            algorithm.update(state, loss, torch.zeros_like(state.params[loss.group].flat))
            algorithm.after_minibatch(state)
            algorithm.after_round(state, stats)


@pytest.mark.parametrize("algorithm", BONUSES)
def test_an_entropy_bonus_that_stays_adds_nothing(algorithm):
    """Neither a counter nor a setting of the identity: older runs continue with their bytes."""
    changed = algorithm.settings
    kept = type(changed)(**BONUS)
    assert "rounds" not in replace(algorithm, settings=kept).init(1).targets
    assert kept.identity() == {key: value for key, value in changed.identity().items() if key != "final_entropy_weight"}


@pytest.mark.parametrize("algorithm", BONUSES)
def test_a_final_entropy_weight_without_rounds_is_refused(algorithm):
    """It would never be reached, and a user would not see that."""
    settings = algorithm.settings.model_copy(update={"anneal_rounds": 0})
    with pytest.raises(ValueError, match=r"final_entropy_weight = 0\.02, but algorithm\.anneal_rounds is 0"):
        settings.check_round(64)


def test_adams_counter_ends_where_schedules_are_refused():
    """The next optimizer step would not be counted, so a longer schedule would never end."""
    state, params = init_adam(torch.zeros(1)), torch.zeros(1)
    state["step"].fill_(MOST_COUNTED_UPDATES - 1)
    for _ in range(2):
        step_adam(params, torch.ones(1), state, 1e-3)
        assert state["step"].item() == MOST_COUNTED_UPDATES


@pytest.mark.parametrize(
    ("settings", "updates"),
    [
        *((kind, 8) for kind in (PPOSettings, MAPPOSettings, IPPOSettings)),
        *((kind, 4) for kind in (IMPALASettings, DQNSettings, QRDQNSettings)),
    ],
)
def test_schedules_whose_end_is_never_counted_are_refused(settings, updates):
    """A learning rate that stays before its last value would look like one that was chosen."""
    epochs = {"epochs": 2} if "epochs" in settings.model_fields else {}
    settings(minibatches=4, anneal_rounds=MOST_COUNTED_UPDATES // updates, **epochs).check_round(4096)
    longer = settings(minibatches=4, anneal_rounds=MOST_COUNTED_UPDATES // updates + 1, **epochs)
    with pytest.raises(ValueError, match=rf"16777216 are counted.*at most {MOST_COUNTED_UPDATES // updates} rounds"):
        longer.check_round(4096)


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

"""Running statistics: their values, the same on all learners, and the same inputs in acting and learning."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock.storage.stores.open import open_store
from penstock.tasks.data.snapshots.checkpoints import load_checkpoint, write_checkpoint
from penstock.tasks.model.algorithms.ppo import PPO
from penstock.tasks.model.nn.normalizers import Normalizer, discounted_rewards
from penstock.tasks.roles.reducing.reduction import LocalReduction
from penstock.tasks.setup.config.on_policy import PPOSettings
from penstock.tasks.specs import EnvironmentSpec, State

from ....support.algorithms.ppo_cases import (
    CHOICES,
    ENVIRONMENTS,
    VECTORS,
    biased,
    loss_of,
    random,
    rows_of,
    trajectory,
)

CPU = torch.device("cpu")


def fresh(normalizer: Normalizer) -> State:
    state = State(params={})
    normalizer.init(state)
    return state


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_moments_are_those_of_all_rows(offset: float):
    """However rows came in rounds and tiles: NumPy's mean and deviation over all of them, per number."""
    values = (random(500, 3).double() * torch.tensor([1.0, 5.0, 0.1]) + offset).float()
    normalizer = Normalizer(group="seen", shape=(3,))
    state = fresh(normalizer)
    for round_ in values.split([50, 300, 150]):
        tiles = [normalizer.sums(tile) for tile in round_.split(40)]
        normalizer.update(state, {name: torch.stack([tile[name] for tile in tiles]).sum(0) for name in tiles[0]})
    expected = values.double().numpy()
    np.testing.assert_allclose(state.targets["seen/mean"], expected.mean(0), rtol=1e-9)
    np.testing.assert_allclose(state.targets["seen/variance"], expected.var(0), rtol=1e-4)
    assert state.targets["seen/count"] == 500
    applied = normalizer.apply(state.params, values)
    standard = (expected - expected.mean(0)) / expected.std(0)
    np.testing.assert_allclose(applied, standard.clip(-10, 10), rtol=1e-5, atol=1e-6 * (1 + offset))


def test_a_fresh_normaliser_changes_nothing():
    """At first, and after a round without rows: numbers stay as they are, up to the limit."""
    normalizer = Normalizer(group="seen", shape=(2,), limit=5.0)
    state = fresh(normalizer)
    normalizer.update(state, normalizer.sums(torch.empty(0, 2)))
    assert normalizer.apply(state.params, torch.tensor([[1.5, -7.0]])).tolist() == [[1.5, -5.0]]


def test_numbers_that_never_differ_stay_finite():
    """A constant has no deviation: it becomes zero, and what leaves it meets the limit."""
    normalizer = Normalizer(group="seen", shape=(1,))
    state = fresh(normalizer)
    normalizer.update(state, normalizer.sums(torch.full((9, 1), 3.0)))
    assert normalizer.apply(state.params, torch.tensor([[3.0], [4.0]])).tolist() == [[0.0], [10.0]]


def test_without_a_centre_numbers_keep_their_sign():
    """A reward is divided by the deviation alone, so that a good one stays good."""
    normalizer = Normalizer(group="gained", centred=False)
    state = fresh(normalizer)
    normalizer.update(state, normalizer.sums(torch.tensor([6.0, 10.0])))
    torch.testing.assert_close(normalizer.apply(state.params, torch.tensor([1.0, -4.0])), torch.tensor([0.5, -2.0]))


def test_discounted_rewards_worked_out_by_hand():
    """Sums continue within an episode, and start anew after either end; environments are apart."""
    rewards = torch.tensor([[1.0, 1.0], [2.0, 1.0], [4.0, 1.0], [8.0, 1.0]])
    terminated = torch.tensor([[0, 0], [1, 0], [0, 0], [0, 0]], dtype=torch.uint8)
    truncated = torch.tensor([[0, 0], [0, 0], [0, 1], [0, 0]], dtype=torch.uint8)
    found = discounted_rewards(rewards, terminated, truncated, 0.5)
    assert found.tolist() == [[1.0, 1.0], [2.5, 1.5], [4.0, 1.75], [10.0, 1.0]]
    assert rewards[1, 0] == 2.0, "what was given stays"


# In PPO


def normalizing(environment: EnvironmentSpec) -> PPO:
    return PPO(PPOSettings(normalize_observation=True, normalize_reward=True), environment)


def round_of(environment: EnvironmentSpec, seed: int = 0) -> dict[str, Tensor]:
    """Columns of a round whose observations are far from standard."""
    action = {"action": random(3, 2, 2)} if environment is VECTORS else {}
    return {"observation": 4 * random(3, 2, 3, seed=seed) + 100, "reward": 7 * random(3, 2, seed=seed + 1), **action}


def after(ppo: PPO, state: State, **columns: Tensor) -> State:
    """The state after a round that nothing else was learned from."""
    with torch.no_grad():
        stats = ppo.stats(ppo.post(state.params, trajectory(**columns)))
        reduction = LocalReduction(ppo)
        return reduction.after_round(state, reduction.stats(stats))


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_acting_and_learning_see_the_same(environment: EnvironmentSpec):
    """Before and after the numbers have changed: the first minibatch's ratio is 1, so what acted is what learns."""
    ppo = normalizing(environment)
    state = ppo.init(1)
    for round_ in range(2):
        rows = rows_of(ppo, state, 64) | {"discounted_reward": random(64)}
        _, outputs = loss_of(ppo, "policy", state.params, rows)
        assert outputs["kl"].abs().max().item() <= 1e-6
        state = after(ppo, state, **round_of(environment, round_))


def test_networks_see_normalised_observations_and_rows_keep_raw_ones():
    """As a plain PPO with the same weights acts, values and learns from observations normalised by hand."""
    ppo, plain = normalizing(CHOICES), PPO(PPOSettings(), CHOICES)
    columns = round_of(CHOICES)
    state = after(ppo, ppo.init(1), **columns)
    rows = columns["observation"].flatten(0, 1)
    seen = ((rows - rows.mean(0)) / rows.std(0, correction=0)).clamp(-10, 10)
    noise = random(6, 2)
    with torch.no_grad():
        acted, _ = ppo.act(state.params, None, rows, noise)
        expected, _ = plain.act(plain.init(1).params, None, seen, noise)
        torch.testing.assert_close(acted["log_probability"], expected["log_probability"])
        batch = ppo.post(state.params, trajectory(**columns))
        assert torch.equal(batch["observation"], rows)
        _, outputs = loss_of(ppo, "value", state.params, {"observation": rows, "value_target": torch.zeros(6)})
        _, expected = loss_of(
            plain, "value", plain.init(1).params, {"observation": seen, "value_target": torch.zeros(6)}
        )
        torch.testing.assert_close(outputs["value_loss"], expected["value_loss"], rtol=1e-4, atol=1e-6)


def test_rewards_are_scaled_by_the_deviation_of_their_discounted_sums():
    """From the round after on: with values of zero, no discount and no trace, an advantage is the scaled reward."""
    ppo = PPO(PPOSettings(discount=0.0, trace_decay=0.0, reward_scale=0.5, normalize_reward=True), CHOICES)
    state = biased(ppo, value=[0.0])
    reward = 7 * random(3, 2)
    with torch.no_grad():
        before = ppo.post(state.params, trajectory(reward=reward))["advantage"].view(3, 2)
        state = after(ppo, state, reward=reward)
        scaled = ppo.post(state.params, trajectory(reward=reward))["advantage"].view(3, 2)
    torch.testing.assert_close(before, 0.5 * reward)
    torch.testing.assert_close(scaled, 0.5 * reward / (0.5 * reward).std(correction=0))


def test_a_snapshot_has_what_acting_needs_of_it():
    """Actors get the groups that `act` reads, and nothing of rewards or moments."""
    ppo = normalizing(VECTORS)
    state = after(ppo, ppo.init(1), **round_of(VECTORS))
    assert ppo.actor_groups == ("policy", "observations")
    held = {name: state.params[name] for name in ppo.actor_groups}
    acted, _ = ppo.act(held, None, random(5, 3), random(5, 2))
    expected, _ = ppo.act(state.params, None, random(5, 3), random(5, 2))
    assert all(torch.equal(acted[name], expected[name]) for name in expected)


def test_a_checkpoint_keeps_it(tmp_path: Path):
    """A learner that resumes from one has the same moments and numbers, to the byte, and can write the next."""
    ppo, store = normalizing(CHOICES), open_store(str(tmp_path))
    state = after(ppo, ppo.init(1), **round_of(CHOICES))
    ref = write_checkpoint(store, 0, state, {})
    found = load_checkpoint(store, ref, CPU).state
    assert all(torch.equal(found.targets[name], value) for name, value in state.targets.items())
    assert write_checkpoint(store, 0, after(ppo, found, **round_of(CHOICES, 5)), {}) == write_checkpoint(
        store, 0, after(ppo, state, **round_of(CHOICES, 5)), {}
    )

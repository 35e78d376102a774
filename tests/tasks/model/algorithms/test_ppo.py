"""PPO's acting, and what it makes of a round, against numbers worked out by hand or computed independently."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Normal

from penstock.native import fill_noise
from penstock.tasks.model.algorithms.ppo import PPO
from penstock.tasks.setup.config.on_policy import PPOSettings
from penstock.tasks.specs import EnvironmentSpec, State

from ....support.algorithms.ppo_cases import (
    CHOICES,
    ENVIRONMENTS,
    VECTORS,
    biased,
    first_number,
    loss_of,
    random,
    rows_of,
    trajectory,
)

# Acting


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_rows_and_noise_are_as_declared(environment: EnvironmentSpec):
    """The rows that `act` returns fit the columns that a shard stores, without a conversion."""
    ppo = PPO(PPOSettings(), environment)
    acted, carry = ppo.act(ppo.init(1).params, None, random(5, 3), random(5, *ppo.noise.shape))
    assert carry is None
    assert acted.keys() == ppo.rows.keys()
    for name, spec in ppo.rows.items():
        assert (str(acted[name].dtype), tuple(acted[name].shape)) == (f"torch.{spec.dtype}", (5, *spec.shape))


def test_gumbel_noise_samples_the_softmax():
    """With the noise that actors get, actions are drawn with the policy's probabilities."""
    ppo = PPO(PPOSettings(), CHOICES)
    state = biased(ppo, policy=[0.0, math.log(3.0)])
    count = 40_000
    noise = np.empty((1, count, 2), dtype=np.float32)
    fill_noise("gumbel", 7, 2, np.arange(count), 0, noise)
    acted, _ = ppo.act(state.params, None, torch.zeros(count, 3), torch.from_numpy(noise[0]))
    share = acted["action"].double().mean().item()
    deviation = math.sqrt(0.75 * 0.25 / count)
    assert abs(share - 0.75) < 4 * deviation
    expected = torch.where(acted["action"] == 1, math.log(0.75), math.log(0.25))
    torch.testing.assert_close(acted["log_probability"], expected)


def test_normal_noise_samples_the_normal_distribution():
    """Continuous actions have the network's mean and the parameter's standard deviation."""
    ppo = PPO(PPOSettings(initial_log_std=math.log(0.5)), VECTORS)
    state = biased(ppo, policy=[1.0, -3.0])
    with torch.no_grad():
        state.params["policy"]["log_std"].fill_(math.log(0.5))
    count = 40_000
    noise = np.empty((1, count, 2), dtype=np.float32)
    fill_noise("normal", 7, 2, np.arange(count), 0, noise)
    acted, _ = ppo.act(state.params, None, torch.zeros(count, 3), torch.from_numpy(noise[0]))
    action = acted["action"].detach().double()
    assert (action.mean(0) - torch.tensor([1.0, -3.0])).abs().max() < 4 * 0.5 / math.sqrt(count)
    assert (action.std(0) - 0.5).abs().max() < 4 * 0.5 / math.sqrt(2 * count)


def test_no_noise_is_greedy():
    """Evaluation gives zero noise and gets the most probable choice, or the mean."""
    ppo = PPO(PPOSettings(), CHOICES)
    observation = random(64, 3)
    params = biased(ppo, policy=[0.1, 0.2]).params
    assert ppo.act(params, None, observation, torch.zeros(64, 2))[0]["action"].tolist() == [1] * 64
    params = biased(ppo, policy=[0.2, 0.1]).params
    assert ppo.act(params, None, observation, torch.zeros(64, 2))[0]["action"].tolist() == [0] * 64
    ppo = PPO(PPOSettings(), VECTORS)
    params = biased(ppo, policy=[0.25, -0.5]).params
    assert ppo.act(params, None, observation, torch.zeros(64, 2))[0]["action"].tolist() == [[0.25, -0.5]] * 64


def test_a_choices_log_probability_is_that_of_the_softmax():
    """Equal to torch's own distribution, for actions that are not the likeliest as well."""
    ppo = PPO(PPOSettings(), CHOICES)
    state = biased(ppo, policy=[0.3, -1.2])
    acted, _ = ppo.act(state.params, None, torch.zeros(50, 3), 3 * random(50, 2))
    assert set(acted["action"].tolist()) == {0, 1}
    expected = Categorical(logits=torch.tensor([0.3, -1.2])).log_prob(acted["action"])
    torch.testing.assert_close(acted["log_probability"], expected)


def test_a_vectors_log_probability_is_that_of_the_normal_distribution():
    """Acting and learning both agree with torch's own distribution, summed over the action's numbers."""
    ppo = PPO(PPOSettings(initial_log_std=-0.7, entropy_weight=0.0), VECTORS)
    state = ppo.init(1)
    rows = rows_of(ppo, state, 9)
    mean = ppo.act(state.params, None, rows["observation"], torch.zeros(9, 2))[0]["action"]
    normal = Normal(mean, math.exp(-0.7))
    torch.testing.assert_close(rows["log_probability"], normal.log_prob(rows["action"]).sum(-1).detach())
    rows["log_probability"] = torch.zeros(9)
    _, outputs = loss_of(ppo, "policy", state.params, rows)
    log_ratio = normal.log_prob(rows["action"]).sum(-1)
    torch.testing.assert_close(outputs["kl"], (log_ratio.exp() - 1 - log_ratio).detach())
    torch.testing.assert_close(outputs["entropy"], normal.entropy().sum(-1).detach())


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_acting_is_row_wise(environment: EnvironmentSpec):
    """A row's action depends on no other row, so any split of a batch acts alike (to the kernels' rounding)."""
    ppo = PPO(PPOSettings(), environment)
    params, observation, noise = ppo.init(1).params, random(8, 3), random(8, *ppo.noise.shape, seed=1)
    whole, _ = ppo.act(params, None, observation, noise)
    parts = [ppo.act(params, None, observation[cut], noise[cut])[0] for cut in (slice(0, 3), slice(3, 8))]
    for name, column in whole.items():
        torch.testing.assert_close(torch.cat([part[name] for part in parts]), column)
    changed = observation.clone()
    changed[0] += 100
    other, _ = ppo.act(params, None, changed, noise)
    for name, column in whole.items():
        assert torch.equal(other[name][1:], column[1:])


# After the round


HANDMADE = [
    # With discount and trace decay 0.5, rewards 1 and values 2, 4, 6: deltas 1, 0, -1 if nothing ends before 8 follows.
    pytest.param([0, 0, 0], [0, 0, 0], None, [0.9375, -0.25, -1.0], id="round ends"),
    pytest.param([0, 1, 0], [0, 0, 0], 100.0, [0.25, -3.0, -1.0], id="terminated"),
    pytest.param([0, 0, 0], [0, 1, 0], 10.0, [1.5, 2.0, -1.0], id="truncated"),
    pytest.param([0, 1, 0], [0, 1, 0], 100.0, [0.25, -3.0, -1.0], id="both"),
    pytest.param([0, 0, 1], [0, 0, 0], None, [0.6875, -1.25, -5.0], id="terminated last"),
    pytest.param([0, 0, 0], [0, 0, 1], None, [0.9375, -0.25, -1.0], id="truncated last"),
    pytest.param([0, 0, 1], [0, 0, 1], None, [0.6875, -1.25, -5.0], id="both last"),
]


@pytest.mark.parametrize(("terminated", "truncated", "final", "expected"), HANDMADE)
def test_advantages_worked_out_by_hand(
    terminated: list[int], truncated: list[int], final: float | None, expected: list[float]
):
    """`post` treats every way in which a row can lack a successor as the paper's equations do.

    The second environment is like the first case always, so nothing leaks from one environment to the other.
    """
    ppo = PPO(PPOSettings(hidden=(), discount=0.5, trace_decay=0.5), CHOICES)
    ends = {
        "terminated": torch.tensor([terminated, [0, 0, 0]], dtype=torch.uint8).T,
        "truncated": torch.tensor([truncated, [0, 0, 0]], dtype=torch.uint8).T,
    }
    if final is not None:
        following = torch.zeros(3, 3)
        following[:, 0] = torch.tensor([final, 8.0, 8.0])
        ends |= {"bootstrap_rows": torch.tensor([2, 4, 5]), "bootstrap_observation": following}
    with torch.no_grad():
        batch = ppo.post(first_number(ppo).params, trajectory(**ends))
    assert batch["advantage"].view(3, 2)[:, 0].tolist() == expected
    assert batch["advantage"].view(3, 2)[:, 1].tolist() == [0.9375, -0.25, -1.0]
    values = torch.tensor([2.0, 2.0, 4.0, 4.0, 6.0, 6.0])
    assert torch.equal(batch["value_target"], batch["advantage"] + values)


def test_post_keeps_the_order_of_rows():
    """Row t * B + b of the batch is step t of environment b, in every column."""
    ppo = PPO(PPOSettings(hidden=()), CHOICES)
    columns = {"action": torch.tensor([[0, 1], [1, 0], [1, 1]]), "observation": random(3, 2, 3)}
    with torch.no_grad():
        batch = ppo.post(ppo.init(1).params, trajectory(**columns))
    assert batch["action"].tolist() == [0, 1, 1, 0, 1, 1]
    assert batch["log_probability"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert torch.equal(batch["observation"], columns["observation"].reshape(6, 3))
    assert {len(column) for column in batch.values()} == {6}


@pytest.mark.parametrize("dtype", [torch.float64, torch.uint8])
def test_observations_of_any_type_are_learned_as_float32(dtype: torch.dtype):
    """Simulators observe in float64, screens in bytes: acting and post give what the same numbers in float32 give."""
    ppo = PPO(PPOSettings(), CHOICES)
    params = ppo.init(1).params
    observation = torch.arange(18).view(3, 2, 3) % 7
    noise = random(2, 2)
    with torch.no_grad():
        acted, _ = ppo.act(params, None, observation[0].to(dtype), noise)
        batch = ppo.post(params, trajectory(observation=observation.to(dtype)))
        expected, _ = ppo.act(params, None, observation[0].float(), noise)
        expected_batch = ppo.post(params, trajectory(observation=observation.float()))
    assert all(torch.equal(acted[name], expected[name]) for name in expected)
    assert all(torch.equal(batch[name], expected_batch[name]) for name in expected_batch)
    assert batch["observation"].dtype == torch.float32


def test_the_reward_scale_reaches_advantages_alone():
    """With values of zero, no discount and no trace, an advantage is the scaled reward."""
    ppo = PPO(PPOSettings(discount=0.0, trace_decay=0.0, reward_scale=0.25), CHOICES)
    reward = random(3, 2)
    with torch.no_grad():
        batch = ppo.post(biased(ppo, value=[0.0]).params, trajectory(reward=reward))
    torch.testing.assert_close(batch["advantage"].view(3, 2), 0.25 * reward)


def test_stats_are_sums_that_normalise_over_all_tiles():
    """Sums of the parts, added, give the mean and deviation of the whole; the loss uses exactly these."""
    ppo = PPO(PPOSettings(clip_range=100.0), CHOICES)
    state = ppo.init(1)
    rows = rows_of(ppo, state, 30)
    rows["advantage"] = 3 * rows["advantage"] + 1000
    parts = [ppo.stats({"advantage": part}) for part in rows["advantage"].split([7, 23])]
    stats = {name: parts[0][name] + parts[1][name] for name in parts[0]}
    advantage = rows["advantage"].double().numpy()
    assert stats["count"].item() == 30
    mean = (stats["advantage"] / stats["count"]).item()
    variance = (stats["advantage_square"] / stats["count"]).item() - mean**2
    assert mean == pytest.approx(advantage.mean(), rel=1e-12)
    assert math.sqrt(variance) == pytest.approx(advantage.std(), rel=1e-6)
    # A ratio that differs from row to row, so that the loss is no multiple of the advantages' sum.
    rows["log_probability"] = rows["log_probability"] - 0.3 * random(30, seed=9)
    log_probability = _log_probability(ppo, state, rows)
    ratio = (log_probability - rows["log_probability"]).exp().double().numpy()
    expected = -(ratio * (advantage - advantage.mean()) / advantage.std()).mean()
    scalar, _ = loss_of(ppo, "policy", state.params, rows, stats=stats)
    assert scalar.item() == pytest.approx(expected, rel=1e-3)


def _log_probability(ppo: PPO, state: State, rows: dict[str, Tensor]) -> Tensor:
    hidden = rows["observation"]
    policy = state.params["policy"]
    for layer in range(3):
        hidden = hidden @ policy[f"{layer}.weight"].T + policy[f"{layer}.bias"]
        hidden = torch.tanh(hidden) if layer < 2 else hidden
    return Categorical(logits=hidden).log_prob(rows["action"]).detach()


def test_equal_advantages_normalise_to_zero():
    """A round without any difference between its rows teaches nothing, and gives no NaN."""
    ppo = PPO(PPOSettings(), CHOICES)
    state = ppo.init(1)
    rows = rows_of(ppo, state, 5) | {"advantage": torch.full((5,), 0.1)}
    scalar, _ = loss_of(ppo, "policy", state.params, rows, stats=ppo.stats(rows))
    assert abs(scalar.item()) < 1e-3

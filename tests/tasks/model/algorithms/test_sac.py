"""SAC against independent computations, and that it learns."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.distributions import Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from penstock.tasks.model.algorithms.sac import SAC
from penstock.tasks.roles.learning.gradients import minibatch_gradient
from penstock.tasks.roles.learning.minibatches import gather_minibatches, loss_noise, rows_of, take_share
from penstock.tasks.roles.learning.window import RoundWindow
from penstock.tasks.setup.config.off_policy import SACSettings
from penstock.tasks.specs import LossInputs, State, Trajectory

from ....support.algorithms.ppo_cases import VECTORS, random, with_settings

SMALL = SAC(SACSettings(hidden=(8,)), VECTORS)


def batch_of(count: int) -> dict[str, torch.Tensor]:
    return {
        "observation": random(count, 3, seed=1),
        "action": random(count, 2, seed=2).tanh(),
        "reward": random(count, seed=3),
        "following": random(count, 3, seed=4),
        "factor": random(count, seed=5).abs(),
        "weight": torch.ones(count),
    }


def apart(sac: SAC) -> State:
    """A state with other targets than critics, a lively actor and a temperature of 0.3."""
    state, other = sac.init(1), sac.init(2)
    state.params["actor"].flat.add_(0.3 * random(len(state.params["actor"].flat), seed=6))
    state.params["temperature"].flat.fill_(math.log(0.3))
    return replace(state, targets=other.targets)


def layers(params, prefix: str, inputs: torch.Tensor) -> torch.Tensor:
    hidden = torch.relu(torch.nn.functional.linear(inputs, params[f"{prefix}0.weight"], params[f"{prefix}0.bias"]))
    return torch.nn.functional.linear(hidden, params[f"{prefix}1.weight"], params[f"{prefix}1.bias"])


def acted(state: State, observation: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The squashed action and its log-probability, by torch's own distributions in float64."""
    mean, log_std = layers(state.params["actor"], "", observation).double().chunk(2, -1)
    normal = Normal(mean, log_std.exp())
    action = (mean + noise * log_std.exp()).tanh()
    squashed = Independent(TransformedDistribution(normal, [TanhTransform()]), 1)
    return action, squashed.log_prob(action)


def loss_of(sac: SAC, name: str):
    return next(loss for loss in sac.losses if loss.name == name)


def test_rows_and_noise_are_as_declared():
    """The rows that `act` returns fit the columns that a shard stores, and the environment's bounds."""
    rows, carry = SMALL.act(apart(SMALL).params, None, random(500, 3), 9 * random(500, *SMALL.noise.shape))
    assert carry is None
    assert rows.keys() == SMALL.rows.keys()
    assert (rows["action"].dtype, tuple(rows["action"].shape)) == (torch.float32, (500, 2))
    assert float(rows["action"].detach().abs().max()) == pytest.approx(2.0, abs=1e-3)


def test_no_noise_is_greedy():
    """Evaluation gets the squashed mean within the bounds, here from -2 to 2."""
    state = apart(SMALL)
    rows, _ = SMALL.act(state.params, None, random(20, 3), torch.zeros(20, 2))
    expected, _ = acted(state, random(20, 3), torch.zeros(20, 2))
    torch.testing.assert_close(rows["action"], 2 * expected.float())


def test_actions_are_stored_as_the_environment_takes_them():
    """And learned from as they were squashed, with what followed and whether it counts."""
    noise, observation = random(6, 2, seed=8), random(3, 2, 3, seed=9)
    state = apart(SMALL)
    rows, _ = SMALL.act(state.params, None, observation.flatten(0, 1), noise)
    ended = torch.tensor([[0, 0], [0, 1], [0, 0]], dtype=torch.uint8)
    columns = {
        "observation": observation,
        "action": rows["action"].detach().view(3, 2, 2),
        "reward": torch.arange(6.0).view(3, 2),
        "terminated": ended,
        "truncated": 0 * ended,
    }
    after = random(3, 3, seed=10)
    batch = SMALL.post({}, Trajectory(columns, torch.tensor([3, 4, 5]), after))
    torch.testing.assert_close(batch["action"], acted(state, observation.flatten(0, 1), noise)[0].float())
    assert batch["reward"].tolist() == [0, 1, 2, 3, 4, 5]
    assert batch["factor"].tolist() == pytest.approx([0.99, 0.99, 0.99, 0, 0.99, 0.99])
    expected = torch.stack([observation[1, 0], observation[1, 1], observation[2, 0], *after])
    assert torch.equal(batch["following"], expected)


def test_losses_are_those_of_the_paper():
    """Critics' target, actor and temperature, by torch's distributions in float64."""
    state, rows, noise = apart(SMALL), batch_of(30), random(30, 2, seed=7)
    with torch.no_grad():
        action, log_probability = acted(state, rows["following"], noise)
        pair = torch.cat((rows["following"], action.float()), -1)
        following = torch.minimum(*(layers(state.targets, name, pair)[:, 0] for name in ("first/", "second/")))
        target = rows["reward"] + rows["factor"] * (following - 0.3 * log_probability)
        pair = torch.cat((rows["observation"], rows["action"]), -1)
        values = [layers(state.params["critic"], name, pair)[:, 0] for name in ("first/", "second/")]
        critic = sum(0.5 * (value - target).square() for value in values).sum() / 40
        action, log_probability = acted(state, rows["observation"], noise)
        pair = torch.cat((rows["observation"], action.float()), -1)
        value = torch.minimum(*(layers(state.params["critic"], name, pair)[:, 0] for name in ("first/", "second/")))
        actor = (0.3 * log_probability - value).sum() / 40
        temperature = -(math.log(0.3) * (log_probability - 2)).sum() / 40  # two numbers: a target entropy of -2
    for name, expected in (("critic", critic), ("actor", actor), ("temperature", temperature)):
        scalar, _ = loss_of(SMALL, name).function(
            state.params, LossInputs(rows, 40, targets=state.targets, noise=noise)
        )
        assert scalar.item() == pytest.approx(expected.item(), rel=1e-4), name


def test_log_probabilities_hold_far_out():
    """They are finite even if tanh rounds to 1, where the formula with 1 - tanh ** 2 gives infinity."""
    state = apart(SMALL)
    state.params["actor"].flat.zero_()
    _, outputs = loss_of(SMALL, "actor").function(
        state.params, LossInputs(batch_of(1), 1, targets=state.targets, noise=torch.tensor([[30.0, -30.0]]))
    )
    unsquashed = Normal(0.0, 1.0).log_prob(torch.tensor([30.0, 30.0])).sum()
    slope = 2 * (math.log(4.0) - 2 * 30.0)  # of each number log(1 - tanh(30) ** 2) = log 4 - 60
    assert -float(outputs["entropy"]) == pytest.approx(float(unsquashed) - slope, rel=1e-6)


@pytest.mark.parametrize("name", ["critic", "actor", "temperature"])
def test_parts_of_a_minibatch_add_up(name):
    """However it is cut, with each row's own noise: the gradient is that of the whole, to rounding."""
    state, rows, noise = apart(SMALL), batch_of(32), random(32, 2, seed=7)
    loss = loss_of(SMALL, name)
    whole, _ = minibatch_gradient(loss, state, rows, {}, 100, None, noise)
    parts, _ = minibatch_gradient(loss, state, rows, {}, 7, None, noise)
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-6)
    assert whole.abs().max() > 0


def test_targets_follow_slowly():
    """By their share of the way, after every minibatch."""
    sac = with_settings(SMALL, target_share=0.25)
    state = apart(sac)
    before = {name: value.clone() for name, value in state.targets.items()}
    state = sac.after_minibatch(state)
    for name, value in state.params["critic"].items():
        torch.testing.assert_close(state.targets[name], 0.75 * before[name] + 0.25 * value.detach())


def bandit(sac: SAC, state: State, round_: int) -> Trajectory:
    """Episodes of one step, that pay the more the nearer the action is to 0.8 times the first number's sign."""
    observation = random(1, 32, 3, seed=round_)
    rows, _ = sac.act(state.params, None, observation[0], random(32, 2, seed=1000 + round_))
    action = rows["action"].detach()
    reward = -(action - 0.8 * observation[0, :, :1].sign()).square().sum(-1)
    ended = torch.ones(1, 32, dtype=torch.uint8)
    columns = {"observation": observation, "action": action[None], "reward": reward[None], "terminated": ended}
    return Trajectory({**columns, "truncated": 0 * ended}, torch.arange(32), torch.zeros(32, 3))


def learn(sac: SAC, rounds: int) -> State:
    """As the runtime does it: acting with what was learned, from rows of many rounds."""
    state, window, kept = sac.init(1), RoundWindow(sac.window, 32), {}
    for round_ in range(rounds):
        batch = sac.post({}, bandit(sac, state, round_))
        kept = {name: torch.cat([kept[name], value]) if kept else value for name, value in batch.items()}
        window.begin_round()
        shares = take_share(sac.plan(torch.Generator().manual_seed(round_), window), range(32), 32)
        for number, (share, rows) in enumerate(gather_minibatches(partial(rows_of, kept), shares, 1000)):
            for index, loss in enumerate(sac.losses):
                noise = loss_noise(loss.noise, 1, index, round_, number, share.places)
                gradient, _ = minibatch_gradient(loss, state, rows, {}, 4096, None, noise)
                with torch.no_grad():
                    state = sac.update(state, loss, gradient)
            with torch.no_grad():
                state = sac.after_minibatch(state)
    return state


def test_it_learns_the_rewarded_action():
    """From its own actions, and the temperature falls from 1 as the target entropy asks; twice with the same bytes."""
    sac = with_settings(SMALL, hidden=(16,), learning_rate=2e-2, warm_up_rows=64, minibatch_rows=64, minibatches=4)
    state = learn(sac, 40)
    observation = random(200, 3, seed=99)
    rows, _ = sac.act(state.params, None, observation, torch.zeros(200, 2))
    error = (rows["action"].detach() - 0.8 * observation[:, :1].sign()).abs()
    assert float(error.median()) < 0.5  # of 0.8 where nothing is learned
    assert float(state.params["temperature"].flat) < math.log(0.5)
    once, again = learn(sac, 4), learn(sac, 4)
    assert all(torch.equal(again.params[name].flat, group.flat) for name, group in once.params.items())

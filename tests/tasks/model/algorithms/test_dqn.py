"""DQN against numbers worked out by hand or computed independently, and that it learns."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from penstock.native import fill_noise
from penstock.tasks.model.algorithms.contract import Draw, WindowSpec
from penstock.tasks.model.algorithms.dqn import DQN
from penstock.tasks.roles.learning.gradients import minibatch_gradient
from penstock.tasks.roles.learning.minibatches import gather_minibatches, rows_of, take_share
from penstock.tasks.roles.learning.window import RoundWindow
from penstock.tasks.setup.config.off_policy import DQNSettings
from penstock.tasks.specs import LossInputs, State, Trajectory

from ....support.algorithms.ppo_cases import CHOICES, random, trajectory, with_settings

PLAIN = DQN(DQNSettings(hidden=(8,), dueling=False), CHOICES)


def batch_of(count: int, seed: int = 1) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "observation": torch.randn(count, 3, generator=generator),
        "action": torch.randint(2, (count,), generator=generator),
        "return": torch.randn(count, generator=generator),
        "following": torch.randn(count, 3, generator=generator),
        "factor": torch.rand(count, generator=generator),
        "weight": torch.rand(count, generator=generator),
    }


def apart(dqn: DQN) -> State:
    """A state whose target network is another than its network."""
    state, other = dqn.init(1), dqn.init(2)
    return replace(state, targets=other.targets)


def epsilon(state: State) -> float:
    return float(state.params["exploration"].flat)


def explored(dqn: DQN, chance: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return actions and greedy actions of many rows, exploring with this probability."""
    state, count = dqn.init(1), 40_000
    state.params["exploration"].flat.fill_(chance)
    noise = np.empty((1, count, *dqn.noise.shape), dtype=np.float32)
    fill_noise(dqn.noise.kind, 7, 2, np.arange(count), 0, noise)
    observation = random(count, 3)
    acted, _ = dqn.act(state.params, None, observation, torch.from_numpy(noise[0]))
    greedy, _ = dqn.act(state.params, None, observation, torch.zeros(count, *dqn.noise.shape))
    return acted["action"], greedy["action"]


def test_rows_and_noise_are_as_declared():
    """The rows that `act` returns fit the columns that a shard stores, without a conversion."""
    acted, carry = PLAIN.act(PLAIN.init(1).params, None, random(5, 3), torch.rand(5, *PLAIN.noise.shape))
    assert carry is None
    assert {name: (str(value.dtype), tuple(value.shape)) for name, value in acted.items()} == {
        "action": ("torch.int64", (5,))
    }


@pytest.mark.parametrize("dueling", [False, True])
def test_no_noise_is_greedy(dueling):
    """Evaluation follows the largest value, however much actors still explore."""
    dqn = with_settings(PLAIN, dueling=dueling)
    state = dqn.init(1)
    assert epsilon(state) == 1.0
    observation = random(50, 3)
    acted, _ = dqn.act(state.params, None, observation, torch.zeros(50, *dqn.noise.shape))
    weights = {name: value.detach() for name, value in state.params["value"].items()}
    hidden = torch.relu(observation @ weights["0.weight"].T + weights["0.bias"])
    output = hidden @ weights["1.weight"].T + weights["1.bias"]
    assert torch.equal(acted["action"], output[:, -2:].argmax(-1))
    assert set(acted["action"].tolist()) == {0, 1}


@pytest.mark.parametrize("chance", [0.0, 0.3, 1.0])
def test_it_explores_as_often_as_epsilon_says(chance):
    """Exploration draws every choice with the same probability, so half of the draws of two are not greedy."""
    action, greedy = explored(PLAIN, chance)
    assert abs(float((action != greedy).float().mean()) - chance / 2) < 0.01


def test_rows_of_several_steps():
    """Three steps of two environments, two at a time; the first environment's episode ends in its second step.

    A termination bootstraps from nothing, a truncation and the round's end from what was observed.
    """
    dqn = with_settings(PLAIN, return_steps=2, discount=0.5)
    flags = torch.zeros(3, 2, dtype=torch.uint8)
    flags[1, 0] = 1
    changes = {
        "reward": torch.tensor([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]]),
        "observation": torch.arange(6.0).view(3, 2, 1).expand(3, 2, 3).contiguous(),
        "bootstrap_rows": torch.tensor([2, 4, 5]),
        "bootstrap_observation": torch.tensor([[100.0] * 3, [200.0] * 3, [300.0] * 3]),
    }
    for kind, factor in (("terminated", 0.0), ("truncated", 1.0)):
        batch = dqn.post({}, trajectory(**changes, **{kind: flags}))
        assert batch["return"].tolist() == [1 + 0.5 * 2, 10 + 0.5 * 20, 2, 20 + 0.5 * 40, 4, 40]
        assert batch["following"][:, 0].tolist() == [100, 5, 100, 300, 200, 300]
        assert batch["factor"].tolist() == [0.25 * factor, 0.25, 0.5 * factor, 0.25, 0.5, 0.5]


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize(("dueling", "huber"), [(False, False), (True, False), (True, True)])
def test_the_loss_is_that_of_the_papers(double, dueling, huber):
    """Target, loss and priority of single rows, by plain Python over torch's own layers."""
    dqn = with_settings(PLAIN, double=double, dueling=dueling, huber=huber)
    state, rows = apart(dqn), batch_of(20)

    def values(params, observation):
        hidden = torch.relu(torch.nn.functional.linear(observation, params["0.weight"], params["0.bias"]))
        output = torch.nn.functional.linear(hidden, params["1.weight"], params["1.bias"])
        if not dueling:
            return output.tolist()
        first, *advantages = output.tolist()
        return [first + advantage - sum(advantages) / len(advantages) for advantage in advantages]

    network = {name: value.detach() for name, value in state.params["value"].items()}
    target_network = {name.removeprefix("value/"): value for name, value in state.targets.items()}
    terms, errors = [], []
    for row in range(20):
        following = values(target_network, rows["following"][row])
        judged = values(network, rows["following"][row]) if double else following
        target = float(rows["return"][row]) + float(rows["factor"][row]) * following[judged.index(max(judged))]
        error = abs(values(network, rows["observation"][row])[int(rows["action"][row])] - target)
        errors.append(error)
        terms.append(float(rows["weight"][row]) * (error - 0.5 if huber and error > 1 else 0.5 * error**2))
    scalar, outputs = dqn.losses[0].function(state.params, LossInputs(rows, 25, targets=state.targets))
    assert scalar.item() == pytest.approx(sum(terms) / 25, rel=1e-5)
    torch.testing.assert_close(outputs["priority"], torch.tensor(errors), rtol=1e-4, atol=1e-5)


def test_parts_of_a_minibatch_add_up():
    """However it is cut: gradient and priorities are those of the whole, to rounding."""
    state, rows = apart(PLAIN), batch_of(32)
    whole, outputs = minibatch_gradient(PLAIN.losses[0], state, rows, {}, 100)
    parts, found = minibatch_gradient(PLAIN.losses[0], state, rows, {}, 7)
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found["priority"], outputs["priority"])


def test_targets_and_exploration_follow_the_minibatches():
    """The target network is renewed when it is due and not sooner; epsilon falls linearly and then stays."""
    dqn = with_settings(PLAIN, target_minibatches=3, epsilon_minibatches=4, last_epsilon=0.2)
    state, fell = dqn.init(1), []
    state.params["value"].flat.add_(1.0)
    for count in range(1, 7):
        state = dqn.after_minibatch(state)
        fell.append(epsilon(state))
        renewed = torch.equal(state.targets["value/0.weight"], state.params["value"]["0.weight"].detach())
        assert renewed == (count >= 3)
    assert fell == pytest.approx([0.8, 0.6, 0.4, 0.2, 0.2, 0.2])
    assert epsilon(dqn.init(1)) == 1.0


def test_the_learning_rate_is_annealed_linearly_and_then_kept():
    """Adam's first steps are as long as the learning rate: they shrink by so many rounds of minibatches, then stay."""
    settings = {"learning_rate": 0.1, "final_learning_rate": 0.02, "gradient_norm": 1e9}
    dqn, steps = with_settings(PLAIN, anneal_rounds=2, minibatches=2, **settings), []
    state = dqn.init(1)
    gradient = torch.full_like(state.params["value"].flat, 1e3)
    for _ in range(6):
        before = state.params["value"].flat.clone()
        state = dqn.update(state, dqn.losses[0], gradient)
        steps.append(float((before - state.params["value"].flat).mean()))
    assert steps == pytest.approx([0.1, 0.08, 0.06, 0.04, 0.02, 0.02], rel=1e-3)


def test_nothing_is_learned_before_the_window_is_filled():
    """Then so many minibatches a round, of so many rows each."""
    dqn = with_settings(PLAIN, window_rows=100, warm_up_rows=41, minibatches=3, minibatch_rows=7, priority_exponent=0.5)
    assert dqn.window == WindowSpec(100, 0.5)
    window, planned = RoundWindow(dqn.window, 20), []
    for _ in range(4):
        window.begin_round()
        planned.append([draw.rows for draw in dqn.plan(torch.Generator().manual_seed(1), window)])
    assert [len(plan) for plan in planned] == [0, 0, 3, 3]
    assert all(rows.shape == (7,) for rows in planned[2])


def bandit(round_: int) -> Trajectory:
    """Thirty-two episodes of one step: the choice that the observation's first number says pays 1, the other -1."""
    observation, action = random(1, 32, 3, seed=round_), random(1, 32, seed=1000 + round_).gt(0).long()
    ended = torch.ones(1, 32, dtype=torch.uint8)
    reward = torch.where(action == (observation[..., 0] > 0), 1.0, -1.0)
    columns = {"observation": observation, "action": action, "reward": reward, "terminated": ended}
    return Trajectory({**columns, "truncated": 0 * ended}, torch.arange(32), torch.zeros(32, 3))


def learn(dqn: DQN, rounds: int) -> State:
    """As the runtime does it: rounds come, rows are drawn of many, and their priorities go back."""
    state, window, kept = dqn.init(1), RoundWindow(dqn.window, 32), {}
    for round_ in range(rounds):
        batch = dqn.post({}, bandit(round_))
        kept = {name: torch.cat([kept[name], value]) if kept else value for name, value in batch.items()}
        window.begin_round()
        kept = {name: value[-window.rows :] for name, value in kept.items()}
        plan = dqn.plan(torch.Generator().manual_seed(round_), window)
        shares = take_share(plan, range(32), 32)
        for share, rows in gather_minibatches(partial(rows_of, kept), shares, 0):
            gradient, outputs = minibatch_gradient(dqn.losses[0], state, rows, {}, 4096)
            with torch.no_grad():
                state = dqn.after_minibatch(dqn.update(state, dqn.losses[0], gradient))
            window.update(share.rows, outputs["priority"].double())
    return state


@pytest.mark.parametrize("exponent", [0.0, 0.6])
def test_it_learns_the_rewarded_action(exponent):
    """From random choices alone; twice with the same bytes."""
    settings = {"learning_rate": 3e-3, "priority_exponent": exponent, "warm_up_rows": 64, "target_minibatches": 5}
    dqn = DQN(DQNSettings(hidden=(16,), minibatch_rows=32, minibatches=4, window_rows=320, **settings), CHOICES)
    state = learn(dqn, 60)
    observation = random(500, 3, seed=99)
    acted, _ = dqn.act(state.params, None, observation, torch.zeros(500, *dqn.noise.shape))
    assert (acted["action"] == (observation[:, 0] > 0)).float().mean() > 0.9
    assert torch.equal(learn(dqn, 60).params["value"].flat, state.params["value"].flat)


def test_the_plan_draws():
    """Rows with weights, which the loss finds as a column."""
    window = RoundWindow.of_round(40)
    (first, *_) = with_settings(PLAIN, warm_up_rows=1).plan(torch.Generator().manual_seed(1), window)
    assert isinstance(first, Draw)
    assert torch.equal(first.weights, torch.ones(128))

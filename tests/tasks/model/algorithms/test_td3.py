"""TD3 and TD3+BC against independent computations, and that they learn."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from penstock.tasks.model.algorithms.td3 import TD3
from penstock.tasks.model.algorithms.td3_bc import TD3BC
from penstock.tasks.roles.learning.gradients import minibatch_gradient, sum_in_tree
from penstock.tasks.roles.learning.minibatches import gather_minibatches, loss_noise, rows_of, take_share
from penstock.tasks.roles.learning.window import RoundWindow
from penstock.tasks.roles.reducing.reduction import LocalReduction
from penstock.tasks.setup.config.off_policy import TD3Settings
from penstock.tasks.setup.config.offline import TD3BCSettings
from penstock.tasks.specs import EnvironmentSpec, LossInputs, Spec, State, Trajectory

from ....support.algorithms.ppo_cases import VECTORS, random, with_settings

SMALL = TD3(TD3Settings(hidden=(8,), random_steps=0), VECTORS)
CLONING = TD3BC(TD3BCSettings(hidden=(8,), normalize_observation=False), VECTORS)
BOTH = [pytest.param(SMALL, id="td3"), pytest.param(CLONING, id="td3_bc")]
TWINS = ("first/", "second/")


def batch_of(count: int) -> dict[str, torch.Tensor]:
    return {
        "observation": random(count, 3, seed=1),
        "action": random(count, 2, seed=2).tanh(),
        "reward": random(count, seed=3),
        "following": random(count, 3, seed=4),
        "factor": random(count, seed=5).abs(),
    }


def apart(algorithm: TD3 | TD3BC) -> State:
    """A state with other targets than networks, and lively actors."""
    state, other = algorithm.init(1), algorithm.init(2)
    state.params["actor"].flat.add_(0.5 * random(len(state.params["actor"].flat), seed=6))
    targets = other.targets | {"actor/0.bias": random(8, seed=7), "actor/1.weight": random(2, 8, seed=8)}
    return replace(state, targets=targets)


def network(params, prefix: str, inputs: np.ndarray) -> np.ndarray:
    """A perceptron with ReLU in NumPy, in float64."""
    tensors = {name: np.asarray(value.detach(), dtype=np.float64) for name, value in params.items()}
    hidden = np.maximum(inputs @ tensors[f"{prefix}0.weight"].T + tensors[f"{prefix}0.bias"], 0)
    return hidden @ tensors[f"{prefix}1.weight"].T + tensors[f"{prefix}1.bias"]


def judged(params, name: str, observation: np.ndarray, action: np.ndarray) -> np.ndarray:
    return network(params, name, np.concatenate([observation, action], -1))[:, 0]


def numbers(rows: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {name: value.double().numpy() for name, value in rows.items()}


def scalar_of(algorithm, state: State, name: str, rows, count: int, noise=None) -> tuple[float, dict]:
    loss = next(loss for loss in algorithm.losses if loss.name == name)
    scalar, outputs = loss.function(state.params, LossInputs(rows, count, targets=state.targets, noise=noise))
    return scalar.item(), outputs


@pytest.mark.parametrize("algorithm", BOTH)
def test_the_critics_learn_the_smaller_target_of_a_smoothed_action(algorithm):
    """Noise of a deviation of 0.2 within 0.5, on an action within 1: some rows reach either limit."""
    state, rows, noise = apart(algorithm), batch_of(30), 3 * random(30, 2, seed=9)
    found, outputs = scalar_of(algorithm, state, "critic", rows, 40, noise)
    given = numbers(rows)
    jitter = np.clip(0.2 * noise.double().numpy(), -0.5, 0.5)
    action = np.clip(np.tanh(network(state.targets, "actor/", given["following"])) + jitter, -1, 1)
    assert (np.abs(jitter) == 0.5).any()
    assert (np.abs(action) == 1).any()
    following = np.minimum(*(judged(state.targets, name, given["following"], action) for name in TWINS))
    target = given["reward"] + given["factor"] * following
    values = [judged(state.params["critic"], name, given["observation"], given["action"]) for name in TWINS]
    assert found == pytest.approx(sum((0.5 * (value - target) ** 2).sum() for value in values) / 40, rel=1e-5)
    np.testing.assert_allclose(outputs["value"], values[0], rtol=1e-4, atol=1e-5)


def test_the_actor_maximises_the_first_critic():
    """The value is that of its own action, without noise."""
    state, rows = apart(SMALL), batch_of(30)
    observation = numbers(rows)["observation"]
    action = np.tanh(network(state.params["actor"], "", observation))
    expected = -judged(state.params["critic"], "first/", observation, action).sum() / 40
    assert scalar_of(SMALL, state, "actor", rows, 40)[0] == pytest.approx(expected, rel=1e-5)


def test_lambda_is_alpha_over_the_mean_magnitude_of_all_learners():
    """Gradients of two unequal parts of a minibatch add up to the mean over it, by which the step sets lambda."""
    state, rows = apart(CLONING), batch_of(30)
    balance = CLONING.losses[1]
    shares = [slice(0, 11), slice(11, 30)]
    parts = [
        minibatch_gradient(balance, state, {name: column[share] for name, column in rows.items()}, {}, 100, 30)[0]
        for share in shares
    ]
    with torch.no_grad():
        state = CLONING.update(state, balance, sum_in_tree(parts))
    given = numbers(rows)
    action = np.tanh(network(state.params["actor"], "", given["observation"]))
    value = judged(state.params["critic"], "first/", given["observation"], action)
    expected = 2.5 / np.abs(value).mean()
    assert float(state.params["balance"].flat.exp()) == pytest.approx(expected, rel=1e-5)
    found, _ = scalar_of(CLONING, state, "actor", rows, 30)
    cloned = ((action - given["action"]) ** 2).mean()
    assert found == pytest.approx(-expected * value.mean() + cloned, rel=1e-4)


@pytest.mark.parametrize("algorithm", BOTH)
def test_actor_and_targets_wait_for_their_turn(algorithm):
    """Critics take a step in every minibatch, the actor and all targets in the first of each three."""
    algorithm = with_settings(algorithm, policy_delay=3, target_share=0.25)
    state, moved = apart(algorithm), []
    for _ in range(4):
        before = {name: value.clone() for name, value in state.targets.items()}
        flats = {name: state.params[name].flat.clone() for name in ("critic", "actor")}
        with torch.no_grad():
            for loss in (loss for loss in algorithm.losses if loss.group != "balance"):
                state = algorithm.update(state, loss, torch.ones_like(state.params[loss.group].flat))
            state = algorithm.after_minibatch(state)
        moved.append([not torch.equal(state.params[name].flat, flat) for name, flat in flats.items()])
        for group, prefix in (("critic", ""), ("actor", "actor/")):
            for name, value in state.params[group].items():
                share = 0.25 * moved[-1][1]
                expected = (1 - share) * before[f"{prefix}{name}"] + share * value.detach()
                torch.testing.assert_close(state.targets[f"{prefix}{name}"], expected)
    assert moved == [[True, True], [True, False], [True, False], [True, True]]


@pytest.mark.parametrize("algorithm", BOTH)
def test_gradients_that_are_not_due_are_left_out_and_change_nothing(algorithm):
    """The actor's is computed in the first of each three minibatches; the state is as if all were, to the byte."""
    algorithm = with_settings(algorithm, policy_delay=3, target_share=0.25)
    rows, computed, states = batch_of(32), [], []
    reduction, names = LocalReduction(algorithm), [loss.name for loss in algorithm.losses]
    for choose in (reduction.losses_of, lambda losses, _: losses):
        state, left_out = apart(algorithm), []
        for minibatch in range(5):
            losses = choose(algorithm.losses, state)
            left_out.append({*names} - {loss.name for loss in losses})
            for loss in losses:
                places, number = torch.arange(32), names.index(loss.name)
                noise = loss_noise(loss.noise, 1, number, 0, minibatch, places) if loss.noise else None
                gradient, _ = minibatch_gradient(loss, state, rows, {}, 100, None, noise)
                with torch.no_grad():
                    state = algorithm.update(state, loss, gradient)
            with torch.no_grad():
                state = algorithm.after_minibatch(state)
        computed.append(left_out)
        states.append(state)
    assert computed == [[set(), {"actor"}, {"actor"}, set(), {"actor"}], [set()] * 5]
    first, second = (
        [*(group.flat for group in state.params.values()), *state.targets.values(), *state.optimizer["actor"].values()]
        for state in states
    )
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))


@pytest.mark.parametrize("algorithm", BOTH)
def test_parts_of_a_minibatch_add_up(algorithm):
    """However it is cut, with each row's own noise: every gradient is that of the whole, to rounding."""
    state, rows = apart(algorithm), batch_of(32)
    for number, loss in enumerate(algorithm.losses):
        noise = loss_noise(loss.noise, 1, number, 0, 0, torch.arange(32)) if loss.noise else None
        whole, _ = minibatch_gradient(loss, state, rows, {}, 100, None, noise)
        parts, _ = minibatch_gradient(loss, state, rows, {}, 7, None, noise)
        torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-6)
        assert whole.abs().max() > 0


@pytest.mark.parametrize("algorithm", BOTH)
def test_actions_are_the_actors_with_noise_within_the_bounds(algorithm):
    """Here from -2 to 2, noise of a tenth of half of that; zero noise gives the actor's own action."""
    state, observation, noise = apart(algorithm), random(200, 3, seed=3), 4 * random(200, 2, seed=4)
    mean = np.tanh(network(state.params["actor"], "", observation.double().numpy()))
    for given in (noise, 0 * noise):
        rows, carry = algorithm.act(state.params, None, observation, given)
        expected = 2 * np.clip(mean + 0.1 * given.double().numpy(), -1, 1)
        np.testing.assert_allclose(rows["action"].detach(), expected, atol=1e-5)
        assert carry is None
        assert (rows.keys(), rows["action"].dtype) == (algorithm.rows.keys(), torch.float32)


@pytest.mark.parametrize("algorithm", BOTH)
def test_rows_are_what_followed(algorithm):
    """A termination bootstraps from nothing, a round's end from what was observed; actions are from -1 to 1."""
    observation, after = random(3, 2, 3, seed=9), random(3, 3, seed=10)
    ended = torch.tensor([[0, 0], [0, 1], [0, 0]], dtype=torch.uint8)
    columns = {
        "observation": observation,
        "action": torch.linspace(-2, 2, 12).view(3, 2, 2),
        "reward": torch.arange(6.0).view(3, 2),
        "terminated": ended,
        "truncated": 0 * ended,
    }
    batch = algorithm.post({}, Trajectory(columns, torch.tensor([3, 4, 5]), after))
    torch.testing.assert_close(batch["action"], torch.linspace(-1, 1, 12).view(6, 2))
    assert batch["reward"].tolist() == [0, 1, 2, 3, 4, 5]
    assert batch["factor"].tolist() == pytest.approx([0.99, 0.99, 0.99, 0, 0.99, 0.99])
    expected = torch.stack([observation[1, 0], observation[1, 1], observation[2, 0], *after])
    assert torch.equal(batch["following"], expected)


def test_observations_are_normalised_by_all_rows_so_far():
    """After two rounds of unequal size: less their mean, divided by their deviation and 1e-3, as in the paper."""
    cloning = with_settings(CLONING, normalize_observation=True)
    state = cloning.init(1)
    rounds = [5 + 3 * random(20, 3, seed=1), 2 * random(50, 3, seed=2)]
    for observation in rounds:
        with torch.no_grad():
            state = cloning.after_round(state, cloning.stats({"observation": observation}))
    seen = torch.cat(rounds).double()
    expected = (rounds[0] - seen.mean(0)) / (seen.std(0, correction=0) + 1e-3)
    found = cloning._normalizers.normalized(state.params, rounds[0])
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-5)


def test_first_rounds_may_give_moments_alone():
    """Two rounds are not learned from, and set the moments; these stay, whatever later rounds have."""
    cloning = with_settings(CLONING, normalize_observation=True, moment_rounds=2, minibatch_rows=5)
    rounds = [5 + 3 * random(20, 3, seed=1), 2 * random(20, 3, seed=2), 9 * random(20, 3, seed=3)]
    state, learned = cloning.init(1), []
    for round_, observation in enumerate(rounds):
        batch = {**batch_of(20), "observation": observation, "following": observation}
        plan = cloning.plan(torch.Generator().manual_seed(round_), RoundWindow.of_round(20, round_))
        shares = [*take_share(plan, range(20), 20)]
        state = learn_round(cloning, state, gather_minibatches(partial(rows_of, batch), shares, 1000), round_)
        with torch.no_grad():
            state = cloning.after_round(state, cloning.stats(batch))
        learned.append(sum(len(share.rows) for share in shares))
    assert learned == [0, 0, 20]
    seen = torch.cat(rounds[:2]).double()
    expected = (rounds[2] - seen.mean(0)) / (seen.std(0, correction=0) + 1e-3)
    found = cloning._normalizers.normalized(state.params, rounds[2])
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-5)


def test_images_are_convolved_for_actor_and_critics():
    """Rows keep bytes; every convolution gets a gradient, and the critic another one for another action."""
    seen = EnvironmentSpec("images", Spec("uint8", (2, 36, 36)), VECTORS.action, None, None)
    td3 = TD3(TD3Settings(network="nature", features=16, hidden=(8,)), seen)
    state, images = td3.init(1), torch.randint(256, (4, 2, 36, 36), dtype=torch.uint8)
    rows, _ = td3.act(state.params, None, images, torch.zeros(4, 2))
    assert rows["action"].shape == (4, 2)
    batch = {**batch_of(4), **{name: td3._network.prepared(images) for name in ("observation", "following")}}
    assert batch["observation"].dtype == torch.uint8
    critic, actor = td3.losses
    first, _ = minibatch_gradient(critic, state, batch, {}, 100, None, random(4, 2))
    other, _ = minibatch_gradient(critic, state, {**batch, "action": -batch["action"]}, {}, 100, None, random(4, 2))
    assert not torch.equal(first, other)
    to_actor, _ = minibatch_gradient(actor, state, batch, {}, 100)
    for gradient, group in ((first, state.params["critic"]), (to_actor, state.params["actor"])):
        sizes = [leaf.numel() for leaf in group.leaves]
        assert all(part.abs().max() > 0 for part in gradient.split(sizes)), "a layer has no gradient"


def bandit(td3: TD3, state: State, round_: int) -> Trajectory:
    """Episodes of one step, that pay the more the nearer the action is to 0.8 times the first number's sign."""
    observation = random(1, 32, 3, seed=round_)
    rows, _ = td3.act(state.params, None, observation[0], random(32, 2, seed=1000 + round_))
    action = rows["action"].detach()
    reward = -(action - 0.8 * observation[0, :, :1].sign()).square().sum(-1)
    ended = torch.ones(1, 32, dtype=torch.uint8)
    columns = {"observation": observation, "action": action[None], "reward": reward[None], "terminated": ended}
    return Trajectory({**columns, "truncated": 0 * ended}, torch.arange(32), torch.zeros(32, 3))


def learn(td3: TD3, rounds: int) -> State:
    """As the runtime does it: acting with what was learned, from rows of many rounds."""
    state, window, kept = td3.init(1), RoundWindow(td3.window, 32), {}
    for round_ in range(rounds):
        batch = td3.post({}, bandit(td3, state, round_))
        kept = {name: torch.cat([kept[name], value]) if kept else value for name, value in batch.items()}
        window.begin_round()
        shares = take_share(td3.plan(torch.Generator().manual_seed(round_), window), range(32), 32)
        state = learn_round(td3, state, gather_minibatches(partial(rows_of, kept), shares, 1000), round_)
        with torch.no_grad():
            state = td3.after_round(state, td3.stats(batch))
    return state


def learn_round(algorithm: TD3 | TD3BC, state: State, minibatches, round_: int) -> State:
    for number, (share, rows) in enumerate(minibatches):
        for index, loss in enumerate(algorithm.losses):
            noise = loss_noise(loss.noise, 1, index, round_, number, share.places) if loss.noise else None
            gradient, _ = minibatch_gradient(loss, state, rows, {}, 4096, None, noise)
            with torch.no_grad():
                state = algorithm.update(state, loss, gradient)
        with torch.no_grad():
            state = algorithm.after_minibatch(state)
    return state


def test_td3_learns_the_rewarded_action():
    """From its own actions, of which the first rounds' are random; twice with the same bytes."""
    td3 = with_settings(
        SMALL, hidden=(16,), learning_rate=2e-2, random_steps=64, warm_up_rows=64, minibatch_rows=64, minibatches=8
    )
    state = learn(td3, 40)
    observation = random(200, 3, seed=99)
    rows, _ = td3.act(state.params, None, observation, torch.zeros(200, 2))
    error = (rows["action"].detach() - 0.8 * observation[:, :1].sign()).abs()
    assert float(error.median()) < 0.4  # of 0.8 where nothing is learned
    once, again = learn(td3, 4), learn(td3, 4)
    assert all(torch.equal(again.params[name].flat, group.flat) for name, group in once.params.items())


@pytest.mark.parametrize(("alpha", "expected"), [(2.5, 2.0), (1e-3, 0.0)])
def test_td3_bc_improves_on_stored_actions_or_clones_them(alpha, expected):
    """Stored actions are uniform from -2 to 2 and the largest pays most: values lead there, cloning to the mean, 0."""
    cloning = with_settings(CLONING, hidden=(16,), learning_rate=5e-3, minibatch_rows=64, alpha=alpha)
    observation, action = random(1, 512, 3, seed=1), 2 * random(1, 512, 2, seed=2).mul(0.7).erf()
    ended = torch.ones(1, 512, dtype=torch.uint8)
    columns = {"observation": observation, "action": action, "reward": action.sum(-1)}
    columns |= {"terminated": ended, "truncated": 0 * ended}
    batch = cloning.post({}, Trajectory(columns, torch.arange(512), torch.zeros(512, 3)))
    state, window = cloning.init(1), RoundWindow.of_round(512)
    for round_ in range(25):
        shares = take_share(cloning.plan(torch.Generator().manual_seed(round_), window), range(512), 512)
        state = learn_round(cloning, state, gather_minibatches(partial(rows_of, batch), shares, 1000), round_)
    rows, _ = cloning.act(state.params, None, random(200, 3, seed=99), torch.zeros(200, 2))
    assert float((rows["action"].detach() - expected).abs().median()) < 0.4

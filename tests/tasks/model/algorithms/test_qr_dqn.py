"""QR-DQN against independent computations, and that it learns."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from penstock.tasks.model.algorithms.qr_dqn import QRDQN
from penstock.tasks.roles.learning.gradients import minibatch_gradient
from penstock.tasks.roles.learning.minibatches import gather_minibatches, loss_noise, rows_of, take_share
from penstock.tasks.roles.learning.window import RoundWindow
from penstock.tasks.setup.config.off_policy import QRDQNSettings
from penstock.tasks.specs import EnvironmentSpec, LossInputs, Spec, State, Trajectory

from ....support.algorithms.ppo_cases import CHOICES, random, with_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

PLAIN = QRDQN(QRDQNSettings(hidden=(8,), quantiles=5, dueling=False), CHOICES)
NOISY = {"noisy_scale": 0.5}


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """A learner's thread count: with more, small products take longer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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


def apart(algorithm: QRDQN) -> State:
    """A state whose target network is another than its network; errors are small and large."""
    state, other = algorithm.init(1), algorithm.init(2)
    state.params["value"].flat.mul_(2.0)
    return replace(state, targets=other.targets)


def drawn(algorithm: QRDQN, count: int) -> torch.Tensor | None:
    spec = algorithm.losses[0].noise
    return loss_noise(spec, 3, 0, 0, 0, torch.arange(count)) if spec else None


def squashed(x: np.ndarray) -> np.ndarray:
    return np.sign(x) * np.sqrt(np.abs(x))


def outputs(params: dict[str, np.ndarray], observation: np.ndarray, noise: np.ndarray | None) -> np.ndarray:
    """One row's outputs in NumPy, with the noisy weights themselves: mean + scale * f(e_out) f(e_in)."""
    hidden, start = observation, 0
    for layer in range(2):
        weight, bias = params[f"{layer}.weight"], params[f"{layer}.bias"]
        if noise is not None:
            fan_out, fan_in = weight.shape
            on_inputs = squashed(noise[start : start + fan_in])
            on_outputs = squashed(noise[start + fan_in : start + fan_in + fan_out])
            start += fan_in + fan_out
            weight = weight + params[f"{layer}.weight_noise"] * np.outer(on_outputs, on_inputs)
            bias = bias + params[f"{layer}.bias_noise"] * on_outputs
        hidden = weight @ hidden + bias
        hidden = np.maximum(hidden, 0) if layer == 0 else hidden
    return hidden


def quantiles_of(algorithm: QRDQN, params, observation: np.ndarray, noise: np.ndarray | None) -> np.ndarray:
    given = {name: np.asarray(value.detach(), dtype=np.float64) for name, value in params.items()}
    found = outputs(given, observation, noise).reshape(-1, algorithm.settings.quantiles)
    return found[:1] + found[1:] - found[1:].mean(0) if algorithm.settings.dueling else found


def huber(error: float, limit: float) -> float:
    return 0.5 * error**2 if abs(error) <= limit else limit * (abs(error) - 0.5 * limit)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize(
    "changes",
    [{}, {"dueling": True, "huber_limit": 0.3}, {"dueling": True, **NOISY}],
    ids=["plain", "dueling", "noisy"],
)
def test_the_loss_is_that_of_the_papers(double, changes):
    """Target, loss, priority and value of single rows, by plain sums over pairs of quantiles in float64."""
    algorithm = with_settings(PLAIN, double=double, **changes)
    state, rows, noise = apart(algorithm), batch_of(20), drawn(algorithm, 20)
    target_network = {name.removeprefix("value/"): value for name, value in state.targets.items()}
    q, limit = algorithm.settings.quantiles, algorithm.settings.huber_limit
    losses, values, beyond = [], [], 0
    for row in range(20):
        given = {name: column[row].double().numpy() for name, column in rows.items()}
        of_row = [None] * 3 if noise is None else [*noise[row].double().numpy(), None]
        following = quantiles_of(algorithm, target_network, given["following"], of_row[1])
        judged = following
        if double:
            judged = quantiles_of(algorithm, state.params["value"], given["following"], of_row[2])
        target = given["return"] + given["factor"] * following[judged.mean(-1).argmax()]
        chosen = quantiles_of(algorithm, state.params["value"], given["observation"], of_row[0])[int(given["action"])]
        loss = 0.0
        for i, value in enumerate(chosen):
            middle = (2 * i + 1) / (2 * q)
            for aim in target:
                error = aim - value
                beyond += abs(error) > limit
                loss += abs(middle - (error < 0)) * huber(error, limit) / q
        losses.append(loss)
        values.append(chosen.mean())
    scalar, found = algorithm.losses[0].function(state.params, LossInputs(rows, 25, targets=state.targets, noise=noise))
    assert 0 < beyond < 20 * q * q
    assert scalar.item() == pytest.approx((np.array(losses) * rows["weight"].numpy()).sum() / 25, rel=1e-4)
    np.testing.assert_allclose(found["priority"], losses, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found["value"], values, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("changes", [{}, {"dueling": True}, NOISY], ids=["plain", "dueling", "noisy"])
def test_the_gradient_is_that_of_the_loss(changes):
    """By autograd in float64 through the formula, all pairs at once."""
    algorithm = with_settings(PLAIN, **changes)
    state, rows, noise = apart(algorithm), batch_of(30), drawn(algorithm, 30)
    found, _ = minibatch_gradient(algorithm.losses[0], state, rows, {}, 100, None, noise)
    exact = {name: value.detach().double().requires_grad_() for name, value in state.params["value"].items()}
    target = {name.removeprefix("value/"): value.double() for name, value in state.targets.items()}
    given = {name: column.double() for name, column in rows.items()}
    of_pass = [None] * 3 if noise is None else list(noise.double().unbind(1))
    with torch.no_grad():
        following = algorithm._quantiles(target, given["following"], of_pass[1])
        judged = algorithm._quantiles(exact, given["following"], of_pass[2])
        aims = following[torch.arange(30), judged.mean(-1).argmax(-1)]
        aims = given["return"][:, None] + given["factor"][:, None] * aims
    chosen = algorithm._quantiles(exact, given["observation"], of_pass[0])[torch.arange(30), rows["action"]]
    error = aims[:, None, :] - chosen[:, :, None]
    weight = ((torch.arange(5) + 0.5)[None, :, None] / 5 - (error < 0).double()).abs()
    loss = torch.nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none") * weight
    ((loss.mean(2).sum(1) * given["weight"]).sum() / 30).backward()
    expected = torch.cat([value.grad.reshape(-1) for value in exact.values()])
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-5)


def test_quantiles_of_a_sample_are_learned():
    """A loss against one of many returns at a time has its minimum at their quantiles (kappa near 0)."""
    algorithm = QRDQN(QRDQNSettings(hidden=(), quantiles=4, dueling=False, huber_limit=1e-3), CHOICES)
    state, returns = algorithm.init(1), torch.linspace(0, 1, 801)
    state.params["value"].flat.zero_()
    rows = {name: column[:1].expand(801, *column.shape[1:]).clone() for name, column in batch_of(1).items()}
    rows |= {"return": returns, "factor": torch.zeros(801), "weight": torch.ones(801)}
    rows["observation"] = torch.zeros(801, 3)
    for step in range(1500):
        gradient, _ = minibatch_gradient(algorithm.losses[0], state, rows, {}, 1000)
        with torch.no_grad():
            state.params["value"].flat.sub_(gradient, alpha=10.0 if step < 1000 else 1.0)
    found = state.params["value"]["0.bias"].detach().view(2, 4)[int(rows["action"][0])]
    torch.testing.assert_close(found, torch.tensor([0.125, 0.375, 0.625, 0.875]), atol=0.01, rtol=0)


@pytest.mark.parametrize("changes", [{}, NOISY], ids=["plain", "noisy"])
def test_parts_of_a_minibatch_add_up(changes):
    """However it is cut, with each row's own noise: gradient and priorities are those of the whole, to rounding."""
    algorithm = with_settings(PLAIN, **changes)
    state, rows, noise = apart(algorithm), batch_of(32), drawn(algorithm, 32)
    loss = algorithm.losses[0]
    whole, found = minibatch_gradient(loss, state, rows, {}, 100, None, noise)
    parts, of_parts = minibatch_gradient(loss, state, rows, {}, 7, None, noise)
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(of_parts["priority"], found["priority"])


@pytest.mark.parametrize("changes", [{}, {"dueling": True}, NOISY], ids=["plain", "dueling", "noisy"])
def test_no_noise_is_greedy(changes):
    """Evaluation follows the largest mean of quantiles, of the weights without noise."""
    algorithm = with_settings(PLAIN, **changes)
    state, observation = algorithm.init(1), random(50, 3)
    acted, carry = algorithm.act(state.params, None, observation, torch.zeros(50, *algorithm.noise.shape))
    expected = [
        quantiles_of(algorithm, state.params["value"], row, None).mean(-1).argmax()
        for row in observation.double().numpy()
    ]
    assert acted["action"].tolist() == expected
    assert set(expected) == {0, 1}
    assert (carry, acted["action"].dtype, acted.keys()) == (None, torch.int64, algorithm.rows.keys())


def test_noisy_weights_explore_and_epsilon_is_gone():
    """Choices differ by their noise alone, and a snapshot has no epsilon."""
    algorithm = with_settings(PLAIN, **NOISY)
    state = algorithm.init(1)
    assert state.params.keys() == {"value"} == set(algorithm.actor_groups)
    noise = loss_noise(algorithm.noise, 1, 0, 0, 0, torch.arange(500))
    acted, _ = algorithm.act(state.params, None, random(1, 3).expand(500, 3), noise)
    assert 0 < int(acted["action"].sum()) < 500
    algorithm.after_minibatch(state)
    for name, value in state.params["value"].items():
        if name.endswith("_noise"):
            assert value.unique().tolist() == pytest.approx([0.5 / (3 if name[0] == "0" else 8) ** 0.5])


@pytest.mark.parametrize("changes", [{}, NOISY], ids=["epsilon", "noisy"])
def test_targets_and_epsilon_follow_the_minibatches(changes):
    """The target network, with its scales of noise, is renewed when it is due; epsilon falls linearly and stays."""
    algorithm = with_settings(PLAIN, target_minibatches=3, epsilon_minibatches=4, last_epsilon=0.2, **changes)
    state, fell = algorithm.init(1), []
    state.params["value"].flat.add_(1.0)
    for count in range(1, 7):
        state = algorithm.after_minibatch(state)
        renewed = [
            torch.equal(state.targets[f"value/{name}"], value.detach()) for name, value in state.params["value"].items()
        ]
        assert set(renewed) == {count >= 3}
        if not changes:
            fell.append(float(state.params["exploration"].flat))
    assert fell == ([] if changes else pytest.approx([0.8, 0.6, 0.4, 0.2, 0.2, 0.2]))


def test_images_are_convolved():
    """With noisy layers behind the convolutions; rows keep bytes, and every layer gets a gradient."""
    seen = EnvironmentSpec("images", Spec("uint8", (2, 36, 36)), CHOICES.action, None, None)
    algorithm = QRDQN(QRDQNSettings(network="nature", features=16, hidden=(8,), quantiles=3, **NOISY), seen)
    state, images = algorithm.init(1), torch.randint(256, (4, 2, 36, 36), dtype=torch.uint8)
    noise = loss_noise(algorithm.noise, 1, 0, 0, 0, torch.arange(4))
    assert algorithm.act(state.params, None, images, noise)[0]["action"].shape == (4,)
    prepared = algorithm._network.prepared(images)
    batch = {**batch_of(4), "observation": prepared, "following": prepared}
    gradient, _ = minibatch_gradient(algorithm.losses[0], state, batch, {}, 100, None, drawn(algorithm, 4))
    sizes = [leaf.numel() for leaf in state.params["value"].leaves]
    assert all(part.abs().max() > 0 for part in gradient.split(sizes)), "a layer has no gradient"


def bandit(round_: int) -> Trajectory:
    """Thirty-two episodes of one step: the choice that the observation's first number says pays 1, the other -1."""
    observation, action = random(1, 32, 3, seed=round_), random(1, 32, seed=1000 + round_).gt(0).long()
    ended = torch.ones(1, 32, dtype=torch.uint8)
    reward = torch.where(action == (observation[..., 0] > 0), 1.0, -1.0)
    columns = {"observation": observation, "action": action, "reward": reward, "terminated": ended}
    return Trajectory({**columns, "truncated": 0 * ended}, torch.arange(32), torch.zeros(32, 3))


def learn(algorithm: QRDQN, rounds: int) -> State:
    """As the runtime does it: rounds come, rows are drawn of many, and their priorities go back."""
    state, window, kept = algorithm.init(1), RoundWindow(algorithm.window, 32), {}
    (loss,) = algorithm.losses
    for round_ in range(rounds):
        batch = algorithm.post({}, bandit(round_))
        kept = {name: torch.cat([kept[name], value]) if kept else value for name, value in batch.items()}
        window.begin_round()
        kept = {name: value[-window.rows :] for name, value in kept.items()}
        shares = take_share(algorithm.plan(torch.Generator().manual_seed(round_), window), range(32), 32)
        for number, (share, rows) in enumerate(gather_minibatches(partial(rows_of, kept), shares, 0)):
            noise = loss_noise(loss.noise, 1, 0, round_, number, share.places) if loss.noise else None
            gradient, found = minibatch_gradient(loss, state, rows, {}, 4096, None, noise)
            with torch.no_grad():
                state = algorithm.after_minibatch(algorithm.update(state, loss, gradient))
            window.update(share.rows, found["priority"].double())
    return state


@pytest.mark.parametrize(
    "changes", [{}, {"priority_exponent": 0.6, "correction_minibatches": 100}, NOISY], ids=["uniform", "per", "noisy"]
)
@pytest.mark.usefixtures("_one_thread")
def test_it_learns_the_rewarded_action(changes):
    """From random choices alone; twice with the same bytes."""
    settings = {"learning_rate": 3e-3, "warm_up_rows": 64, "target_minibatches": 5, "quantiles": 8, **changes}
    algorithm = QRDQN(
        QRDQNSettings(hidden=(16,), minibatch_rows=32, minibatches=4, window_rows=320, **settings), CHOICES
    )
    state = learn(algorithm, 60)
    observation = random(500, 3, seed=99)
    acted, _ = algorithm.act(state.params, None, observation, torch.zeros(500, *algorithm.noise.shape))
    assert (acted["action"] == (observation[:, 0] > 0)).float().mean() > 0.9
    assert torch.equal(learn(algorithm, 60).params["value"].flat, state.params["value"].flat)

"""Behaviour cloning: its losses by hand, the contract's rules, and that it plays what it was shown."""

import math

import numpy as np
import pytest
import torch

from penstock import native
from penstock.tasks.model.algorithms.behaviour_cloning import BehaviourCloning
from penstock.tasks.roles.learning.gradients import minibatch_gradient
from penstock.tasks.roles.learning.minibatches import rows_of
from penstock.tasks.roles.learning.window import RoundWindow
from penstock.tasks.setup.config.offline import BehaviourCloningSettings
from penstock.tasks.specs import ActionLeaf, ActionSpec, EnvironmentSpec, LossInputs, Spec, Trajectory

CHOICES = EnvironmentSpec("CartPole-v1", Spec("float32", (4,)), ActionSpec("discrete", n=2), 500, 475.0)
VECTORS = EnvironmentSpec(
    "Reach-v0", Spec("float64", (2, 3)), ActionSpec("box", shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0)), 100, None
)


def trajectory(environment, steps=6, envs=3, seed=0):
    generator = np.random.default_rng(seed)
    observation = generator.normal(size=(steps, envs, *environment.observation.shape))
    if environment is CHOICES:
        action = generator.integers(0, 2, (steps, envs))
    else:
        action = generator.normal(size=(steps, envs, 2)).astype(np.float32)
    return Trajectory(
        columns={
            "observation": torch.from_numpy(observation.astype(environment.observation.dtype)),
            "action": torch.from_numpy(action),
        },
        bootstrap_rows=torch.arange(3),
        bootstrap_observation=torch.zeros((3, *environment.observation.shape)),
    )


@pytest.mark.parametrize("environment", [CHOICES, VECTORS], ids=["choices", "vectors"])
def test_the_same_seed_gives_the_same_parameters_and_others_other(environment):
    """The seed is the only source of randomness."""
    algorithm = BehaviourCloning(BehaviourCloningSettings(), environment)
    first, again, other = (algorithm.init(seed).params["policy"].flat for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("environment", [CHOICES, VECTORS], ids=["choices", "vectors"])
def test_rows_noise_and_actions_are_as_declared_and_zero_noise_is_greedy(environment):
    """`act` returns the columns that a shard stores; without noise the action is the likeliest."""
    algorithm = BehaviourCloning(BehaviourCloningSettings(), environment)
    params = algorithm.init(1).params
    observation = trajectory(environment).columns["observation"][0]
    noise = torch.zeros((3, *algorithm.noise.shape))
    rows, carry = algorithm.act(params, None, observation, noise)
    assert carry is None
    assert set(rows) == set(algorithm.rows)
    spec = algorithm.rows["action"]
    assert (str(rows["action"].dtype).removeprefix("torch."), tuple(rows["action"].shape)) == (
        spec.dtype,
        (3, *spec.shape),
    )
    output, _ = algorithm._network.step(params["policy"], None, observation.flatten(1).float())
    expected = output.argmax(-1) if environment is CHOICES else output
    assert torch.equal(rows["action"], expected)


def test_the_loss_of_choices_is_the_cross_entropy():
    """By hand: -log softmax of the stored action, and how often it is the likeliest."""
    algorithm = BehaviourCloning(BehaviourCloningSettings(hidden=(5,)), CHOICES)
    state = algorithm.init(2)
    batch = algorithm.post(state.params, trajectory(CHOICES))
    scalar, outputs = algorithm.losses[0].function(state.params, LossInputs(batch, 18))
    logits = algorithm._network.step(state.params["policy"], None, batch["observation"])[0].detach().numpy()
    likelihood = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    action = batch["action"].numpy()
    expected = -np.log(likelihood[np.arange(18), action])
    np.testing.assert_allclose(outputs["negative_log_likelihood"], expected, rtol=1e-5)
    np.testing.assert_array_equal(outputs["agreement"], logits.argmax(-1) == action)
    assert float(scalar.detach()) == pytest.approx(expected.sum() / 18, rel=1e-5)


def test_the_loss_of_vectors_is_the_normal_density():
    """By hand, with a deviation of 1 at the start; its floor keeps the likelihood finite."""
    algorithm = BehaviourCloning(BehaviourCloningSettings(hidden=(5,)), VECTORS)
    state = algorithm.init(2)
    batch = algorithm.post(state.params, trajectory(VECTORS))
    _, outputs = algorithm.losses[0].function(state.params, LossInputs(batch, 18))
    mean = algorithm._network.step(state.params["policy"], None, batch["observation"])[0].detach().numpy()
    error = batch["action"].numpy() - mean
    expected = (0.5 * error**2 + 0.5 * math.log(2 * math.pi)).sum(-1)
    np.testing.assert_allclose(outputs["negative_log_likelihood"], expected, rtol=1e-5)
    with torch.no_grad():
        state.params["policy"]["log_std"].fill_(-100.0)
    scalar, _ = algorithm.losses[0].function(state.params, LossInputs(batch, 18))
    assert torch.isfinite(scalar)


@pytest.mark.parametrize("environment", [CHOICES, VECTORS], ids=["choices", "vectors"])
def test_parts_of_a_minibatch_add_up(environment):
    """The gradient does not depend on the blocks it is taken in, up to rounding."""
    algorithm = BehaviourCloning(BehaviourCloningSettings(), environment)
    state = algorithm.init(5)
    batch = algorithm.post(state.params, trajectory(environment))
    whole, _ = minibatch_gradient(algorithm.losses[0], state, batch, {}, 100)
    parts, outputs = minibatch_gradient(algorithm.losses[0], state, batch, {}, 4)
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-6)
    assert len(outputs["negative_log_likelihood"]) == 18


def test_the_plan_takes_every_row_once_an_epoch():
    """In minibatches that are nearly equal and no larger than asked for."""
    algorithm = BehaviourCloning(BehaviourCloningSettings(minibatch_rows=4, epochs=2), CHOICES)
    planned = list(algorithm.plan(torch.Generator().manual_seed(1), RoundWindow.of_round(18)))
    assert [len(part) for part in planned] == [4, 4, 4, 3, 3] * 2
    for epoch in (planned[:5], planned[5:]):
        assert sorted(torch.cat(epoch).tolist()) == list(range(18))


def expert(observation):
    """Balances a pole for long: pushes to where it falls."""
    return (
        observation[:, 2] + 0.4 * observation[:, 3] + 0.02 * observation[:, 0] + 0.1 * observation[:, 1] > 0
    ).astype(np.int64)


def mean_return(act, envs):
    pool = native.make("CartPole-v1", envs)
    pool.reset_ids(np.arange(1000, 1000 + envs, dtype=np.uint64))
    observation, returns, running, seen = pool.observation, np.zeros(envs), np.ones(envs, dtype=bool), []
    while running.any():
        action = act(observation)
        seen.append((observation.copy(), action.copy()))
        observation, reward, terminated, truncated, _ = pool.step(action)
        returns += np.where(running, reward, 0.0)
        running &= ~(terminated | truncated).astype(bool)
    pool.close()
    return returns.mean(), seen


def test_it_imitates_the_stored_policy():
    """Cloned from an expert that balances for at least 450 steps on average, it balances for 400 and more."""
    torch.set_num_threads(1)
    shown, seen = mean_return(expert, 32)
    assert shown >= 450
    algorithm = BehaviourCloning(BehaviourCloningSettings(hidden=(32, 32), learning_rate=3e-3, epochs=12), CHOICES)
    state = algorithm.init(0)
    batch = {
        "observation": torch.from_numpy(np.concatenate([observation for observation, _ in seen])),
        "action": torch.from_numpy(np.concatenate([action for _, action in seen])),
    }
    for index in algorithm.plan(torch.Generator().manual_seed(0), RoundWindow.of_round(len(batch["action"]))):
        rows = rows_of(batch, index)
        gradient, _ = minibatch_gradient(algorithm.losses[0], state, rows, {}, 4096)
        with torch.no_grad():
            state = algorithm.update(state, algorithm.losses[0], gradient)
    noise = torch.zeros((50, 2))
    with torch.inference_mode():
        cloned, _ = mean_return(
            lambda observation: algorithm.act(state.params, None, torch.from_numpy(observation), noise)[0][
                "action"
            ].numpy(),
            50,
        )
    assert cloned >= 400


def test_parts_of_actions_that_a_mask_leaves_out_are_not_imitated():
    """A number that is not taken is stored as 0; its mean and deviation have no gradient, nor have other choices."""
    action = ActionSpec("structured", shape=(2,), leaves=(ActionLeaf("turn", (3,)), ActionLeaf("push", (0,))))
    environment = EnvironmentSpec("Masked-v0", Spec("float32", (4,)), action, None, None)
    algorithm = BehaviourCloning(BehaviourCloningSettings(hidden=(8,)), environment)
    state = algorithm.init(3)
    rows = {
        "observation": torch.randn(40, 4, generator=torch.Generator().manual_seed(1)),
        "action": torch.tensor([[1.0, 0.0]]).expand(40, 2).contiguous(),
        "allowed": torch.tensor([[False, True, False, False]]).expand(40, 4).contiguous(),
    }
    gradient, outputs = minibatch_gradient(algorithm.losses[0], state, rows, {}, 4096)
    assert not gradient.any()
    assert (outputs["agreement"] == 1.0).all()
    assert (outputs["square_error"] == 0.0).all()
    taken = rows | {"allowed": torch.ones(40, 4, dtype=torch.bool)}
    assert minibatch_gradient(algorithm.losses[0], state, taken, {}, 4096)[0].any()

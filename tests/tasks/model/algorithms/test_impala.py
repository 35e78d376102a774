"""IMPALA against numbers worked out by hand and torch's own distributions, and on CartPole with older parameters."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Normal

from penstock.tasks.model.algorithms.contract import Algorithm
from penstock.tasks.model.algorithms.impala import IMPALA
from penstock.tasks.model.algorithms.registry import make_algorithm
from penstock.tasks.roles.acting.tile import RoundBuffers, TileActor
from penstock.tasks.roles.learning.window import RoundWindow
from penstock.tasks.runtime.run_context import RunContext
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.config.on_policy import IMPALASettings
from penstock.tasks.specs import Batch, EnvironmentSpec, LossInputs, State, Trajectory

from ....support.algorithms.ppo_cases import CHOICES, ENVIRONMENTS, VECTORS, random, trajectory
from ...conftest import MakeContext


def constant(impala: IMPALA, *outputs: float) -> State:
    """A state whose last layer gives these numbers (the policy's, then the value), whatever is observed."""
    state = impala.init(1)
    with torch.no_grad():
        network = state.params["network"]
        network.flat.zero_()
        network[f"{len(impala.settings.hidden)}.bias"].copy_(torch.tensor(outputs))
    return state


def first_number(impala: IMPALA) -> State:
    """A state with a uniform policy, whose value of an observation is its first number; no hidden layers."""
    state = constant(impala, 0.0, 0.0, 0.0)
    with torch.no_grad():
        state.params["network"]["0.weight"][2, 0] = 1.0
    return state


def rows_of(impala: IMPALA, state: State, count: int) -> dict[str, Tensor]:
    """Rows as acting gives them, with random advantages and targets."""
    observation = random(count, 3, seed=3)
    with torch.no_grad():
        acted, _ = impala.act(state.params, None, observation, random(count, *impala.noise.shape, seed=4))
    return {
        "observation": observation,
        **acted,
        "advantage": random(count, seed=5),
        "value_target": random(count, seed=6),
    }


def loss_of(
    impala: IMPALA, state: State, rows: dict[str, Tensor], count: int | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    (loss,) = impala.losses
    return loss.function(state.params, LossInputs(rows, count or len(rows["observation"])))


def state_bytes(state: State) -> list[bytes]:
    tensors = [state.params["network"].flat, *state.optimizer["network"].values()]
    return [tensor.detach().numpy().tobytes() for tensor in tensors]


# Acting


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_rows_and_noise_are_as_declared(environment: EnvironmentSpec):
    """The rows that `act` returns fit the columns that a shard stores, without a conversion."""
    impala = IMPALA(IMPALASettings(), environment)
    acted, carry = impala.act(impala.init(1).params, None, random(5, 3), random(5, *impala.noise.shape))
    assert carry is None
    assert acted.keys() == impala.rows.keys()
    for name, spec in impala.rows.items():
        assert (str(acted[name].dtype), tuple(acted[name].shape)) == (f"torch.{spec.dtype}", (5, *spec.shape))


def test_no_noise_is_greedy():
    """Evaluation gives zero noise and gets the most probable choice, or the mean."""
    for outputs, best in (((0.1, 0.2, 9.0), 1), ((0.2, 0.1, 9.0), 0)):
        impala = IMPALA(IMPALASettings(), CHOICES)
        acted, _ = impala.act(constant(impala, *outputs).params, None, random(8, 3), torch.zeros(8, 2))
        assert acted["action"].tolist() == [best] * 8
    impala = IMPALA(IMPALASettings(), VECTORS)
    acted, _ = impala.act(constant(impala, 0.25, -0.5, 9.0).params, None, random(8, 3), torch.zeros(8, 2))
    assert acted["action"].tolist() == [[0.25, -0.5]] * 8


def test_log_probabilities_are_those_of_torchs_distributions():
    """Acting and learning agree with them, for choices and vectors; so does the entropy."""
    impala = IMPALA(IMPALASettings(), CHOICES)
    state = constant(impala, 0.3, -1.2, 5.0)
    acted, _ = impala.act(state.params, None, torch.zeros(50, 3), 3 * random(50, 2))
    assert set(acted["action"].tolist()) == {0, 1}
    choice = Categorical(logits=torch.tensor([0.3, -1.2]))
    torch.testing.assert_close(acted["log_probability"], choice.log_prob(acted["action"]))
    impala = IMPALA(IMPALASettings(initial_log_std=-0.7), VECTORS)
    state = impala.init(1)
    rows = rows_of(impala, state, 9)
    mean, _ = impala.act(state.params, None, rows["observation"], torch.zeros(9, 2))
    normal = Normal(mean["action"].detach(), math.exp(-0.7))
    torch.testing.assert_close(rows["log_probability"], normal.log_prob(rows["action"]).sum(-1))
    _, outputs = loss_of(impala, state, rows)
    torch.testing.assert_close(outputs["entropy"], normal.entropy().sum(-1))


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_acting_is_row_wise(environment: EnvironmentSpec):
    """A row's action depends on no other row."""
    impala = IMPALA(IMPALASettings(), environment)
    params, observation, noise = impala.init(1).params, random(8, 3), random(8, *impala.noise.shape, seed=1)
    whole, _ = impala.act(params, None, observation, noise)
    changed = observation.clone()
    changed[0] += 100
    other, _ = impala.act(params, None, changed, noise)
    assert all(torch.equal(other[name][1:], column[1:]) for name, column in whole.items())


# After the round

HANDMADE = [
    # Discount 0.5, rewards 1, values 2, 4, 6, then 8; ratios 2, 0.5, 1. Worked out in test_vtrace.py.
    pytest.param([0, 0, 0], [0, 0, 0], None, [2.875, 3.75, 5.0], [0.875, -0.5, -1.0], id="round ends"),
    pytest.param([0, 1, 0], [0, 0, 0], 100.0, [2.25, 2.5, 5.0], [0.25, -3.0, -1.0], id="terminated"),
    pytest.param([0, 0, 0], [0, 1, 0], 10.0, [3.5, 5.0, 5.0], [1.5, 2.0, -1.0], id="truncated"),
]


def round_of_two(terminated: list[int], truncated: list[int], final: float | None, ratios: list[float]) -> Trajectory:
    """The first environment ends as given and was acted with other probabilities than 1/2; the second with these."""
    behaviour = torch.tensor([[math.log(0.5 / ratio), math.log(0.5)] for ratio in ratios])
    changes: dict[str, Tensor] = {
        "terminated": torch.tensor([terminated, [0, 0, 0]], dtype=torch.uint8).T,
        "truncated": torch.tensor([truncated, [0, 0, 0]], dtype=torch.uint8).T,
        "log_probability": behaviour,
    }
    if final is not None:
        following = torch.zeros(3, 3)
        following[:, 0] = torch.tensor([final, 8.0, 8.0])
        changes |= {"bootstrap_rows": torch.tensor([2, 4, 5]), "bootstrap_observation": following}
    return trajectory(**changes)


@pytest.mark.parametrize(("terminated", "truncated", "final", "targets", "advantages"), HANDMADE)
def test_post_corrects_for_the_acting_policy(
    terminated: list[int], truncated: list[int], final: float | None, targets: list[float], advantages: list[float]
):
    """V-trace with the ratio of today's probability to the stored one, each environment alone."""
    impala = IMPALA(IMPALASettings(hidden=(), discount=0.5), CHOICES)
    with torch.no_grad():
        batch = impala.post(first_number(impala).params, round_of_two(terminated, truncated, final, [2.0, 0.5, 1.0]))
    assert batch["value_target"].view(3, 2)[:, 0].tolist() == pytest.approx(targets, rel=1e-6)
    assert batch["advantage"].view(3, 2)[:, 0].tolist() == pytest.approx(advantages, rel=1e-6)
    # Acted by today's policy: 8 is discounted to 5, 3.5 and 2.75 with a reward of 1 a step.
    assert batch["value_target"].view(3, 2)[:, 1].tolist() == pytest.approx([2.75, 3.5, 5.0], rel=1e-6)


@pytest.mark.parametrize(
    ("change", "first_target"),
    [
        # delta_1 is 0 and delta_2 is -1. delta_0 is its rho; what comes back of delta_2 is 0.25 * c_0 * c_1.
        ({}, 2 + 1 - 0.25 * 1 * 0.5),
        ({"rho_limit": 2.0}, 2 + 2 - 0.25 * 1 * 0.5),
        ({"c_limit": 2.0}, 2 + 1 - 0.25 * 2 * 0.5),
        ({"trace_decay": 0.5}, 2 + 1 - 0.25 * 0.5 * 0.25),
    ],
)
def test_each_limit_reaches_v_trace(change: dict[str, float], first_target: float):
    """Rho-bar, c-bar and lambda each change the target as equation 1 says."""
    impala = IMPALA(IMPALASettings(hidden=(), discount=0.5, **change), CHOICES)  # type: ignore[arg-type]
    with torch.no_grad():
        batch = impala.post(first_number(impala).params, round_of_two([0] * 3, [0] * 3, None, [2.0, 0.5, 1.0]))
    assert batch["value_target"][0].item() == pytest.approx(first_target, rel=1e-6)


def test_post_keeps_the_order_of_rows():
    """Row t * B + b of the batch is step t of environment b, in every column; rewards alone are scaled."""
    impala = IMPALA(IMPALASettings(hidden=(), discount=0.0, reward_scale=0.25), CHOICES)
    columns = {
        "action": torch.tensor([[0, 1], [1, 0], [1, 1]]),
        "observation": random(3, 2, 3),
        "reward": torch.arange(6.0).view(3, 2),
        "log_probability": torch.full((3, 2), math.log(0.5)),
    }
    with torch.no_grad():
        batch = impala.post(constant(impala, 0.0, 0.0, 0.0).params, trajectory(**columns))
    assert batch["action"].tolist() == [0, 1, 1, 0, 1, 1]
    assert torch.equal(batch["observation"], columns["observation"].reshape(6, 3))
    torch.testing.assert_close(batch["value_target"], 0.25 * torch.arange(6.0))
    assert {len(column) for column in batch.values()} == {6}


# Loss, plan and update


def test_the_loss_is_policy_gradient_value_error_and_entropy():
    """Its gradient by the logits is -rho * advantage * (one-hot - probabilities), by the value its weighted error."""
    impala = IMPALA(IMPALASettings(entropy_weight=0.0, value_weight=0.25), CHOICES)
    state = constant(impala, 0.0, math.log(3.0), 2.0)
    rows = {
        "observation": torch.zeros(1, 3),
        "action": torch.tensor([1]),
        "log_probability": torch.tensor([math.log(0.5)]),
        "advantage": torch.tensor([2.0]),
        "value_target": torch.tensor([5.0]),
    }
    scalar, outputs = loss_of(impala, state, rows, count=10)
    assert scalar.item() == pytest.approx((0.25 * 4.5 - 2.0 * math.log(0.75)) / 10, rel=1e-6)
    assert outputs["value_loss"].item() == pytest.approx(4.5)
    assert outputs["kl"].item() == pytest.approx(1.5 - 1 - math.log(1.5), rel=1e-5)
    (gradient,) = torch.autograd.grad(scalar, [state.params["network"]["2.bias"]])
    assert gradient.tolist() == pytest.approx([0.05, -0.05, 0.25 * -3 / 10], rel=1e-5)
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    for limit, rho in ((2.0, 1.5), (0.5, 0.5)):
        impala = IMPALA(IMPALASettings(entropy_weight=0.0, value_weight=0.25, rho_limit=limit), CHOICES)
        (found,) = torch.autograd.grad(loss_of(impala, state, rows, 10)[0], [state.params["network"]["2.bias"]])
        assert found.tolist() == pytest.approx([0.05 * rho, -0.05 * rho, 0.25 * -3 / 10], rel=1e-5)
    with_bonus, _ = loss_of(
        IMPALA(IMPALASettings(entropy_weight=0.1, value_weight=0.25), CHOICES), state, rows, count=10
    )
    assert (scalar - with_bonus).item() == pytest.approx(0.1 * entropy / 10, rel=1e-4)


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_parts_of_a_minibatch_add_up(environment: EnvironmentSpec):
    """Losses of the parts, each given the whole minibatch's count, sum to the loss of the whole."""
    impala = IMPALA(IMPALASettings(), environment)
    state = impala.init(1)
    rows = rows_of(impala, state, 10)
    whole, outputs = loss_of(impala, state, rows)
    halves = [{key: value[cut] for key, value in rows.items()} for cut in (slice(0, 4), slice(4, 10))]
    parts = [loss_of(impala, state, half, count=10) for half in halves]
    torch.testing.assert_close(parts[0][0] + parts[1][0], whole)
    for key, value in outputs.items():
        assert (value.shape, value.requires_grad) == ((10,), False), key
        torch.testing.assert_close(torch.cat([part[1][key] for part in parts]), value)


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_the_first_minibatch_has_ratio_one(environment: EnvironmentSpec):
    """Learning computes the probabilities that acting stored, and every parameter is part of the loss."""
    impala = IMPALA(IMPALASettings(), environment)
    state = impala.init(1)
    scalar, outputs = loss_of(impala, state, rows_of(impala, state, 32))
    assert outputs["kl"].abs().max().item() <= 1e-6
    assert all(gradient.any() for gradient in torch.autograd.grad(scalar, state.params["network"].leaves))


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_the_pieces_are_pure(environment: EnvironmentSpec):
    """Same inputs, same outputs; nothing that was given is changed, and a seed gives the same bytes."""
    impala = IMPALA(IMPALASettings(), environment)
    torch.manual_seed(1)
    state = impala.init(7)
    torch.manual_seed(2)
    before = state_bytes(state)
    assert state_bytes(impala.init(7)) == before != state_bytes(impala.init(8))
    action = {"action": torch.zeros(3, 2, 2)} if environment is VECTORS else {}
    round_ = trajectory(**action)
    kept = {name: value.clone() for name, value in round_.columns.items()}

    def found() -> list[Tensor]:
        with torch.no_grad():
            batch = impala.post(state.params, round_)
        scalar, outputs = loss_of(impala, state, batch)
        return [*batch.values(), scalar, *outputs.values()]

    first = [value.clone() for value in found()]
    assert all(torch.equal(one, two) for one, two in zip(first, found(), strict=True))
    assert state_bytes(state) == before
    assert all(torch.equal(round_.columns[name], value) for name, value in kept.items())


def test_a_fresh_policy_is_near_uniform():
    """Whatever is observed, both choices are about as likely, though the value shares the last layer."""
    impala = IMPALA(IMPALASettings(), CHOICES)
    acted, _ = impala.act(impala.init(1).params, None, random(64, 3), random(64, 2))
    assert (acted["log_probability"].exp() - 0.5).abs().max() < 0.05
    assert (
        IMPALA(IMPALASettings(initial_log_std=-0.5), VECTORS).init(1).params["network"]["log_std"].tolist()
        == [-0.5] * 2
    )


def test_a_plan_visits_every_row_once():
    """One fresh permutation in near-equal parts, which follows from the generator alone."""
    impala = IMPALA(IMPALASettings(minibatches=4), CHOICES)
    plans = [list(impala.plan(torch.Generator().manual_seed(seed), RoundWindow.of_round(18))) for seed in (1, 1, 2)]
    assert [len(part) for part in plans[0]] == [5, 5, 4, 4]
    first, again, other = (torch.cat(plan).tolist() for plan in plans)
    assert first == again != other
    assert sorted(first) == list(range(18))


def steps_taken(impala: IMPALA, count: int) -> Iterable[float]:
    state, (loss,) = impala.init(1), impala.losses
    group = state.params["network"]
    for _ in range(count):
        before = group.flat.clone()
        state = impala.after_minibatch(impala.update(state, loss, torch.ones_like(group.flat)))
        yield (before - group.flat).mean().item()


def test_the_learning_rate_is_annealed_linearly_and_then_kept():
    """Two rounds of two minibatches are four steps; from then on the final rate holds. 0 rounds never change it."""
    settings: dict[str, Any] = {"learning_rate": 0.1, "final_learning_rate": 0.02, "gradient_norm": 1e6}
    annealed = IMPALA(IMPALASettings(anneal_rounds=2, minibatches=2, **settings), CHOICES)
    assert list(steps_taken(annealed, 6)) == pytest.approx([0.1, 0.08, 0.06, 0.04, 0.02, 0.02], rel=1e-3)
    assert list(steps_taken(IMPALA(IMPALASettings(**settings), CHOICES), 2)) == pytest.approx([0.1, 0.1], rel=1e-3)


def test_an_update_clips_the_gradient():
    """Adam sees it scaled to the limit."""
    impala = IMPALA(IMPALASettings(gradient_norm=0.5), CHOICES)
    state = impala.init(1)
    impala.update(state, impala.losses[0], torch.full_like(state.params["network"].flat, 3.0))
    seen = state.optimizer["network"]["mean"] / 0.1
    assert torch.linalg.vector_norm(seen).item() == pytest.approx(0.5, rel=1e-4)


# Learning


def test_a_continuous_policy_moves_to_what_pays():
    """If actions near (1, -1) have the advantage, the policy's mean moves there, and the value to its target."""
    impala = IMPALA(IMPALASettings(learning_rate=1e-2, entropy_weight=0.0, gradient_norm=10.0), VECTORS)
    state, (loss,) = impala.init(1), impala.losses
    best = torch.tensor([1.0, -1.0])
    for step in range(150):
        noise = random(64, 2, seed=step)
        with torch.no_grad():
            acted, _ = impala.act(state.params, None, torch.zeros(64, 3), noise)
        reward = -(acted["action"] - best).square().sum(-1)
        advantage = reward - reward.mean()
        rows = {"observation": torch.zeros(64, 3), **acted, "advantage": advantage, "value_target": torch.ones(64)}
        gradients = torch.autograd.grad(loss_of(impala, state, rows)[0], state.params["network"].leaves)
        with torch.no_grad():
            state = impala.update(state, loss, torch.cat([part.reshape(-1) for part in gradients]))
    mean, _ = impala.act(state.params, None, torch.zeros(1, 3), torch.zeros(1, 2))
    assert (mean["action"] - best).abs().max() < 0.3
    _, outputs = loss_of(impala, state, {**rows, "observation": torch.zeros(64, 3)})
    assert outputs["value_loss"].mean() < 0.05


def copy_of(state: State) -> dict[str, dict[str, Tensor]]:
    """Return copies of the parameters that a snapshot holds."""
    return {name: {key: value.detach().clone() for key, value in group.items()} for name, group in state.params.items()}


def learned(algorithm: Algorithm, state: State, batch: Batch, seed: int) -> State:
    """All minibatches of a round, one after the other."""
    (loss,) = algorithm.losses
    count = len(batch["advantage"])
    for index in algorithm.plan(torch.Generator().manual_seed(seed), RoundWindow.of_round(count)):
        rows = {name: column[index] for name, column in batch.items()}
        scalar, _ = loss.function(state.params, LossInputs(rows, len(index)))
        gradients = torch.autograd.grad(scalar, state.params[loss.group].leaves)
        with torch.no_grad():
            state = algorithm.update(state, loss, torch.cat([part.reshape(-1) for part in gradients]))
    return state


def learn_rounds(context: RunContext, rounds: int) -> list[float]:
    """Act and learn in turns at the configured lag; the mean episode return of every round."""
    actors = [TileActor(context, tile) for tile in range(context.config.environment.tiles)]
    for actor in actors:
        actor.start()
    buffers = [RoundBuffers(context, actor.tile) for actor in actors]
    state = context.algorithm.init(1)
    versions, means = [copy_of(state)], []
    for round_ in range(rounds):
        version = context.acting_version(round_)
        batches, returns = [], []
        for actor, lent in zip(actors, buffers, strict=True):
            acted = actor.act_round(version, versions[version], lent)
            columns = {name: torch.from_numpy(array) for name, array in lent.arrays.items()}
            bootstrap = (torch.from_numpy(acted.end.bootstrap_rows), torch.from_numpy(acted.end.bootstrap_observation))
            with torch.no_grad():
                batches.append(context.algorithm.post(state.params, Trajectory(columns, *bootstrap)))
            returns += list(acted.end.episodes["return"])
        batch = {name: torch.cat([part[name] for part in batches]) for name in batches[0]}
        state = learned(context.algorithm, state, batch, round_)
        versions.append(copy_of(state))
        means.append(float(sum(returns) / max(1, len(returns))))
    return means


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small batches are fastest so."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_it_learns_cartpole_from_older_rows(make_context: MakeContext):
    """At lag 2 the return rises from that of chance to several times as much within forty rounds."""
    algorithm = {"name": "impala", "hidden": [32, 32], "learning_rate": 5e-3, "reward_scale": 0.05}
    config = build_config(
        {
            "environment": {"num_envs": 32, "envs_per_tile": 16, "max_episode_steps": 200},
            "algorithm": algorithm,
            "schedule": {"round_steps": 64, "lag": 2},
        }
    )
    context = make_context()
    learner = make_algorithm(config.algorithm, context.environment)
    means = learn_rounds(replace(context, config=config, algorithm=learner), 40)
    assert means[0] < 40
    assert sum(means[-5:]) / 5 > 100

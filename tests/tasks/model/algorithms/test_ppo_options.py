"""PPO's options: each against an independent statement of its formula, and nothing of it at the defaults."""

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from penstock.storage.errors import ConfigError
from penstock.tasks.model.algorithms.ppo import PPO
from penstock.tasks.model.nn.value_learning import limited_value_error
from penstock.tasks.roles.learning.gradients import minibatch_gradient
from penstock.tasks.roles.learning.round_update import StageTally, learn_batches, plan_round
from penstock.tasks.roles.learning.window import RoundWindow
from penstock.tasks.roles.reducing.reduction import LocalReduction
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.config.off_policy import SACSettings, TD3Settings
from penstock.tasks.setup.config.offline import TD3BCSettings
from penstock.tasks.setup.config.on_policy import PPOSettings
from penstock.tasks.setup.distribution.policies import make_policy
from penstock.tasks.setup.planning.preflight import check_staleness
from penstock.tasks.specs import ActionSpec, State, Trajectory

from ....support.algorithms.ppo_cases import CHOICES, PLAIN, VECTORS, loss_of, random, rows_of, trajectory
from ...conftest import MakeContext

LOW, HIGH = torch.tensor([-0.5, -1.0]), torch.tensor([0.25, 3.0])
BOX = replace(
    VECTORS, action=ActionSpec("box", shape=(2,), low=tuple(LOW.tolist()), high=tuple(HIGH.tolist())), num_envs=4
)


def ppo_with(environment: Any = BOX, **settings: Any) -> PPO:
    return PPO(PPOSettings(hidden=(8,), **settings), environment)


def flat_of(state: State) -> Tensor:
    return torch.cat([group.flat for group in state.params.values()])


# Actions within bounds


def acted(ppo: PPO, count: int = 500) -> dict[str, Tensor]:
    """Rows that a fresh policy acts with its large deviation, so that many vectors are out of bounds."""
    with torch.no_grad():
        return ppo.act(ppo.init(1).params, None, random(count, 3), random(count, 2, seed=1))[0]


def test_clipped_actions_keep_the_sampled_ones_log_probability():
    """As CleanRL's ClipAction: the environment gets the nearest vector within bounds, the row has the other, too."""
    plain, rows = acted(ppo_with()), acted(ppo_with(actions="clipped"))
    assert torch.equal(rows["sampled_action"], plain["action"])
    assert torch.equal(rows["log_probability"], plain["log_probability"])
    np.testing.assert_array_equal(rows["action"], np.clip(plain["action"].numpy(), LOW.numpy(), HIGH.numpy()))
    outside = (rows["action"] != rows["sampled_action"]).any(-1).float().mean()
    assert 0.2 < outside < 1.0


def test_squashed_actions_have_their_own_density():
    """Within bounds, with the log-density that torch.distributions gives the mapped vector."""
    plain, rows = acted(ppo_with()), acted(ppo_with(actions="squashed"))
    sampled = rows["sampled_action"]
    assert torch.equal(sampled, plain["action"])
    assert (rows["action"] > LOW).all()
    assert (rows["action"] < HIGH).all()
    half = 0.5 * (HIGH - LOW)
    mapped = [
        torch.distributions.TanhTransform(),
        torch.distributions.AffineTransform(LOW + half, half),
    ]
    torch.testing.assert_close(rows["action"], mapped[1](mapped[0](sampled)))
    mean = sampled - random(500, 2, seed=1)  # the first deviation is 1
    density = torch.distributions.TransformedDistribution(torch.distributions.Normal(mean.double(), 1.0), mapped)
    expected = density.log_prob(mapped[1](mapped[0](sampled.double()))).sum(-1)
    torch.testing.assert_close(rows["log_probability"].double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("actions", ["clipped", "squashed"])
def test_bounded_actions_are_learned_by_what_was_sampled(actions: str):
    """The first ratio is 1, and the gradient is that of sampled vectors: a map of the action cancels in the ratio."""
    environment = BOX
    gradients = []
    for kind in (actions, "sampled"):
        ppo = ppo_with(environment, actions=kind, entropy_weight=0.01)
        state = ppo.init(1)
        noise, observation = random(3, 2, 2, seed=1), random(3, 2, 3)
        with torch.no_grad():
            found = ppo.act(state.params, None, observation.flatten(0, 1), noise.flatten(0, 1))[0]
            columns = {name: value.unflatten(0, (3, 2)) for name, value in found.items()}
            rows = ppo.post(state.params, trajectory(observation=observation, **columns))
        _, outputs = loss_of(ppo, "policy", state.params, rows)
        assert outputs["kl"].abs().max() <= 1e-6
        gradients.append(minibatch_gradient(ppo.losses[0], state, rows, PLAIN, 100)[0])
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("actions", ["clipped", "squashed"])
def test_zero_noise_acts_the_mapped_mean(actions: str):
    """Evaluation and exports call `act` with it, so they need no map of their own."""
    ppo = ppo_with(actions=actions)
    state = ppo.init(1)
    with torch.no_grad():
        state.params["policy"]["1.bias"].copy_(torch.tensor([2.0, 0.5]))
        rows, _ = ppo.act(state.params, None, torch.zeros(1, 3), torch.zeros(1, 2))
    mean = torch.tensor([[2.0, 0.5]])
    mapped = mean.clamp(LOW, HIGH) if actions == "clipped" else LOW + (mean.tanh() + 1) * 0.5 * (HIGH - LOW)
    torch.testing.assert_close(rows["action"], mapped)


@pytest.mark.parametrize(
    ("action", "found"),
    [
        ({"kind": "box", "low": np.full(2, -np.inf), "high": np.ones(2)}, "without bounds"),
        ({"kind": "discrete", "n": 3}, "takes choices"),
    ],
)
def test_bounds_that_are_not_there_are_refused(action: dict[str, Any], found: str):
    """Before anything starts, with the setting and the environment by name."""
    action = {"shape": (2,), **action}
    environment: Any = {"id": "Endless-v0", "agents": 0, "observation": {"shape": (3,)}, "action": action}
    PPOSettings().check_environment(environment)
    with pytest.raises(ConfigError, match=rf"algorithm\.actions = 'clipped': Endless-v0 .*{found}"):
        PPOSettings(actions="clipped").check_environment(environment)


@pytest.mark.parametrize("settings", [SACSettings(), TD3Settings(), TD3BCSettings()], ids=lambda each: each.name)
@pytest.mark.parametrize(
    ("low", "high", "found"),
    [
        (-np.inf, np.inf, "without bounds"),
        (0.0, np.inf, "without bounds"),
        (-3e38, 3e38, r"as far apart as -3e\+38 and 3e\+38"),
    ],
)
def test_an_actor_between_bounds_needs_some(settings: Any, low: float, high: float, found: str):
    """Its actions would be infinite or no numbers; a distance between bounds has to be a number, too."""
    action = {"kind": "box", "shape": (2,), "low": np.full(2, low), "high": np.full(2, high)}
    environment: Any = {"id": "Endless-v0", "agents": 0, "observation": {"shape": (3,)}, "action": action}
    with pytest.raises(ConfigError, match=rf"algorithm\.name = '{settings.name}': Endless-v0 .*{found}"):
        settings.check_environment(environment)
    if np.isfinite(high):  # a clamp computes no distance
        PPOSettings(actions="clipped").check_environment(environment)
        with pytest.raises(ConfigError, match=found):
            PPOSettings(actions="squashed").check_environment(environment)


# Reward normalisation


class Played(gymnasium.Env[Any, Any]):
    """Gives rewards that were recorded, and cuts an episode off after every seven steps."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, rewards: np.ndarray) -> None:
        self._rewards, self._steps = iter(rewards.tolist()), 0

    def reset(self, **_: Any) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, _: Any) -> Any:
        self._steps += 1
        return np.zeros(1, np.float32), next(self._rewards), False, self._steps % 7 == 0, {}


def running_rounds(rewards: Tensor, *, terminated: Tensor | None = None, tiles: int = 2) -> tuple[PPO, State]:
    """Learn nothing but the statistics of rounds `[rounds, 3, 4]` of four environments, in tiles."""
    ppo = ppo_with(normalize_reward=True, reward_normalization="running", discount=0.9)
    state, reduction = ppo.init(1), LocalReduction(ppo)
    for round_ in range(len(rewards)):
        sums = []
        for tile in range(tiles):
            width = 4 // tiles
            own = slice(tile * width, (tile + 1) * width)
            steps = np.arange(round_ * 3, round_ * 3 + 3)
            cut = torch.from_numpy(((steps + 1) % 7 == 0).astype(np.uint8))[:, None].expand(3, width)
            ended = torch.zeros(3, width, dtype=torch.uint8) if terminated is None else terminated[round_, :, own]
            columns = {
                "observation": random(3, width, 3),
                "action": torch.zeros(3, width, 2),
                "log_probability": torch.zeros(3, width),
                "reward": rewards[round_, :, own],
                "terminated": ended,
                "truncated": cut,
            }
            rows = torch.arange(2 * width, 3 * width)
            played = Trajectory(columns, rows, torch.zeros(width, 3), first_env=own.start)
            with torch.no_grad():
                sums.append(ppo.stats(ppo.post(state.params, played)))
        totals = reduction.stats({name: torch.stack([each[name] for each in sums]).sum(0) for name in sums[0]})
        with torch.no_grad():
            state = reduction.after_round(state, totals)
    return ppo, state


@pytest.mark.parametrize("tiles", [1, 2, 4])
def test_running_sums_are_those_of_gymnasium(tiles: int):
    """Over rounds that cut episodes anywhere: the sums and their variance of Gymnasium's NormalizeReward."""
    rewards = 3 * random(20, 3, 4) + 1
    _, state = running_rounds(rewards, tiles=tiles)
    sums, ends = [], []
    for env in range(4):
        wrapped = gymnasium.wrappers.NormalizeReward(Played(rewards[:, :, env].flatten().numpy()), gamma=0.9)
        wrapped.reset()
        for _ in range(60):
            wrapped.step(0)
            sums.append(np.ravel(wrapped.discounted_reward).item())
        ends.append(np.ravel(wrapped.discounted_reward).item())
    np.testing.assert_allclose(state.params["reward_sums"]["sum"].detach(), ends, rtol=1e-5)
    np.testing.assert_allclose(state.targets["rewards/variance"], np.var(sums), rtol=1e-5)
    assert state.targets["rewards/count"] == len(sums)


def test_a_termination_at_a_rounds_end_leaves_nothing():
    """The next round begins with sums of 0 in that environment, and goes on in the others."""
    rewards = torch.ones(1, 3, 4)
    terminated = torch.zeros(1, 3, 4, dtype=torch.uint8)
    terminated[0, 2, 1] = terminated[0, 0, 2] = 1
    _, state = running_rounds(rewards, terminated=terminated)
    expected = [1 + 0.9 + 0.81, 0.0, 1.9, 1 + 0.9 + 0.81]
    np.testing.assert_allclose(state.params["reward_sums"]["sum"].detach(), expected, rtol=1e-6)


def test_environments_that_are_left_out_keep_their_sums():
    """With a quorum below 1 a round may lack a tile."""
    ppo = ppo_with(normalize_reward=True, reward_normalization="running")
    state = ppo.init(1)
    with torch.no_grad():
        state.params["reward_sums"]["sum"].copy_(torch.arange(4.0))
        columns = {"reward": torch.zeros(3, 2), "action": torch.zeros(3, 2, 2)}
        sums = ppo.stats(ppo.post(state.params, replace(trajectory(**columns), first_env=2)))
        state = LocalReduction(ppo).after_round(state, sums)
    left = 0.99**3
    torch.testing.assert_close(
        state.params["reward_sums"]["sum"].detach(), torch.tensor([0.0, 1.0, 2 * left, 3 * left])
    )


# Whole rounds


def learned(make_context: MakeContext, **settings: Any) -> tuple[Any, State, StageTally, dict[str, Tensor]]:
    """Learn random rows for one round; returns context, state, tally and the rows."""
    context = make_context({"environment": {"id": "Pendulum-v1"}, "algorithm": settings}, name=f"r{len(settings)}")
    ppo = context.algorithm
    state, tally = ppo.init(1), StageTally()
    rows = rows_of(ppo, state, 48)
    if settings.get("value_clip_range"):
        rows["value"] = random(48, seed=8)
    state = learn_batches(context, state, 0, [rows], tally, LocalReduction(ppo))
    return context, state, tally, rows


def planned(context: Any) -> list[Tensor]:
    return [*plan_round(context, 0, RoundWindow.of_round(48))]


def by_hand(context: Any, rows: dict[str, Tensor], minibatches: list[Tensor], normalise: Any) -> Tensor:
    """Take the steps of minibatches whose advantages are normalised beforehand; returns the parameters."""
    ppo = context.algorithm
    plain = replace(ppo, settings=ppo.settings.model_copy(update={"advantage_normalization": "none"}))
    state = plain.init(1)
    for minibatch in minibatches:
        part = {name: column[minibatch] for name, column in rows.items()}
        part["advantage"] = torch.from_numpy(normalise(part["advantage"].numpy())).float()
        gradients = [minibatch_gradient(loss, state, part, {}, 4096)[0] for loss in plain.losses]
        for loss, gradient in zip(plain.losses, gradients, strict=True):
            with torch.no_grad():
                state = plain.update(state, loss, gradient)
    return flat_of(state)


def standard(values: np.ndarray) -> np.ndarray:
    return (values - values.mean()) / (values.std() + 1e-8)


def test_advantages_are_normalised_over_each_minibatch(make_context: MakeContext):
    """As NumPy normalises those of each minibatch: the same parameters after two epochs."""
    context, state, _, rows = learned(
        make_context, advantage_normalization="minibatch", epochs=2, minibatches=5, learning_rate=1e-2
    )
    torch.testing.assert_close(flat_of(state), by_hand(context, rows, planned(context), standard), rtol=1e-4, atol=1e-5)
    assert (flat_of(state) - by_hand(context, rows, planned(context), lambda given: given)).abs().max() > 1e-3


def test_a_round_ends_with_the_epoch_that_reaches_the_target(make_context: MakeContext):
    """The last minibatch of an epoch decides: the parameters are those of the epochs before, and no other's."""
    settings = {"epochs": 6, "minibatches": 4, "learning_rate": 2e-2, "advantage_normalization": "none"}
    context, _, tally, rows = learned(make_context, **settings)
    minibatches, divergences = planned(context), []
    for epoch in range(1, 7):
        ppo, state = context.algorithm, context.algorithm.init(1)
        for minibatch in minibatches[: 4 * epoch]:
            part = {name: column[minibatch] for name, column in rows.items()}
            found = [minibatch_gradient(loss, state, part, {}, 4096) for loss in ppo.losses]
            for loss, (gradient, _) in zip(ppo.losses, found, strict=True):
                with torch.no_grad():
                    state = ppo.update(state, loss, gradient)
        divergences.append(float(found[0][1]["kl"].mean()))
    assert tally.update_rows == 6 * 48
    target = max(divergences[:2]) * 1.01
    epochs = next(number for number, each in enumerate(divergences, 1) if each > target)
    assert 2 < epochs < 6
    stopped, state, tally, rows = learned(make_context, target_kl=target, **settings)
    assert tally.update_rows == epochs * 48
    expected = by_hand(stopped, rows, minibatches[: 4 * epochs], lambda given: given)
    torch.testing.assert_close(flat_of(state), expected, rtol=1e-4, atol=1e-5)


def test_with_a_target_the_learning_rate_is_annealed_by_rounds(make_context: MakeContext):
    """Rounds that end early take fewer steps, and the rate still ends where it shall."""
    context, state, _, rows = learned(make_context, target_kl=1e-9, anneal_rounds=2, final_learning_rate=1e-12)
    assert state.targets["rounds"] == 1
    for round_ in (1, 2):
        before = flat_of(state).clone()
        state = learn_batches(context, state, round_, [rows], StageTally(), LocalReduction(context.algorithm))
        moved = (flat_of(state) - before).abs().max()
        assert (moved > 1e-6) == (round_ == 1)


def test_a_target_is_refused_where_learners_are_at_different_minibatches():
    """With `max_staleness`, before anything starts."""
    config = build_config(
        {
            "environment": {"num_envs": 4, "envs_per_tile": 1},
            "algorithm": {"target_kl": 0.1},
            "distribution": {"policy": "central", "learn_tasks": 2, "max_staleness": 1},
        }
    )
    with pytest.raises(ConfigError, match=r"max_staleness = 1: algorithm\.target_kl"):
        check_staleness(config, make_policy(config.distribution))


# Losses


def test_value_clipping_against_numpy():
    """The larger error of the value and of the value near the one before; beyond both there is no gradient."""
    given = [random(200, seed=seed) for seed in range(3)]
    outputs = torch.stack([torch.zeros(200), given[0]], -1).requires_grad_()
    found = limited_value_error(outputs, given[2], given[1], huber_delta=0.0, clip_range=0.3)
    value, before, target = (each.double().numpy() for each in given)
    near = before + np.clip(value - before, -0.3, 0.3)
    expected = 0.5 * np.maximum(np.square(value - target), np.square(near - target))
    np.testing.assert_allclose(found.detach(), expected, rtol=1e-5)
    (gradient,) = torch.autograd.grad(found.sum(), outputs)
    held = np.square(near - target) > np.square(value - target)
    slope = np.where(held & (np.abs(value - before) > 0.3), 0.0, value - target)
    np.testing.assert_allclose(gradient[:, 1], slope, rtol=1e-5, atol=1e-6)
    assert not gradient[:, 0].any()
    assert 0.1 < (slope == 0).mean() < 0.9


@pytest.mark.parametrize("shared", [False, True])
def test_the_value_loss_is_clipped_around_the_rounds_values(shared: bool):
    """The rows have the values that advantages were computed with; a range that is never reached changes nothing."""
    for clip_range, same in ((1e6, True), (1e-3, False)):
        found = []
        for settings in ({"value_clip_range": clip_range}, {}):
            ppo = ppo_with(CHOICES, shared_network=shared, **settings)
            state = ppo.init(1)
            with torch.no_grad():
                rows = ppo.post(state.params, trajectory(observation=random(3, 2, 3)))
                for group in state.params.values():
                    group.flat.mul_(1.5)
            assert ("value" in rows) == bool(settings)
            _, outputs = loss_of(ppo, ppo.losses[-1].name, state.params, rows)
            found.append(outputs["value_loss"])
        assert torch.allclose(*found) == same


def test_a_joint_norm_limits_both_gradients_together():
    """The same weights, and steps of both networks by one factor; one optimizer for both."""
    apart, joint = (
        ppo_with(joint_gradient_norm=each, gradient_norm=0.01, value_weight=0.5, entropy_weight=0.01)
        for each in (False, True)
    )
    first, second = apart.init(1), joint.init(1)
    names = [(group, name) for group in ("policy", "value") for name in first.params[group]]
    assert list(second.params["network"]) == [f"{group}.{name}" for group, name in names]
    assert torch.equal(second.params["network"].flat, flat_of(first))
    assert joint.actor_groups == ("network",)
    rows = rows_of(apart, first, 64)
    (loss,) = joint.losses
    gradient, outputs = minibatch_gradient(loss, second, rows, PLAIN, 100)
    separate = [minibatch_gradient(each, first, rows, PLAIN, 100) for each in apart.losses]
    expected = torch.cat([separate[0][0], 0.5 * separate[1][0]])
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-7)
    assert outputs.keys() == separate[0][1].keys() | separate[1][1].keys()
    parameter = second.params["network"].flat.clone().requires_grad_()
    parameter.grad = expected.clone()
    torch.nn.utils.clip_grad_norm_([parameter], 0.01)
    torch.optim.Adam([parameter], lr=3e-4, eps=1e-5).step()
    with torch.no_grad():
        joint.update(second, loss, gradient)
    torch.testing.assert_close(second.params["network"].flat, parameter.detach(), rtol=1e-5, atol=1e-7)


def test_networks_of_one_group_act_and_value_as_two():
    """Recurrent ones too, whose memories are apart."""
    for network in ("mlp", "recurrent"):
        found = []
        for joint in (False, True):
            ppo = ppo_with(network=network, features=4, joint_gradient_norm=joint)
            state = ppo.init(1)
            with torch.no_grad():
                rows, carry = ppo.act(state.params, ppo.initial_carry(5), random(5, 3), random(5, 2, seed=1))
            found.append((*rows.values(), *([] if carry is None else [carry])))
        assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_defaults_leave_no_trace_in_an_identity():
    """Runs that were recorded before these options continue: their identity has none of them."""
    names = {
        "actions",
        "reward_normalization",
        "advantage_normalization",
        "value_clip_range",
        "target_kl",
        "joint_gradient_norm",
    }
    assert not names & PPOSettings().identity().keys()
    changed = PPOSettings(actions="clipped", target_kl=0.1, joint_gradient_norm=True)
    assert names & changed.identity().keys() == {"actions", "target_kl", "joint_gradient_norm"}

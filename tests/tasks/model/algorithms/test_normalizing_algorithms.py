"""Every algorithm that normalises does so alike: what it sees, what its rewards become, and that learners agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from penstock.flows.cli.check import check_one_algorithm
from penstock.tasks.model.algorithms.contract import window_spec
from penstock.tasks.model.algorithms.impala import IMPALA
from penstock.tasks.model.algorithms.mappo import MAPPO
from penstock.tasks.model.algorithms.ppo import PPO
from penstock.tasks.model.algorithms.sac import SAC
from penstock.tasks.roles.reducing.reduction import LocalReduction, SummedReduction
from penstock.tasks.setup.config.off_policy import SACSettings
from penstock.tasks.setup.config.on_policy import IMPALASettings, IPPOSettings, MAPPOSettings, PPOSettings
from penstock.tasks.specs import ActionSpec, EnvironmentSpec, LossInputs, Spec, State, Trajectory

from ....support.algorithms.ppo_cases import CHOICES, VECTORS, random, with_settings
from ...roles.reducing.test_reduction import together

if TYPE_CHECKING:
    from penstock.tasks.runtime.process_group import Group

TEAM = EnvironmentSpec("team", Spec("float32", (2, 3)), ActionSpec("discrete", n=2, shape=(2,)), None, None, agents=2)
STEPS, ENVS = 6, 2
REWARDED = {
    "ppo": PPO(PPOSettings(hidden=(8,), normalize_reward=True), CHOICES),
    "impala": IMPALA(IMPALASettings(hidden=(8,), normalize_reward=True), CHOICES),
    "mappo": MAPPO(MAPPOSettings(hidden=(8,), normalize_reward=True), TEAM),
    "ippo": MAPPO(IPPOSettings(hidden=(8,), team_reward=False, normalize_reward=True), TEAM),
}
ALGORITHMS = {**REWARDED, "sac": SAC(SACSettings(hidden=(8,)), VECTORS)}
each = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)


def both(algorithm: Any) -> tuple[Any, Any]:
    """One that normalises observations alone, and one that normalises nothing, with the same weights."""
    off = {} if isinstance(algorithm, SAC) else {"normalize_reward": False}
    return with_settings(algorithm, normalize_observation=True, **off), with_settings(
        algorithm, normalize_observation=False, **off
    )


def round_of(algorithm: Any, seed: int = 0) -> Trajectory:
    """A tile's round, whose observations are far from standard and whose first environment is truncated once."""
    environment, shape = algorithm.environment, (STEPS, ENVS)
    observation = 4 * random(*shape, *environment.observation.shape, seed=seed) + 100
    noise = random(STEPS * ENVS, *algorithm.noise.shape, seed=seed + 1)
    state = algorithm.init(1)
    acted, _ = algorithm.act(state.params, None, observation.flatten(0, 1), noise)
    flags = torch.zeros(2, *shape, dtype=torch.uint8)
    flags[1, 2, 0] = 1
    columns = {
        "observation": observation,
        "reward": 7 * random(*shape, *environment.reward.shape, seed=seed + 2),
        "terminated": flags[0],
        "truncated": flags[1],
        **{name: values.detach().unflatten(0, shape) for name, values in acted.items()},
    }
    ends = torch.tensor([2 * ENVS, (STEPS - 1) * ENVS, (STEPS - 1) * ENVS + 1])
    return Trajectory(columns, ends, 4 * random(3, *environment.observation.shape, seed=seed + 3) + 100)


@torch.no_grad()
def learned(algorithm: Any, state: State, trajectory: Trajectory) -> dict[str, Tensor]:
    batch: dict[str, Tensor] = algorithm.post({} if window_spec(algorithm) else state.params, trajectory)
    return batch


@torch.no_grad()
def after(algorithm: Any, state: State, trajectory: Trajectory) -> State:
    """The state after a round that nothing else was learned from."""
    reduction = LocalReduction(algorithm)
    return reduction.after_round(state, reduction.stats(algorithm.stats(learned(algorithm, state, trajectory))))


def by_hand(values: Tensor, trajectory: Trajectory) -> Tensor:
    """Normalised by what a round has, per number (over agents too), as NumPy would."""
    seen = trajectory.columns["observation"].flatten(0, -2).double()
    return ((values.double() - seen.mean(0)) / seen.std(0, correction=0)).clamp(-10, 10).float()


@each
def test_networks_see_normalised_observations_and_rows_keep_raw_ones(algorithm: Any):
    """After a round, acting, targets and every loss are those of a plain one that is given normalised observations."""
    ours, plain = both(algorithm)
    trajectory = round_of(ours)
    state, other = after(ours, ours.init(1), trajectory), plain.init(1)
    observation, noise = trajectory.columns["observation"].flatten(0, 1), random(STEPS * ENVS, *ours.noise.shape)
    held = {name: state.params[name] for name in ours.actor_groups}
    acted, _ = ours.act(held, None, observation, noise)
    expected, _ = plain.act(other.params, None, by_hand(observation, trajectory), noise)
    for name, values in expected.items():
        torch.testing.assert_close(acted[name], values, rtol=1e-4, atol=1e-4)

    columns = {**trajectory.columns, "observation": by_hand(trajectory.columns["observation"], trajectory)}
    final = by_hand(trajectory.bootstrap_observation, trajectory)
    standard = Trajectory(columns, trajectory.bootstrap_rows, final)
    rows, wanted = learned(ours, state, trajectory), learned(plain, other, standard)
    assert torch.equal(rows["observation"].flatten(), observation.flatten())
    for name in wanted.keys() - {"observation", "following"}:
        torch.testing.assert_close(rows[name], wanted[name], rtol=1e-4, atol=1e-4)
    for loss, plain_loss in zip(ours.losses, plain.losses, strict=True):
        drawn = None if loss.noise is None else random(STEPS * ENVS, *loss.noise.shape, seed=5)
        totals = {name: float(total) for name, total in ours.stats(rows).items() if not total.dim()}
        _, outputs = loss.function(
            state.params, LossInputs(rows, STEPS * ENVS, totals, targets=state.targets, noise=drawn)
        )
        _, expected = plain_loss.function(
            other.params, LossInputs(wanted, STEPS * ENVS, totals, targets=other.targets, noise=drawn)
        )
        for name, values in expected.items():
            torch.testing.assert_close(outputs[name], values, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("algorithm", REWARDED.values(), ids=REWARDED)
def test_rewards_are_scaled_by_the_deviation_of_their_discounted_sums(algorithm: Any):
    """From the round after on: with values of zero and no discount, an advantage is the scaled reward."""
    algorithm = with_settings(algorithm, discount=0.0, trace_decay=0.0, reward_scale=0.5)
    trajectory, state = round_of(algorithm), algorithm.init(1)
    for loss in algorithm.losses:
        state.params[loss.group].flat.zero_()
    reward = 0.5 * trajectory.columns["reward"]
    if getattr(algorithm.settings, "team_reward", False):
        reward = reward.mean(-1, keepdim=True).expand_as(reward)
    before = learned(algorithm, state, trajectory)["advantage"].view_as(reward)
    state = after(algorithm, state, trajectory)
    scaled = learned(algorithm, state, trajectory)["advantage"].view_as(reward)
    torch.testing.assert_close(before, reward.clamp(-10, 10))
    torch.testing.assert_close(scaled, (reward / reward.std(correction=0)).clamp(-10, 10))


@each
def test_two_learners_keep_the_state_of_one(algorithm: Any):
    """However the tiles of two rounds are shared: equal bytes on both, equal to one learner's but for rounding."""
    algorithm = with_settings(algorithm, normalize_observation=True)
    rounds = [[round_of(algorithm, 10 * index + tile) for tile in range(2)] for index in range(2)]
    rows = STEPS * ENVS

    @torch.no_grad()
    def follow(reduction: LocalReduction, tiles: range) -> dict[str, Tensor]:
        state = algorithm.init(1)
        for trajectories in rounds:
            sums = [algorithm.stats(learned(algorithm, state, trajectories[tile])) for tile in tiles]
            own = {name: torch.stack([part[name] for part in sums]).sum(0) for name in sums[0]}
            state = reduction.after_round(state, reduction.stats(own))
        groups = {name: group.flat for name, group in state.params.items() if name in ("observations", "rewards")}
        return groups | {name: value for name, value in state.targets.items() if name.startswith(tuple(groups))}

    def work(rank: int, group: Group) -> dict[str, Tensor]:
        return follow(SummedReduction(algorithm, group), range(rank, rank + 1))

    alone, found = follow(LocalReduction(algorithm), range(2)), together(2, work)
    assert float(alone["observations/count"]) == 4 * rows * max(1, algorithm.environment.agents)
    for name, value in alone.items():
        torch.testing.assert_close(found[0][name], value, rtol=1e-6, atol=1e-6)
        assert torch.equal(found[0][name], found[1][name])


BOTH = ["--algorithm.normalize-observation", "true", "--algorithm.normalize-reward", "true"]
CHECKED = [
    ("impala", "CartPole-v1", BOTH),
    ("mappo", "simple_spread_v3", BOTH),
    ("ippo", "simple_spread_v3", BOTH),
    ("sac", "Pendulum-v1", BOTH[:2]),
]


@pytest.mark.parametrize(("name", "environment", "options"), CHECKED, ids=[name for name, *_ in CHECKED])
def test_normalising_algorithms_pass_the_checks(name: str, environment: str, options: list[str]):
    """Acting and learning see the same (the ratio is 1), sums are global, and parts of a minibatch add up."""
    report = check_one_algorithm(name, environment, ["--algorithm.hidden", "[8]", *options])
    assert report.passed, report

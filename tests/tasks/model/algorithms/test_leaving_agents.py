"""Agents that leave before their episode's end (death masking): what they observe afterwards trains nothing."""

from collections.abc import Mapping
from itertools import count

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.flows.cli.check import check_one_algorithm
from penstock.tasks.model.algorithms.contract import FollowsRounds
from penstock.tasks.model.algorithms.mappo import MAPPO
from penstock.tasks.roles.acting.tile import RoundBuffers, TileActor
from penstock.tasks.roles.learning.gradients import minibatch_gradient
from penstock.tasks.roles.learning.shard_feed import learned_columns
from penstock.tasks.roles.learning.window import RoundWindow
from penstock.tasks.setup.config.on_policy import IPPOSettings, MAPPOSettings
from penstock.tasks.specs import ActionSpec, EnvironmentSpec, LossInputs, Spec, State, Trajectory
from penstock.tasks.tape.totals import RoundTotals

from ....support.algorithms.ppo_cases import random
from ....support.slow import slow_after
from ...conftest import MakeContext

STEPS, ENVS, AGENTS, CHOICES, NUMBERS = 4, 2, 2, 3, 2
TEAM = EnvironmentSpec(
    "team",
    Spec("float32", (AGENTS * (CHOICES + NUMBERS),)),
    ActionSpec("discrete", n=CHOICES, shape=(AGENTS,)),
    None,
    None,
    agents=AGENTS,
    unmasked_observation=Spec("float32", (AGENTS, NUMBERS)),
)
THERE = np.ones((STEPS, ENVS, AGENTS), dtype=bool)
THERE[2:, 0, 1] = False  # leaves after two steps, and is away until the round's end
THERE[1, 1, 0] = False  # leaves after one step of an episode that ends in the next one
AFTER = np.array([[True, True], [True, False], [True, True]])
"""Agents that are there in the observations after the bootstrap rows 3, 6 and 7."""
NORMALIZED = {"normalize_observation": True, "normalize_reward": True, "normalize_value": True}
NUMBERS_OF_RUNS = count()
MEMORY = {"network": "recurrent", "features": 8, "sequence_steps": 4}


def made(*, central: bool, **settings: object) -> MAPPO:
    kind = MAPPOSettings if central else IPPOSettings
    return MAPPO(kind(hidden=(5,), discount=0.9, trace_decay=0.8, **settings), TEAM)  # type: ignore[arg-type]


def shown(there: NDArray[np.bool_], features: Tensor) -> Tensor:
    """Return observations: masks that forbid choice 1, and everything to agents that have left, before `features`."""
    allowed = np.repeat(there[..., None], CHOICES, -1)
    allowed[..., 1] = False
    mask = torch.from_numpy(allowed).float().flatten(-2)
    return torch.cat([mask, features.flatten(-2)], -1)


def round_of(mappo: MAPPO, state: State, junk: float = 0.0) -> Trajectory:
    """A round in which agents leave; the second environment's first episode is terminated at step 1."""
    features, last = random(STEPS, ENVS, AGENTS, NUMBERS), random(3, AGENTS, NUMBERS, seed=3)
    features[~torch.from_numpy(THERE)], last[~torch.from_numpy(AFTER)] = junk, junk
    observation = shown(THERE, features)
    noise = random(STEPS, ENVS, AGENTS, CHOICES, seed=1)
    with torch.no_grad():
        acted = [mappo.act(state.params, None, observation[step], noise[step])[0] for step in range(STEPS)]
    columns = {name: torch.stack([rows[name] for rows in acted]) for name in mappo.rows}
    flags = torch.zeros(2, STEPS, ENVS, dtype=torch.uint8)
    flags[0, 1, 1] = 1
    columns |= {"observation": observation, "reward": random(STEPS, ENVS, AGENTS, seed=2)}
    columns |= {"terminated": flags[0], "truncated": flags[1]}
    return Trajectory(columns, torch.tensor([3, 6, 7]), shown(AFTER, last))


# Acting


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("recurrent", [False, True])
def test_an_agent_that_has_left_takes_choice_0(shared: bool, recurrent: bool):
    """With a log-probability of exactly 0, whatever it observes; the others act as they do without it."""
    mappo = made(central=True, shared_parameters=shared, **(MEMORY if recurrent else {}))
    params, features = mappo.init(1).params, random(6, AGENTS, NUMBERS)
    there = np.ones((6, AGENTS), dtype=bool)
    noise, carry = random(6, AGENTS, CHOICES, seed=1), mappo.initial_carry(6)
    whole, _ = mappo.act(params, carry, shown(there, features), noise)
    there[::2, 1] = False
    junk = features.clone()
    junk[::2, 1] = torch.nan
    left, memory = mappo.act(params, carry, shown(there, junk), noise)
    assert left["action"][::2, 1].tolist() == [0, 0, 0]
    assert left["log_probability"][::2, 1].tolist() == [0.0, 0.0, 0.0]
    for name in ("action", "log_probability"):
        assert torch.equal(left[name][there], whole[name][there]), name
    assert memory is None or bool(memory.isfinite().all())


def test_a_team_of_which_all_have_left_is_refused():
    """By the number of its row: the episode should have ended."""
    mappo, there = made(central=True), np.ones((4, AGENTS), dtype=bool)
    there[2] = False
    with pytest.raises(ValueError, match=r"none of its 6 choices in row\(s\) \[2\].*let its step end the episode"):
        mappo.act(mappo.init(1).params, None, shown(there, random(4, AGENTS, NUMBERS)), torch.zeros(4, AGENTS, CHOICES))


# The formula


def network(params: Mapping[str, Tensor], inputs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute outputs `[outputs]` of a perceptron with one hidden layer of tanh."""
    first, second = (
        (params[f"{layer}.weight"].detach().double().numpy(), params[f"{layer}.bias"].detach().double().numpy())
        for layer in (0, 1)
    )
    found: NDArray[np.float64] = second[0] @ np.tanh(first[0] @ inputs + first[1]) + second[1]
    return found


def judged(central: bool, features: NDArray[np.float64], there: NDArray[np.bool_], agent: int) -> NDArray[np.float64]:
    """Return a critic's inputs: the id alone for an agent that has left, and zeros in place of others that have."""
    ids = np.eye(AGENTS)[agent]
    seen = [features[(agent + k) % AGENTS] * there[(agent + k) % AGENTS] for k in range(AGENTS if central else 1)]
    return np.concatenate([*(np.zeros(NUMBERS) if not there[agent] else each for each in seen), ids])


@pytest.mark.parametrize("central", [True, False])
@pytest.mark.parametrize("follows", [True, False])
@pytest.mark.parametrize("team", [True, False])
def test_losses_are_those_of_the_plain_formula(central: bool, follows: bool, team: bool):
    """Row by row in NumPy: values, advantages of each agent's own return, their moments, and both losses."""
    mappo = made(central=central, value_after_leaving=follows, team_reward=team, entropy_weight=0.05)
    state = mappo.init(1)
    round_ = round_of(mappo, state)
    features = round_.columns["observation"][..., AGENTS * CHOICES :].double().numpy()
    features = features.reshape(STEPS, ENVS, AGENTS, NUMBERS)
    last = round_.bootstrap_observation[:, AGENTS * CHOICES :].double().numpy().reshape(-1, AGENTS, NUMBERS)
    reward = round_.columns["reward"].double().numpy()
    reward = np.broadcast_to(reward.mean(-1, keepdims=True), reward.shape) if team else reward
    value, advantage = np.zeros((2, STEPS, ENVS, AGENTS))
    for env in range(ENVS):
        for agent in range(AGENTS):
            following = 0.0
            for step in reversed(range(STEPS)):
                end = {3: 0, 6: 1, 7: 2}.get(step * ENVS + env)
                after = (features[step + 1, env], THERE[step + 1, env]) if end is None else (last[end], AFTER[end])
                now, then = (
                    network(state.params["value"], judged(central, *each, agent))[0]
                    for each in ((features[step, env], THERE[step, env]), after)
                )
                terminated = (step, env) == (1, 1) or (
                    not follows and bool(THERE[step, env, agent]) and not after[1][agent]
                )
                delta = reward[step, env, agent] + 0.9 * then * (not terminated) - now
                following = delta + 0.9 * 0.8 * following * (not terminated and end is None)
                value[step, env, agent], advantage[step, env, agent] = now, following
    with torch.no_grad():
        batch = mappo.post(state.params, round_)
        stats = {name: value.item() for name, value in mappo.stats(batch).items()}
    rows = STEPS * ENVS
    np.testing.assert_allclose(batch["advantage"].view(STEPS, ENVS, AGENTS).numpy(), advantage, rtol=1e-4, atol=1e-5)
    assert stats["count"] == THERE.sum()
    standard = (advantage - advantage[THERE].mean()) / advantage[THERE].std()

    behaviour = batch["log_probability"] + 0.3 * random(rows, AGENTS, seed=8)
    value_target = batch["value_target"] + random(rows, AGENTS, seed=9)
    inputs = LossInputs({**batch, "log_probability": behaviour, "value_target": value_target}, rows, stats)
    expected = np.zeros(3)  # surrogate, entropy, value
    for step, env, agent in np.ndindex(STEPS, ENVS, AGENTS):
        row = step * ENVS + env
        error = 0.5 * (value[step, env, agent] - value_target[row, agent].item()) ** 2
        if follows or THERE[step, env, agent]:
            expected[2] += error / (rows * AGENTS)
        if not THERE[step, env, agent]:
            continue
        seen = np.concatenate([features[step, env, agent], np.eye(AGENTS)[agent]])
        logits = network(state.params["policy"], seen)[[0, 2]]
        probability = np.exp(logits) / np.exp(logits).sum()
        chosen = probability[int(batch["action"][row, agent].item()) // 2]
        ratio, gain = chosen / np.exp(behaviour[row, agent].item()), standard[step, env, agent]
        expected[0] += min(ratio * gain, np.clip(ratio, 0.8, 1.2) * gain) / (rows * AGENTS)
        expected[1] -= (probability * np.log(probability)).sum() / (rows * AGENTS)
    (policy, outputs), (critic, errors) = (loss.function(state.params, inputs) for loss in mappo.losses)
    assert policy.item() == pytest.approx(-expected[0] - 0.05 * expected[1], rel=1e-4, abs=1e-6)
    assert critic.item() == pytest.approx(expected[2], rel=1e-4)
    assert outputs["entropy"].mean().item() == pytest.approx(expected[1], rel=1e-4)
    assert errors["value_loss"].mean().item() == pytest.approx(expected[2], rel=1e-4)


def test_moments_leave_agents_out_that_have_left():
    """Those of observations, rewards and value targets are NumPy's over the rows of agents that are there."""
    mappo = made(central=True, team_reward=False, **NORMALIZED)
    state = mappo.init(1)
    with torch.no_grad():
        batch = mappo.post(state.params, round_of(mappo, state, junk=torch.nan))
        mappo.after_round(state, mappo.stats(batch))
    there = THERE.reshape(-1, AGENTS)
    columns = {"observations": "observation", "rewards": "discounted_reward", "value_targets": "value_target"}
    for group, column in columns.items():
        rows = batch[column].double().flatten(0, 1).numpy().reshape(STEPS * ENVS, AGENTS, -1)[there]
        assert state.targets[f"{group}/count"].item() == len(rows) == THERE.sum()
        for name, expected in (("mean", rows.mean(0)), ("variance", rows.var(0))):
            np.testing.assert_allclose(state.targets[f"{group}/{name}"].numpy().reshape(-1), expected, atol=1e-9)


# Runs


def learned(
    make_context: MakeContext,
    algorithm: dict[str, object],
    rounds: int,
    *,
    env_id: str = "Leaving-v0",
    junk: float = 0.0,
) -> tuple[MAPPO, State]:
    """Act and learn rounds; agents that have left observe `junk`. The environment gives it, unless it is NaN."""
    settings = {"junk": junk} if np.isfinite(junk) and junk else {}
    environment = {
        "id": env_id, "num_envs": 8, "envs_per_tile": 8, "max_episode_steps": None, "settings": settings
    }  # fmt: skip
    values = {"environment": environment, "algorithm": algorithm, "schedule": {"round_steps": 32}}
    context = make_context(values, name=f"run-{next(NUMBERS_OF_RUNS)}")
    mappo, actor, buffers = context.algorithm, TileActor(context, 0), RoundBuffers(context, 0)
    state = mappo.init(1)
    actor.start()
    for round_ in range(rounds):
        end = actor.act_round(round_, {group: state.params[group] for group in mappo.actor_groups}, buffers).end
        columns = {name: torch.from_numpy(buffers.arrays[name].copy()) for name in learned_columns(context)}
        ends = torch.from_numpy(end.bootstrap_rows.copy()), torch.from_numpy(end.bootstrap_observation.copy())
        trajectory = Trajectory(columns, *ends)
        if np.isnan(junk):
            for seen in (columns["observation"], trajectory.bootstrap_observation):
                seen[..., 9:][seen[..., 3] == 0] = torch.nan
        with torch.no_grad():
            batch = mappo.post(state.params, trajectory)
            sums = mappo.stats(batch)
        assert (batch["present"] == 0).any() or env_id != "Leaving-v0"
        stats = RoundTotals({name: value.item() for name, value in sums.items() if not value.dim()})
        window = RoundWindow.of_round(len(next(iter(batch.values()))))
        for rows in mappo.plan(torch.Generator().manual_seed(round_), window):
            minibatch = {name: column[rows] for name, column in batch.items()}
            for loss in mappo.losses:
                gradient, _ = minibatch_gradient(loss, state, minibatch, stats, 1000)
                with torch.no_grad():
                    mappo.update(state, loss, gradient)
        if isinstance(mappo, FollowsRounds):
            with torch.no_grad():
                mappo.after_round(state, sums)
    actor.close()
    return mappo, state


@pytest.mark.usefixtures("leaving")
@pytest.mark.parametrize("name", ["mappo", "ippo"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {**NORMALIZED, "huber_delta": 1.0, "value_clip_range": 0.2},
        {"shared_parameters": False, "value_after_leaving": False},
        {**MEMORY, "normalize_observation": True},
    ],
    ids=["plain", "normalised", "apart", "memory"],
)
def test_what_they_observe_after_leaving_changes_no_byte(
    make_context: MakeContext, name: str, settings: dict[str, object]
):
    """Parameters and normalisers have the same bytes after rounds of a real pool with zeros, large numbers and NaN."""
    algorithm = {"name": name, "hidden": [8], "minibatches": 2, "epochs": 2, **settings}
    zeros, large, none = (learned(make_context, algorithm, 3, junk=junk)[1] for junk in (0.0, 7e5, np.nan))
    for other in (large, none):
        for group, params in zeros.params.items():
            assert torch.equal(other.params[group].flat, params.flat), group
            assert bool(params.flat.isfinite().all())
        assert all(torch.equal(other.targets[key], value) for key, value in zeros.targets.items())


@pytest.mark.usefixtures("leaving")
@pytest.mark.parametrize("name", ["mappo", "ippo"])
@pytest.mark.parametrize("follows", [True, False])
def test_a_team_learns_though_one_agent_leaves(make_context: MakeContext, name: str, follows: bool):
    """Both agents come to choose what they are shown; at first they do so in a third of the steps."""
    algorithm = {
        "name": name, "hidden": [16], "epochs": 10, "minibatches": 2, "learning_rate": 0.01,
        "team_reward": False, "discount": 0.9, "value_after_leaving": follows,
    }  # fmt: skip
    mappo, state = learned(make_context, algorithm, 8)
    numbers = torch.eye(3).unsqueeze(1).expand(3, 2, 3).reshape(3, 6)
    acted, _ = mappo.act(state.params, None, torch.cat([torch.ones(3, 6), numbers], 1), torch.zeros(3, 2, 3))
    assert acted["action"].tolist() == [[0, 0], [1, 1], [2, 2]]


@pytest.mark.usefixtures("leaving")
@pytest.mark.parametrize("name", ["mappo", "ippo"])
def test_a_team_that_pays_for_time_keeps_its_agents_only_if_their_returns_go_on(make_context: MakeContext, name: str):
    """Greedily, before the first step: an agent stays to shorten the work, and leaves where that ends its costs."""
    choices = {}
    for follows in (True, False):
        algorithm = {
            "name": name, "hidden": [16], "epochs": 10, "minibatches": 2, "learning_rate": 0.01,
            "discount": 0.99, "value_after_leaving": follows,
        }  # fmt: skip
        mappo, state = learned(make_context, algorithm, 8, env_id="Deserting-v0")
        begun = torch.tensor([[1.0, 0.0, 1.0, 1.0, 4.0, 4.0]])
        acted, _ = mappo.act(state.params, None, begun, torch.zeros(1, 2, 2))
        choices[follows] = acted["action"][0].tolist()
    assert choices == {True: [0, 0], False: [0, 1]}


@pytest.mark.usefixtures("leaving")
@pytest.mark.parametrize("name", slow_after(1, ["mappo", "ippo"]))
@pytest.mark.parametrize(
    "options",
    [
        ("--algorithm.normalize-observation", "true", "--algorithm.normalize-reward", "true"),
        ("--algorithm.value-after-leaving", "false", "--algorithm.shared-parameters", "false"),
        ("--algorithm.network", "recurrent", "--algorithm.features", "8", "--algorithm.normalize-value", "true"),
    ],
    ids=["normalised", "apart", "memory"],
)
def test_the_checks_of_an_algorithm_pass(name: str, options: tuple[str, ...]):
    """On rows in which agents leave: parts add up, nothing leaks over an end, kernels compute what torch does."""
    report = check_one_algorithm(name, "Leaving-v0", ["--algorithm.hidden", "[8]", *options])
    assert report.passed, report


def test_no_setting_for_it_is_part_of_older_runs_identity():
    """Their environments could not say that an agent had left: such a row was refused."""
    assert "value_after_leaving" not in MAPPOSettings().identity()
    assert IPPOSettings(value_after_leaving=False).identity()["value_after_leaving"] is False

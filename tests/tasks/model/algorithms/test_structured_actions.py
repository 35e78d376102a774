"""Algorithms learn structured actions of every kind, and those that can't refuse them by name."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from penstock.storage.errors import ConfigError
from penstock.tasks.environments.factory import make_pool
from penstock.tasks.model.algorithms.behaviour_cloning import BehaviourCloning
from penstock.tasks.model.algorithms.iql import IQL
from penstock.tasks.roles.acting.tile import RoundBuffers, TileActor
from penstock.tasks.roles.learning.gradients import minibatch_gradient
from penstock.tasks.roles.learning.window import RoundWindow
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.config.offline import BehaviourCloningSettings, IQLSettings
from penstock.tasks.setup.config.replay import build_replay_config
from penstock.tasks.specs import State, Trajectory

from ....support.environments.structured_environments import BEST, SPACES, STEPS, environment_id
from ....support.slow import slow_after

if TYPE_CHECKING:
    from penstock.tasks.model.algorithms.contract import Algorithm
    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.specs import Batch

    from ...conftest import MakeContext

NEAR = {"MultiDiscrete": 0.55, "MultiBinary": 0.35, "Integers": 0.2, "Hybrid": 0.6, "Pair": 0.55}
"""The most by which a learned policy's mean reward may be below the best."""


def settings(kind: str, name: str, **algorithm: Any) -> dict[str, Any]:
    return {
        "environment": {"id": environment_id(kind), "num_envs": 16, "envs_per_tile": 16, "max_episode_steps": None},
        "algorithm": {"name": name, "hidden": [32], **algorithm},
        "schedule": {"round_steps": 32},
    }


def learn(algorithm: Algorithm, state: State, batch: Batch, seed: int) -> State:
    """Learn a round's training rows, as a learner does."""
    stats = {name: float(value) for name, value in algorithm.stats(batch).items()}
    rows = len(next(iter(batch.values())))
    for places in algorithm.plan(torch.Generator().manual_seed(seed), RoundWindow.of_round(rows)):
        part = {name: column[places] for name, column in batch.items()}
        for loss in algorithm.losses:
            gradient, _ = minibatch_gradient(loss, state, part, stats, 1 << 20)
            with torch.no_grad():
                state = algorithm.update(state, loss, gradient)
        with torch.no_grad():
            state = algorithm.after_minibatch(state)
    return state


def trained(context: RunContext, rounds: int) -> tuple[State, list[Trajectory]]:
    """Act and learn some rounds in this process; return the state and the rounds."""
    torch.set_num_threads(1)
    algorithm = context.algorithm
    state, actor, found = algorithm.init(1), TileActor(context, 0), []
    actor.start()
    for number in range(rounds):
        buffers = RoundBuffers(context, 0)
        end = actor.act_round(number, {name: state.params[name] for name in algorithm.actor_groups}, buffers).end
        columns = {name: torch.from_numpy(array) for name, array in buffers.arrays.items()}
        ends = torch.from_numpy(end.bootstrap_rows), torch.from_numpy(end.bootstrap_observation)
        found.append(Trajectory(columns, *ends))
        with torch.no_grad():
            batch = algorithm.post(state.params, found[-1])
        state = learn(algorithm, state, batch, number)
    actor.close()
    return state, found


def mean_reward(context: RunContext, algorithm: Algorithm | None, state: State | None) -> float:
    """Play greedily for 30 episodes, or at random without an algorithm, as evaluations do."""
    with closing(make_pool(context.config, 30)) as pool:
        pool.reset_ids(np.arange(30, dtype=np.uint64))
        pool.action_space.seed(3)
        total = 0.0
        for _ in range(STEPS):
            if algorithm is None or state is None:
                action = pool.action_space.sample()
            else:
                noise = torch.zeros((30, *algorithm.noise.shape))
                with torch.inference_mode():
                    action = algorithm.act(state.params, None, torch.from_numpy(pool.observation), noise)[0]["action"]
            total += float(np.mean(pool.step(np.asarray(action))[1]))
    return total / STEPS


@pytest.mark.parametrize(
    ("name", "kind"),
    slow_after(1, [("ppo", "Hybrid"), *(("ppo", kind) for kind in SPACES if kind != "Hybrid"), ("impala", "Hybrid")]),
)
def test_a_policy_learns_actions_of_every_kind(make_context: MakeContext, kind: str, name: str):
    """Greedy play comes to a bar that random play is far from."""
    own = {"epochs": 6, "minibatches": 4} if name == "ppo" else {"minibatches": 4, "entropy_weight": 0.0}
    context = make_context(settings(kind, name, learning_rate=1e-2, discount=0.1, **own))
    bar = BEST[kind] - NEAR[kind]
    assert mean_reward(context, None, None) < bar - 0.1
    state, _ = trained(context, 12 if name == "ppo" else 40)
    assert mean_reward(context, context.algorithm, state) > bar


@pytest.mark.slow
def test_a_policy_with_a_memory_learns_them(make_context: MakeContext):
    """Training rows are sequences: log-probabilities of `[rows, steps, ...]`."""
    recurrent = {"network": "recurrent", "features": 16, "sequence_steps": 8}
    context = make_context(
        settings("Hybrid", "ppo", learning_rate=1e-2, discount=0.1, epochs=6, minibatches=4, **recurrent)
    )
    _, rounds = trained(context, 8)
    first, last = (float(found.columns["reward"].mean()) for found in (rounds[0], rounds[-1]))
    assert last > first + 0.3


@pytest.mark.parametrize("kind", slow_after(1, ["Integers", "Hybrid", "MultiDiscrete"]))
def test_stored_actions_are_cloned_and_improved_on(make_context: MakeContext, kind: str):
    """Behaviour cloning imitates the rows of a policy that learns; IQL learns a better one than theirs."""
    context = make_context(settings(kind, "ppo", learning_rate=1e-2, discount=0.1, epochs=6, minibatches=4))
    _, rounds = trained(context, 16)
    common = {"hidden": (32,), "learning_rate": 1e-2, "epochs": 8, "minibatch_rows": 128}
    cloning = BehaviourCloning(BehaviourCloningSettings(**common), context.environment)
    iql = IQL(
        IQLSettings(**common, discount=0.1, expectile=0.8, inverse_temperature=10.0, target_rate=0.05),
        context.environment,
    )
    for algorithm, chosen in ((cloning, rounds[8:]), (iql, rounds[:8])):
        acted = float(torch.stack([found.columns["reward"].mean() for found in chosen]).mean())
        state = algorithm.init(1)
        for number, found in enumerate(chosen):
            with torch.no_grad():
                batch = algorithm.post({}, found)
            state = learn(algorithm, state, batch, number)
        learned = mean_reward(context, algorithm, state)
        assert learned > acted + (0.3 * (BEST[kind] - acted) if algorithm is iql else 0.0)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"name": "dqn"}, "'dqn': it needs discrete actions, and .*Hybrid-v0 takes structured actions; choose ppo"),
        ({"name": "qr_dqn"}, "makes a Discrete of them"),
        ({"name": "sac"}, "'sac': it needs vectors as actions.*makes a Box of floats of them"),
        ({"name": "td3"}, "takes structured actions"),
        ({"name": "mappo"}, "has one reward and no agent axis"),
        ({"name": "ppo", "actions": "clipped"}, "actions = 'clipped': .* takes structured actions.*leave it out"),
    ],
)
def test_what_cannot_learn_them_refuses_by_name(values: dict[str, Any], said: str):
    """Before anything starts, with what would be right."""
    environment = {"id": environment_id("Hybrid"), "num_envs": 2, "envs_per_tile": 2}
    with pytest.raises(ConfigError, match=said):
        make_pool(build_config({"algorithm": values, "environment": environment}), 1)


class OneNumber(gymnasium.Env[Any, Any]):
    """Takes a number that is no vector."""

    observation_space = Box(-1.0, 1.0, (2,), np.float32)
    action_space = Box(-1.0, 1.0, (), np.float32)


gymnasium.register("test/OneNumber-v0", OneNumber)


@pytest.mark.parametrize("name", ["ppo", "impala", "sac", "td3"])
def test_a_single_number_is_refused_with_what_would_be_right(name: str):
    """The first step of a run would fail by an axis that is not there."""
    environment = {"id": "test/OneNumber-v0", "num_envs": 2, "envs_per_tile": 2}
    with pytest.raises(
        ConfigError, match=r"OneNumber-v0 takes a single number, a Box of shape \(\), expected a vector"
    ):
        make_pool(build_config({"algorithm": {"name": name}, "environment": environment}), 1)


def test_a_replay_refuses_them_too():
    """TD3+BC learns from stored rows, in an environment that the run's settings do not name."""
    config = build_replay_config({"source": {"runs": ["any"]}, "algorithm": {"name": "td3_bc"}})
    environment = build_config({"environment": {"id": environment_id("Hybrid")}}).environment
    with pytest.raises(ConfigError, match="'td3_bc': it needs vectors as actions"):
        make_pool(config.model_copy(update={"environment": environment}), 1)

"""Networks that settings choose: learning computes what acting did, with images and with a memory."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from penstock import native
from penstock.storage.errors import ConfigError
from penstock.storage.shards.specs import Spec
from penstock.tasks.environments.factory import make_pool
from penstock.tasks.model.algorithms.impala import IMPALA
from penstock.tasks.model.algorithms.ppo import PPO
from penstock.tasks.model.algorithms.registry import make_algorithm
from penstock.tasks.model.nn.network import Network
from penstock.tasks.roles.acting.tile import RoundBuffers, TileActor
from penstock.tasks.roles.learning.gradients import minibatch_gradient
from penstock.tasks.roles.learning.window import RoundWindow
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.config.on_policy import IMPALASettings, PPOSettings
from penstock.tasks.specs import ActionSpec, EnvironmentSpec, LossInputs, Trajectory

from ....support.algorithms.ppo_cases import random
from ....support.slow import slow_after

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from penstock.tasks.model.algorithms.contract import Algorithm
    from penstock.tasks.roles.acting.tile import ActedRound
    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.specs import Batch, State

    from ...conftest import MakeContext

MEMORY: dict[str, Any] = {"network": "recurrent", "features": 8, "sequence_steps": 4}
BOTH = [
    pytest.param(PPOSettings, id="ppo"),
    pytest.param(partial(PPOSettings, shared_network=True), id="shared"),
    pytest.param(IMPALASettings, id="impala"),
]


@pytest.fixture(
    params=[("ppo", "CartPole-v1"), ("ppo", "Pendulum-v1"), ("shared", "Pendulum-v1"), ("impala", "CartPole-v1")]
)
def context(request: pytest.FixtureRequest, make_context: MakeContext) -> RunContext:
    """Episodes end every five steps at the latest, rounds have eight, sequences four."""
    name, environment = request.param
    shared = {"shared_network": True} if name == "shared" else {}
    context = make_context({"environment": {"id": environment}, "algorithm": {**MEMORY, **shared}})
    if name != "impala":
        return context
    return replace(context, algorithm=IMPALA(IMPALASettings(hidden=(8,), minibatches=2, **MEMORY), context.environment))


def state_of(algorithm: Algorithm) -> State:
    """With a policy that is far from uniform."""
    state = algorithm.init(3)
    with torch.no_grad():
        for group in state.params.values():
            group.flat.mul_(3.0)
            group["1.weight"].mul_(10.0)
    return state


def acted_rounds(context: RunContext, state: State, rounds: int) -> list[ActedRound]:
    actor = TileActor(context, 0)
    actor.start()
    return [actor.act_round(0, state.params, RoundBuffers(context, 0)) for _ in range(rounds)]


def trajectory_of(acted: ActedRound) -> Trajectory:
    columns = {name: torch.from_numpy(array) for name, array in acted.buffers.arrays.items()}
    return Trajectory(
        columns, torch.from_numpy(acted.end.bootstrap_rows), torch.from_numpy(acted.end.bootstrap_observation)
    )


def posted(algorithm: Algorithm, state: State, trajectory: Trajectory) -> tuple[Batch, dict[str, float]]:
    with torch.no_grad():
        batch = algorithm.post(state.params, trajectory)
        return batch, {name: float(value) for name, value in algorithm.stats(batch).items()}


def test_learning_and_acting_have_the_same_memory(context: RunContext):
    """In any round, over ends of episodes too, no ratio differs from 1 but by rounding; and memory does matter."""
    algorithm, state = context.algorithm, state_of(context.algorithm)
    for acted in acted_rounds(context, state, 3):
        batch, stats = posted(algorithm, state, trajectory_of(acted))
        assert {len(column) for column in batch.values()} == {3 * 8 // 4}
        assert batch["fresh"].any(), "no episode began within a sequence"
        _, outputs = algorithm.losses[0].function(state.params, LossInputs(batch, 6, stats))
        assert outputs["kl"].shape == (6,)
        assert outputs["kl"].max() < 1e-6
    batch["memory"] = torch.zeros_like(batch["memory"])
    _, outputs = algorithm.losses[0].function(state.params, LossInputs(batch, 6, stats))
    assert outputs["kl"].max() > 1e-4, "without the stored memory nothing should fit"


def test_values_are_of_the_memory_that_led_to_them(context: RunContext):
    """Values of rows and after bootstrap rows equal those from stepping one environment at a time."""
    algorithm: Any = context.algorithm
    state = state_of(algorithm)
    group = algorithm._groups[-1] if isinstance(algorithm, PPO) else "network"
    acted = acted_rounds(context, state, 2)[1]
    trajectory = trajectory_of(acted)
    memory = trajectory.columns["memory"][0]
    memory = memory[:, -1] if isinstance(algorithm, PPO) else memory
    network = algorithm._network
    with torch.no_grad():
        observation = network.prepared(trajectory.columns["observation"].flatten(0, 1))
        final = network.prepared(trajectory.bootstrap_observation)
        outputs, finals = network.over_round(state.params[group], trajectory, observation, final, memory)
        for env in range(3):
            own = memory[env : env + 1]
            for step in range(8):
                seen = network.prepared(trajectory.columns["observation"][step, env : env + 1])
                output, own = network.step(state.params[group], own, seen)
                torch.testing.assert_close(outputs[step, env], output[0])
                at = np.flatnonzero(acted.end.bootstrap_rows == step * 3 + env)
                if len(at):
                    seen = network.prepared(trajectory.bootstrap_observation[at])
                    torch.testing.assert_close(finals[at], network.step(state.params[group], own, seen)[0])
                    own = torch.zeros_like(own)


def test_parts_of_a_minibatch_of_sequences_add_up(context: RunContext):
    """Whole or in blocks of two sequences: gradients are the same, to rounding."""
    algorithm, state = context.algorithm, state_of(context.algorithm)
    batch, stats = posted(algorithm, state, trajectory_of(acted_rounds(context, state, 1)[0]))
    batch["log_probability"] = batch["log_probability"] + 0.1 * random(6, 4)
    for loss in algorithm.losses:
        whole, _ = minibatch_gradient(loss, state, batch, stats, 100)
        parts, outputs = minibatch_gradient(loss, state, batch, stats, 2)
        # A small entry is a sum of large ones: it is as exact as they are.
        torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-6 * max(1.0, float(whole.abs().max())))
        assert whole.abs().max() > 0
        assert {values.shape for values in outputs.values()} == {(6,)}


def test_a_recurrent_policy_learns_a_task_that_needs_memory():
    """A cue is shown in an episode's first step, and pays in its third, where nothing is seen."""
    environment = EnvironmentSpec("cue", Spec("float32", (2,)), ActionSpec("discrete", n=2), None, None)
    settings = {"features": 16, "sequence_steps": 6, "hidden": (), "learning_rate": 1e-2, "minibatches": 1}
    algorithm = PPO(PPOSettings(network="recurrent", discount=0.9, **settings), environment)  # type: ignore[arg-type]
    state, envs, generator = algorithm.init(1), 64, torch.Generator().manual_seed(1)
    paid = 0.0
    for round_ in range(25):
        cue = torch.randint(2, (2, envs), generator=generator)
        observation = torch.zeros(6, envs, 2)
        observation[0], observation[3] = torch.eye(2)[cue[0]], torch.eye(2)[cue[1]]
        rows: list[dict[str, Tensor]] = []
        carry = algorithm.initial_carry(envs)
        for step in range(6):
            if step == 3:
                carry = algorithm.initial_carry(envs)
            noise = -torch.log(-torch.log(torch.rand((envs, 2), generator=generator).clamp(1e-6, 1 - 1e-6)))
            with torch.no_grad():
                acted, carry = algorithm.act(state.params, carry, observation[step], noise)
            rows.append(acted)
        columns = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        reward, ended = torch.zeros(6, envs), torch.zeros(6, envs, dtype=torch.uint8)
        ended[2], ended[5] = 1, 1
        reward[2], reward[5] = (columns["action"][2] == cue[0]).float(), (columns["action"][5] == cue[1]).float()
        columns |= {"observation": observation, "reward": reward, "terminated": ended}
        columns["truncated"] = torch.zeros_like(ended)
        last = torch.cat([torch.arange(2 * envs, 3 * envs), torch.arange(5 * envs, 6 * envs)])
        batch, stats = posted(algorithm, state, Trajectory(columns, last, torch.zeros(len(last), 2)))
        for index in algorithm.plan(torch.Generator().manual_seed(round_), RoundWindow.of_round(envs)):
            minibatch = {name: column[index] for name, column in batch.items()}
            for loss in algorithm.losses:
                gradient, _ = minibatch_gradient(loss, state, minibatch, stats, 4096)
                with torch.no_grad():
                    state = algorithm.update(state, loss, gradient)
        paid = (reward.sum() / (2 * envs)).item()
    assert paid > 0.9, "without memory, half of the cues are met"


@pytest.mark.parametrize("kind", slow_after(1, BOTH))
@pytest.mark.parametrize("network", ["nature", "residual"])
def test_atari_frames_are_learned_from(kind: Callable[..., PPOSettings | IMPALASettings], network: Any):
    """A round of Pong as its pool gives it, bytes and all: acting and learning agree, and an update is finite."""
    pytest.importorskip("ale_py", reason="comes with penstock-rl[atari]")
    pool = native.make("ALE/Pong-v5", 2)
    environment = EnvironmentSpec.from_pool("ALE/Pong-v5", dict(pool.environment))
    settings = kind(network=network, features=32, hidden=(), minibatches=2)
    algorithm: Any = make_algorithm(settings, environment)
    state = algorithm.init(1)
    seen, rows = [pool.reset(seed=1)[0]], []
    for step in range(3):
        with torch.no_grad():
            acted, carry = algorithm.act(
                state.params, None, torch.from_numpy(seen[-1]), random(2, *algorithm.noise.shape, seed=step)
            )
        assert carry is None
        rows.append(acted)
        seen.append(pool.step(acted["action"].numpy())[0])
    columns = {name: torch.stack([row[name] for row in rows]) for name in algorithm.rows}
    flags = torch.zeros(3, 2, dtype=torch.uint8)
    columns |= {"observation": torch.from_numpy(np.stack(seen[:3])), "reward": torch.ones(3, 2)}
    columns |= {"terminated": flags, "truncated": flags}
    batch, stats = posted(algorithm, state, Trajectory(columns, torch.tensor([4, 5]), torch.from_numpy(seen[3])))
    assert (batch["observation"].dtype, batch["observation"].shape) == (torch.uint8, (6, 84, 84, 4))
    for loss in algorithm.losses:
        gradient, outputs = minibatch_gradient(loss, state, batch, stats, 4)
        assert outputs.get("kl", torch.zeros(1)).max() < 1e-5
        assert torch.isfinite(gradient).all()
        assert gradient.abs().max() > 0
    pool.close()


def test_nature_takes_images_with_their_channels_last():
    """The same parameters give the same numbers for the same pixels in both orders; others are of channels first."""
    first = Network("nature", Spec("uint8", (3, 36, 40)), 8, (6,))
    last = Network("nature", Spec("uint8", (36, 40, 3)), 8, (6,))
    made = [network.init(2, 1.0, torch.Generator().manual_seed(1)) for network in (first, last)]
    assert all(torch.equal(made[0][name], made[1][name]) for name in made[0])
    seen = torch.randint(256, (5, 36, 40, 3), generator=torch.Generator().manual_seed(2), dtype=torch.uint8)
    prepared = [first.prepared(seen.movedim(-1, 1)), last.prepared(seen)]
    assert torch.equal(*prepared)
    outputs = [network.step(made[0], None, prepared[0])[0] for network in (first, last)]
    assert torch.equal(*outputs)
    assert outputs[0].std() > 0


def test_a_plain_perceptron_keeps_its_identity():
    """Settings of networks are part of a run's identity where they are set; runs from before them have the same."""
    plain = build_config({"algorithm": {"name": "ppo"}}).identity()
    assert not {"network", "features", "sequence_steps"} & set(plain["algorithm"])
    memory = build_config({"algorithm": {"name": "impala", **MEMORY}}).identity()
    assert memory["algorithm"].items() >= MEMORY.items()


def test_a_network_that_does_not_fit_is_refused():
    """Images, sequences and minibatches are checked before anything starts."""
    for network in ("nature", "residual"):
        with pytest.raises(ConfigError, match=rf"network = '{network}': CartPole-v1 observes \[4\], expected images"):
            make_pool(build_config({"algorithm": {"network": network}}), 1)
    with pytest.raises(ConfigError, match=r"network = 'small': CartPole-v1 observes \[4\], expected grids \[height"):
        make_pool(build_config({"algorithm": {"network": "small"}}), 1)
    with pytest.raises(ConfigError, match=r"sequence_steps = 5: schedule.round_steps = 64 is not a multiple"):
        build_config({"algorithm": {"network": "recurrent", "sequence_steps": 5}})
    small = {"environment": {"num_envs": 1, "envs_per_tile": 1}, "schedule": {"round_steps": 32}}
    with pytest.raises(ConfigError, match=r"minibatches = 9, but a round has only 8 rows .* / algorithm\.sequence"):
        build_config({"algorithm": {**MEMORY, "minibatches": 9}, **small})

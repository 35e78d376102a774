"""SAC and TD3 with a memory against stepping one environment at a time, and that they learn what needs one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from penstock.storage.errors import ConfigError
from penstock.tasks.environments.factory import make_pool
from penstock.tasks.model.algorithms.contract import WindowSpec
from penstock.tasks.model.algorithms.sac import SAC
from penstock.tasks.model.algorithms.td3 import TD3
from penstock.tasks.model.nn.layers import gru, part
from penstock.tasks.roles.learning.gradients import minibatch_gradient
from penstock.tasks.roles.learning.minibatches import gather_minibatches, loss_noise, rows_of, take_share
from penstock.tasks.roles.learning.window import RoundWindow
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.config.off_policy import SACSettings, TD3Settings
from penstock.tasks.setup.config.without_effect import settings_without_effect
from penstock.tasks.specs import LossInputs, State, Trajectory

from ....support.algorithms.ppo_cases import VECTORS, random

STEPS, ENVS, SEQUENCE, BURN_IN, DISCOUNT, FEATURES = 12, 3, 4, 3, 0.9, 6
ROWS = ENVS * STEPS // SEQUENCE
MEMORY: dict[str, Any] = {
    "network": "recurrent",
    "features": FEATURES,
    "hidden": (8,),
    "sequence_steps": SEQUENCE,
    "burn_in_steps": BURN_IN,
    "discount": DISCOUNT,
    "random_steps": 0,
}
SMALL = SAC(SACSettings(**MEMORY), VECTORS)
DELAYED = TD3(TD3Settings(**MEMORY), VECTORS)
BOTH = [pytest.param(SMALL, id="sac"), pytest.param(DELAYED, id="td3")]
TWINS = ("first/", "second/")


def apart(algorithm: Any) -> State:
    """A state whose targets are of other networks, with lively actors."""
    state, other = algorithm.init(1), algorithm.init(2)
    for group in (state.params["actor"], other.params["actor"]):
        group.flat.add_(0.3 * random(len(group.flat), seed=6))
    of_actor = {f"actor/{name}": value.detach() for name, value in other.params["actor"].items()}
    return replace(state, targets={**other.targets, **(of_actor if isinstance(algorithm, TD3) else {})})


def acted(algorithm: Any) -> Trajectory:
    """A round of three environments, acted with parameters of long ago; the second one's episodes end within."""
    old, generator = algorithm.init(7), torch.Generator().manual_seed(3)
    observation, carry = random(STEPS, ENVS, 3, seed=4), random(ENVS, 3, FEATURES, seed=5)
    ended = torch.zeros(STEPS, ENVS, dtype=torch.uint8)
    truncated = ended.clone()
    ended[4, 1], truncated[9, 1] = 1, 1
    rows: list[dict[str, Tensor]] = []
    for step in range(STEPS):
        noise = torch.randn(ENVS, *algorithm.noise.shape, generator=generator)
        with torch.no_grad():
            row, carry = algorithm.act(old.params, carry, observation[step], noise)
        carry = carry * ((ended[step] | truncated[step]) == 0).view(-1, 1, 1)
        rows.append(row)
    columns = {name: torch.stack([row[name] for row in rows]) for name in algorithm.rows}
    columns |= {"observation": observation, "reward": random(STEPS, ENVS, seed=6)}
    columns |= {"terminated": ended, "truncated": truncated}
    last = torch.tensor([4 * ENVS + 1, 9 * ENVS + 1, *range((STEPS - 1) * ENVS, STEPS * ENVS)])
    return Trajectory(columns, last, random(len(last), 3, seed=8))


def stepped(weights: Any, number: int, round_: Trajectory) -> tuple[Tensor, Tensor]:
    """Return a network's memory at each step, and after it, `[rows, steps, features]`, stepped one by one."""
    body, columns = part(weights, "body."), round_.columns
    after = {int(row): at for row, at in zip(round_.bootstrap_rows, round_.bootstrap_observation, strict=True)}
    at, later = torch.zeros(2, STEPS, ENVS, FEATURES)
    for env in range(ENVS):
        for start in range(0, STEPS, SEQUENCE):
            first = max(0, start - BURN_IN)
            memory = columns["memory"][first, env : env + 1, number]
            for step in range(first, start + SEQUENCE):
                memory = gru(body, memory, columns["observation"][step, env : env + 1])
                if step >= start:
                    at[step, env] = memory[0]
                    seen = after.get(step * ENVS + env)
                    seen = columns["observation"][step + 1, env] if seen is None else seen
                    later[step, env] = gru(body, memory, seen.unsqueeze(0))[0]
                if step * ENVS + env in after:
                    memory = torch.zeros_like(memory)
    return by_sequence(at), by_sequence(later)


def by_sequence(values: Tensor) -> Tensor:
    """Cut `[T, B, ...]` into `[rows, steps, ...]`, sequences of one time after the other."""
    return values.unflatten(0, (-1, SEQUENCE)).transpose(1, 2).flatten(0, 1)


def perceptron(weights: Any, inputs: Tensor) -> Tensor:
    hidden = torch.relu(torch.nn.functional.linear(inputs, weights["0.weight"], weights["0.bias"]))
    return torch.nn.functional.linear(hidden, weights["1.weight"], weights["1.bias"])


def judged(critics: Any, memories: dict[str, Tensor], action: Tensor, name: str) -> Tensor:
    return perceptron(part(critics, name), torch.cat([memories[name], action], -1)).squeeze(-1)


def squashed(weights: Any, memory: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The squashed action and its log-density, in float64."""
    mean, log_std = perceptron(weights, memory).double().chunk(2, -1)
    action = (mean + noise * log_std.exp()).tanh()
    density = torch.distributions.Normal(mean, log_std.exp()).log_prob(mean + noise * log_std.exp())
    return action.float(), (density - (1 - action.square()).log()).sum(-1).float()


def found(algorithm: Any, name: str, state: State, batch: dict[str, Tensor], noise: Tensor) -> Any:
    loss = next(loss for loss in algorithm.losses if loss.name == name)
    inputs = LossInputs(batch, 10, targets=state.targets, noise=noise if loss.noise else None)
    return loss.function(state.params, inputs)


@pytest.mark.parametrize("algorithm", BOTH)
@torch.no_grad()
def test_losses_are_those_of_stepping_one_environment_at_a_time(algorithm):
    """Each network has its own memory, stored, burnt in and emptied where episodes end; what followed has it, too."""
    state, round_ = apart(algorithm), acted(algorithm)
    batch, noise = algorithm.post({}, round_), random(ROWS, SEQUENCE, 2, seed=9)
    assert {len(column) for column in batch.values()} == {ROWS}
    assert all(loss.noise is None or loss.noise.shape == (SEQUENCE, 2) for loss in algorithm.losses)
    actor, critics, targets = state.params["actor"], state.params["critic"], state.targets
    (now, after) = stepped(actor, 0, round_)
    seen = {name: stepped(part(critics, name), 1 + at, round_)[0] for at, name in enumerate(TWINS)}
    next_seen = {name: stepped(part(targets, name), 1 + at, round_)[1] for at, name in enumerate(TWINS)}
    if isinstance(algorithm, SAC):
        action, density = squashed(actor, after, noise)
        entropy = -density
        chosen, chosen_density = squashed(actor, now, noise)
        value = torch.minimum(*(judged(critics, seen, chosen, name) for name in TWINS))
        expected = {"actor": (chosen_density - value).mean(-1).sum() / 10}
        expected["temperature"] = torch.tensor(0.0)  # times the logarithm of 1
        assert found(algorithm, "temperature", state, batch, noise)[1]["temperature"].tolist() == [1.0] * ROWS
    else:
        followed = part(targets, "actor/")
        action = perceptron(followed, stepped(followed, 0, round_)[1]).tanh()
        action, entropy = (action + (0.2 * noise).clamp(-0.5, 0.5)).clamp(-1, 1), torch.zeros(ROWS, SEQUENCE)
        value = judged(critics, seen, perceptron(actor, now).tanh(), "first/")
        expected = {"actor": -value.mean(-1).sum() / 10}
    target = torch.minimum(*(judged(targets, next_seen, action, name) for name in TWINS)) + entropy
    alive = by_sequence(1.0 - round_.columns["terminated"].float())
    target = by_sequence(round_.columns["reward"]) + DISCOUNT * alive * target
    stored = by_sequence(round_.columns["action"]) / 2
    errors = sum(0.5 * (judged(critics, seen, stored, name) - target).square() for name in TWINS)
    expected["critic"] = errors.mean(-1).sum() / 10
    for name, scalar in expected.items():
        loss, outputs = found(algorithm, name, state, batch, noise)
        torch.testing.assert_close(loss, scalar, rtol=1e-4, atol=1e-5, msg=name)
        assert all(each.shape == (ROWS,) for each in outputs.values())


@pytest.mark.parametrize("algorithm", BOTH)
def test_burn_in_has_no_gradient(algorithm):
    """Steps before a sequence change its losses, and no gradient passes to them; a round's first has none."""
    state, batch, noise = apart(algorithm), algorithm.post({}, acted(algorithm)), random(ROWS, SEQUENCE, 2, seed=9)
    assert batch["burned"].tolist() == [False] * ENVS + [True] * 2 * ENVS
    moved = batch["observation"].clone()
    moved[:, :BURN_IN] += 1.0
    for name, output in (("critic", "critic_loss"), ("actor", "entropy" if algorithm is SMALL else "actor_loss")):
        seen = batch["observation"].clone().requires_grad_()
        scalar, expected = found(algorithm, name, state, {**batch, "observation": seen}, noise)
        (gradient,) = torch.autograd.grad(scalar, seen)
        assert not gradient[:, :BURN_IN].any(), name
        assert gradient[:, BURN_IN:].any(-1).all(), name
        _, changed = found(algorithm, name, state, {**batch, "observation": moved}, noise)
        assert (changed[output] != expected[output]).tolist() == batch["burned"].tolist(), name


@pytest.mark.parametrize("algorithm", BOTH)
def test_a_memory_is_carried_and_stored_for_each_network(algorithm):
    """Actors get the critics, too; the actor's own memory alone decides the action."""
    state, carry = apart(algorithm), random(5, 3, FEATURES, seed=1)
    assert algorithm.actor_groups[:2] == ("actor", "critic")
    assert tuple(algorithm.initial_carry(5).shape) == (5, *algorithm.rows["memory"].shape)
    observation, noise = random(5, 3, seed=2), random(5, 2, seed=3)
    rows, after = algorithm.act(state.params, carry, observation, noise)
    assert torch.equal(rows["memory"], carry)
    for at, weights in enumerate((state.params["actor"], *(part(state.params["critic"], name) for name in TWINS))):
        torch.testing.assert_close(after[:, at], gru(part(weights, "body."), carry[:, at], observation))
    for at, same in ((0, False), (1, True), (2, True)):
        other = carry.clone()
        other[:, at] += 1.0
        again, _ = algorithm.act(state.params, other, observation, noise)
        assert torch.equal(again["action"], rows["action"]) == same


@pytest.mark.parametrize("kind", [SAC, TD3])
def test_each_step_counts_once(kind):
    """The normaliser and the random steps at the start count a round's steps, however many also are a burn-in."""
    settings = {**MEMORY, "normalize_observation": True, "random_steps": 50}
    algorithm: Any = kind((SACSettings if kind is SAC else TD3Settings)(**settings), VECTORS)
    state, round_ = algorithm.init(1), acted(algorithm)
    state = algorithm.after_round(state, algorithm.stats(algorithm.post({}, round_)))
    seen = round_.columns["observation"].flatten(0, 1)
    torch.testing.assert_close(state.params["observations"]["mean"].detach(), seen.mean(0))
    torch.testing.assert_close(state.params["observations"]["scale"].detach(), 1 / seen.std(0, correction=0))
    assert state.params["exploration"].flat.tolist() == [1.0]
    state = algorithm.after_round(state, algorithm.stats(algorithm.post({}, round_)))
    assert state.params["exploration"].flat.tolist() == [0.0], "72 steps of 50"


@pytest.mark.parametrize("kind", [SAC, TD3])
def test_the_window_is_in_sequences(kind):
    """`window_rows` and `warm_up_rows` stay steps; draws are of sequences."""
    settings = {**MEMORY, "window_rows": 130, "warm_up_rows": 41, "minibatch_rows": 5, "minibatches": 2}
    algorithm: Any = kind((SACSettings if kind is SAC else TD3Settings)(**settings), VECTORS)
    assert algorithm.window == WindowSpec(32, 0.0, 0, SEQUENCE)
    window, draws = RoundWindow(algorithm.window, 10), []
    for _ in range(4):
        window.begin_round()
        draws.append([len(draw.rows) for draw in algorithm.plan(torch.Generator().manual_seed(1), window)])
    assert window.rows == 30
    assert draws == [[], *[[5] * 2] * 3]


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_what_cannot_work_is_refused(name):
    """Sequences that do not fill a round, burn-in without a sequence or a memory, small windows, and images."""
    for settings, said in (
        ({"sequence_steps": 5}, r"sequence_steps = 5: schedule.round_steps = 64 is not a multiple"),
        ({"sequence_steps": 4, "burn_in_steps": 5}, r"burn_in_steps = 5 is more than algorithm.sequence_steps = 4"),
        ({"network": "mlp", "burn_in_steps": 5}, r"burn_in_steps = 5: network = 'mlp' has no memory"),
        ({"window_rows": 64}, r"window_rows = 64, but a round alone has 4096 rows"),
    ):
        with pytest.raises(ConfigError, match=said):
            build_config({"algorithm": {"name": name, "network": "recurrent", **settings}})
    unused = build_config({"algorithm": {"name": name, "sequence_steps": 8}})
    (line,) = settings_without_effect(unused, local_store=True)
    assert "sequence_steps = 8 has no effect: algorithm.network is 'mlp', which has no memory" in line
    pytest.importorskip("gymnasium.envs.box2d", reason="comes with penstock-rl[box2d]")
    images = {"environment": {"id": "CarRacing-v3"}, "algorithm": {"name": name, "network": "recurrent"}}
    with pytest.raises(ConfigError, match=r"network = 'recurrent': CarRacing-v3 observes images .*; choose nature"):
        make_pool(build_config(images), 1)


def test_runs_without_a_memory_keep_their_identity():
    """Settings of sequences are part of it only where they are set."""
    added = {"sequence_steps", "burn_in_steps"}
    for kind in (SACSettings, TD3Settings):
        assert not added & kind().identity().keys()
        assert kind(**MEMORY).identity().keys() >= added
        assert kind(**MEMORY).columns == ("action", "memory")


def cued(algorithm: Any, state: State, envs: int, generator: torch.Generator) -> tuple[Trajectory, float]:
    """Act two episodes of three steps: a cue is seen in the first, and is to be repeated in the third, unseen.

    Returns:
        The round, and how far greedy actions of third steps are from the cue, in the mean.
    """
    cue, shape = torch.randint(2, (2, envs), generator=generator) * 2.0 - 1.0, (6, envs)
    observation, reward, ended = torch.zeros(*shape, 3), torch.zeros(shape), torch.zeros(shape, dtype=torch.uint8)
    observation[0, :, 0], observation[3, :, 0], ended[2], ended[5] = cue[0], cue[1], 1, 1
    rows, distance, carry = [], 0.0, algorithm.initial_carry(envs)
    for step in range(6):
        carry = algorithm.initial_carry(envs) if step == 3 else carry
        noise = torch.randn((envs, *algorithm.noise.shape), generator=generator)
        greedy, _ = algorithm.act(state.params, carry, observation[step], 0 * noise)
        row, carry = algorithm.act(state.params, carry, observation[step], noise)
        if ended[step].all():
            wanted = 1.5 * cue[step // 3]
            reward[step] = -(row["action"][:, 0] - wanted).square()
            distance += float((greedy["action"][:, 0] - wanted).abs().mean()) / 2
        rows.append(row)
    columns = {name: torch.stack([row[name] for row in rows]) for name in algorithm.rows}
    columns |= {"observation": observation, "reward": reward, "terminated": ended, "truncated": 0 * ended}
    last = torch.cat([torch.arange(2 * envs, 3 * envs), torch.arange(5 * envs, 6 * envs)])
    return Trajectory(columns, last, torch.zeros(len(last), 3)), distance


def learned_distance(algorithm: Any, rounds: int, envs: int) -> float:
    """Return the distance from the cue in the last round, learned as the runtime does it."""
    state, generator = algorithm.init(1), torch.Generator().manual_seed(1)
    rows = 6 * envs // algorithm.settings.row_steps
    window, kept, distance = RoundWindow(algorithm.window, rows), {}, 0.0
    for round_ in range(rounds):
        with torch.no_grad():
            trajectory, distance = cued(algorithm, state, envs, generator)
            batch = algorithm.post({}, trajectory)
        window.begin_round()
        kept = {name: torch.cat([kept.get(name, column[:0]), column])[-window.rows :] for name, column in batch.items()}
        plan = algorithm.plan(torch.Generator().manual_seed(round_), window)
        shares = take_share(plan, range(rows), rows)
        for number, (share, drawn) in enumerate(gather_minibatches(partial(rows_of, kept), shares, 0)):
            for index, loss in enumerate(algorithm.losses):
                noise = loss_noise(loss.noise, 1, index, round_, number, share.places) if loss.noise else None
                gradient, _ = minibatch_gradient(loss, state, drawn, {}, 4096, None, noise)
                with torch.no_grad():
                    state = algorithm.update(state, loss, gradient)
            with torch.no_grad():
                state = algorithm.after_minibatch(state)
    return distance


@pytest.mark.parametrize("kind", [SAC, TD3])
def test_it_learns_a_task_that_needs_memory(kind):
    """A cue of 1.5 or -1.5 is repeated two steps later; without a memory the best distance from it is 1.5."""
    settings = {"hidden": (16,), "random_steps": 0, "learning_rate": 1e-2, "warm_up_rows": 1, "target_share": 0.05}
    settings |= {"window_rows": 3072, "minibatch_rows": 64, "minibatches": 8, "discount": 0.9}
    memory = {"network": "recurrent", "features": 16, "sequence_steps": 3}
    made = SACSettings if kind is SAC else TD3Settings
    distances = [learned_distance(kind(made(**settings, **each), VECTORS), 20, 32) for each in (memory, {})]
    assert distances[0] < 0.7, distances
    assert distances[1] > 1.2, distances

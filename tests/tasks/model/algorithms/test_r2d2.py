"""DQN and QR-DQN with a memory (R2D2) against stepping one environment at a time, and that they learn."""

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
from penstock.tasks.model.algorithms.dqn import DQN
from penstock.tasks.model.algorithms.qr_dqn import QRDQN
from penstock.tasks.model.nn.action_values import priorities, rescaled, restored
from penstock.tasks.model.nn.layers import part
from penstock.tasks.roles.learning.gradients import minibatch_gradient
from penstock.tasks.roles.learning.minibatches import gather_minibatches, rows_of, take_share
from penstock.tasks.roles.learning.window import RoundWindow
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.config.off_policy import DQNSettings, QRDQNSettings
from penstock.tasks.specs import LossInputs, State, Trajectory

from ....support.algorithms.ppo_cases import CHOICES, random

STEPS, ENVS, SEQUENCE, BURN_IN, RETURN_STEPS, DISCOUNT = 12, 3, 4, 3, 2, 0.9
MEMORY: dict[str, Any] = {
    "network": "recurrent",
    "features": 6,
    "hidden": (8,),
    "sequence_steps": SEQUENCE,
    "burn_in_steps": BURN_IN,
    "return_steps": RETURN_STEPS,
    "discount": DISCOUNT,
}
ALGORITHMS = [
    pytest.param(DQN(DQNSettings(**MEMORY), CHOICES), id="dqn"),
    pytest.param(DQN(DQNSettings(**MEMORY, value_rescaling=True, double=False), CHOICES), id="rescaled dqn"),
    pytest.param(QRDQN(QRDQNSettings(**MEMORY, quantiles=5), CHOICES), id="qr_dqn"),
    pytest.param(QRDQN(QRDQNSettings(**MEMORY, quantiles=5, value_rescaling=True), CHOICES), id="rescaled qr_dqn"),
]


def apart(algorithm: Any) -> State:
    """A state whose target network is another than its network, with values that differ much."""
    state, other = algorithm.init(1), algorithm.init(2)
    with torch.no_grad():
        state.params["value"].flat.mul_(2.0)
    return replace(state, targets=other.targets)


def acted(algorithm: Any) -> Trajectory:
    """A round of three environments, acted with parameters of long ago; the second one's episodes end within."""
    old, generator = algorithm.init(7), torch.Generator().manual_seed(3)
    observation, carry = random(STEPS, ENVS, 3, seed=4), random(ENVS, 6, seed=5)
    ended = torch.zeros(STEPS, ENVS, dtype=torch.uint8)
    truncated = ended.clone()
    ended[4, 1], truncated[9, 1] = 1, 1
    rows: list[dict[str, Tensor]] = []
    for step in range(STEPS):
        noise = torch.rand(ENVS, *algorithm.noise.shape, generator=generator)
        with torch.no_grad():
            row, carry = algorithm.act(old.params, carry, observation[step], noise)
        carry = carry * ((ended[step] | truncated[step]) == 0).unsqueeze(-1)
        rows.append(row)
    columns = {name: torch.stack([row[name] for row in rows]) for name in algorithm.rows}
    columns |= {"observation": observation, "reward": random(STEPS, ENVS, seed=6)}
    columns |= {"terminated": ended, "truncated": truncated}
    last = torch.tensor([4 * ENVS + 1, 9 * ENVS + 1, *range((STEPS - 1) * ENVS, STEPS * ENVS)])
    return Trajectory(columns, last, random(len(last), 3, seed=8))


def stepped(algorithm: Any, params: Any, round_: Trajectory) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
    """Return outputs of each step, and of what followed its return, by one step of one environment at a time."""
    network, columns = algorithm._network, round_.columns
    after = {int(row): at for row, at in zip(round_.bootstrap_rows, round_.bootstrap_observation, strict=True)}
    outputs: list[list[Tensor]] = [[] for _ in range(STEPS)]
    following: list[list[Tensor]] = [[] for _ in range(STEPS)]
    for env in range(ENVS):
        for start in range(0, STEPS, SEQUENCE):
            first = max(0, start - BURN_IN)
            memory, memories = columns["memory"][first, env : env + 1], {}
            for step in range(first, start + SEQUENCE):
                output, memory = network.step(params, memory, columns["observation"][step, env : env + 1])
                memories[step] = memory
                if step >= start:
                    outputs[step].append(output[0])
                if step * ENVS + env in after and step < STEPS - 1:
                    memory = torch.zeros_like(memory)
            for step in range(start, start + SEQUENCE):
                last = step
                while last < min(step + RETURN_STEPS, start + SEQUENCE) - 1 and last * ENVS + env not in after:
                    last += 1
                seen = after.get(last * ENVS + env)
                seen = columns["observation"][last + 1, env] if seen is None else seen
                following[step].append(network.step(params, memories[last], seen.unsqueeze(0))[0][0])
    return outputs, following


def returns_of(round_: Trajectory) -> tuple[Tensor, Tensor]:
    """Return the rewards of up to two steps that end with episode and sequence, and the factors of what follows."""
    columns, returns, factors = round_.columns, torch.zeros(STEPS, ENVS), torch.zeros(STEPS, ENVS)
    for step in range(STEPS):
        for env in range(ENVS):
            power = 1.0
            for at in range(step, min(step + RETURN_STEPS, step // SEQUENCE * SEQUENCE + SEQUENCE)):
                returns[step, env] += power * columns["reward"][at, env]
                power *= DISCOUNT
                if columns["terminated"][at, env] or columns["truncated"][at, env]:
                    break
            factors[step, env] = power * (columns["terminated"][at, env] == 0)
    return returns, factors


def by_sequence(values: Tensor) -> Tensor:
    """Cut `[T, B, ...]` into `[rows, steps, ...]`, sequences of one time after the other."""
    return values.unflatten(0, (-1, SEQUENCE)).transpose(1, 2).flatten(0, 1)


def rescale(values: Tensor) -> Tensor:
    """`h` of Pohlen et al. 2018, as their equation has it."""
    return values.sign() * ((values.abs() + 1).sqrt() - 1) + 1e-3 * values


def inverse(values: Tensor) -> Tensor:
    """The values of which these are `h`, found by halving intervals in float64."""
    low, high = torch.full_like(values, -1e6, dtype=torch.float64), torch.full_like(values, 1e6, dtype=torch.float64)
    for _ in range(80):
        middle = (low + high) / 2
        above = rescale(middle) > values
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return low.to(values.dtype)


def weighted(batch: dict[str, Tensor]) -> LossInputs:
    count = len(batch["action"])
    return LossInputs({**batch, "weight": torch.linspace(0.2, 1.0, count)}, count)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_loss_is_that_of_stepping_one_environment_at_a_time(algorithm):
    """Burn-in from stored memories with either network, memories after ends, bootstraps, priorities and the scalar."""
    state, round_ = apart(algorithm), acted(algorithm)
    batch = algorithm.post({}, round_)
    assert {len(column) for column in batch.values()} == {ENVS * STEPS // SEQUENCE}
    returns, factors = returns_of(round_)
    torch.testing.assert_close(batch["return"], by_sequence(returns))
    torch.testing.assert_close(batch["factor"], by_sequence(factors))
    inputs = replace(weighted(batch), targets=state.targets)
    scalar, outputs = algorithm.losses[0].function(state.params, inputs)
    own, judged = stepped(algorithm, state.params["value"], round_)
    _, target = stepped(algorithm, part(state.targets, "value/"), round_)
    own, judged, target = (
        by_sequence(torch.stack([torch.stack(row) for row in each])) for each in (own, judged, target)
    )
    settings, action = algorithm.settings, batch["action"].unsqueeze(-1)
    if isinstance(algorithm, QRDQN):
        quantiles, judged, target = (
            algorithm._by_choice(each.flatten(0, 1)).unflatten(0, action.shape[:2]) for each in (own, judged, target)
        )
        undo = inverse if settings.value_rescaling else torch.clone
        choice = undo(judged).mean(-1).argmax(-1)
        pick = torch.arange(len(choice)).unsqueeze(-1), torch.arange(SEQUENCE)
        goal = batch["return"].unsqueeze(-1) + batch["factor"].unsqueeze(-1) * undo(target)[(*pick, choice)]
        goal = rescale(goal) if settings.value_rescaling else goal
        mean = undo(quantiles)[(*pick, batch["action"])].mean(-1).mean(-1)
        torch.testing.assert_close(outputs["value"], mean.detach(), rtol=1e-3, atol=1e-4)
        error = goal.unsqueeze(-2) - quantiles[(*pick, batch["action"])].unsqueeze(-1)
        middles = ((torch.arange(5) + 0.5) / 5).unsqueeze(-1)
        huber = torch.where(error.abs() <= 1, 0.5 * error.square(), error.abs() - 0.5)
        loss = ((middles - (error < 0).float()).abs() * huber).mean(-1).sum(-1)
        magnitude = loss
    else:
        own, judged, target = (algorithm._values(each) for each in (own, judged, target))
        choice = (judged if settings.double else target).argmax(-1, keepdim=True)
        value = target.gather(-1, choice).squeeze(-1)
        if settings.value_rescaling:
            goal = rescale(batch["return"] + batch["factor"] * inverse(value))
        else:
            goal = batch["return"] + batch["factor"] * value
        magnitude = (own.gather(-1, action).squeeze(-1) - goal).abs()
        loss = 0.5 * magnitude.square()
    expected = (inputs["weight"].unsqueeze(-1) * loss).mean()
    torch.testing.assert_close(scalar, expected, rtol=1e-4, atol=1e-6)
    priority = 0.9 * magnitude.amax(-1) + 0.1 * magnitude.mean(-1) + 1e-6
    torch.testing.assert_close(outputs["priority"], priority.detach(), rtol=1e-4, atol=1e-6)
    assert all(value.shape == (9,) and not value.requires_grad for value in outputs.values())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_burn_in_has_no_gradient(algorithm):
    """Steps before a sequence change its loss, and no gradient passes to them; a round's first has none."""
    state = apart(algorithm)
    batch = algorithm.post({}, acted(algorithm))
    assert batch["burned"].tolist() == [False] * ENVS + [True] * 2 * ENVS
    seen = batch["observation"].clone().requires_grad_()
    inputs = replace(weighted({**batch, "observation": seen}), targets=state.targets)
    scalar, _ = algorithm.losses[0].function(state.params, inputs)
    (gradient,) = torch.autograd.grad(scalar, seen)
    assert not gradient[:, :BURN_IN].any()
    assert gradient[:, BURN_IN:].any(-1).all()
    moved = batch["observation"].clone()
    moved[:, :BURN_IN] += 1.0
    inputs = replace(weighted({**batch, "observation": moved}), targets=state.targets)
    _, found = algorithm.losses[0].function(state.params, inputs)
    inputs = replace(weighted(batch), targets=state.targets)
    _, expected = algorithm.losses[0].function(state.params, inputs)
    changed = found["priority"] != expected["priority"]
    assert changed.tolist() == batch["burned"].tolist()


def test_priorities_mix_the_largest_and_the_mean_error():
    """0.9 of the one and 0.1 of the other; of single steps they are the errors themselves."""
    errors = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
    assert priorities(errors).tolist() == pytest.approx([0.9 * 3 + 0.1 * 2 + 1e-6, 1e-6])
    assert priorities(errors[0]).tolist() == pytest.approx([1 + 1e-6, 2 + 1e-6, 3 + 1e-6])


def test_rescaled_values_are_restored():
    """`h` is odd and compresses large values; it is undone to the rounding of float32."""
    values = torch.tensor([-1e4, -30.0, -0.5, 0.0, 0.5, 30.0, 1e4])
    torch.testing.assert_close(rescaled(values), rescale(values))
    torch.testing.assert_close(restored(rescale(values.double()).float()), values, rtol=2e-6, atol=2e-7)


def test_a_rescaled_qr_dqn_chooses_by_the_mean_of_returns():
    """A gamble of 0 or 24 is worth more than a sure 10, although the mean of its rescaled quantiles is less."""
    settings = QRDQNSettings(hidden=(), quantiles=2, dueling=False, value_rescaling=True)
    algorithm = QRDQN(settings, CHOICES)
    state = algorithm.init(1)
    worth = rescale(torch.tensor([10.0, 10.0, 0.0, 24.0] + [-1.0] * (2 * CHOICES.action.n - 4)))
    assert worth[:2].mean() > worth[2:4].mean()
    with torch.no_grad():
        state.params["value"].flat.zero_()
        state.params["value"]["0.bias"].copy_(worth)
    acted, _ = algorithm.act(state.params, None, torch.zeros(4, 3), torch.zeros(4, *algorithm.noise.shape))
    assert acted["action"].tolist() == [1] * 4


def test_the_window_is_in_sequences():
    """`window_rows` and `warm_up_rows` stay steps; priorities and draws are of sequences."""
    dqn = DQN(DQNSettings(**MEMORY, window_rows=130, warm_up_rows=41, minibatch_rows=5), CHOICES)
    assert dqn.window == WindowSpec(32, 0.0, 0, SEQUENCE)
    window, draws = RoundWindow(dqn.window, 10), []
    for _ in range(4):
        window.begin_round()
        draws.append([len(draw.rows) for draw in dqn.plan(torch.Generator().manual_seed(1), window)])
    assert window.rows == 30
    assert draws == [[], *[[5] * 10] * 3]


@pytest.mark.parametrize("name", ["dqn", "qr_dqn"])
def test_what_cannot_work_is_refused(name):
    """Sequences that do not fill a round, burn-in without a sequence or a memory, and settings that exclude it."""
    for settings, said in (
        ({"sequence_steps": 5}, r"sequence_steps = 5: schedule.round_steps = 64 is not a multiple"),
        ({"sequence_steps": 4, "burn_in_steps": 5}, r"burn_in_steps = 5 is more than algorithm.sequence_steps = 4"),
        ({"network": "mlp", "burn_in_steps": 5}, r"burn_in_steps = 5: network = 'mlp' has no memory"),
        ({"returns_across_rounds": True}, r"returns_across_rounds = true: with network = 'recurrent'"),
        ({"window_rows": 64}, r"window_rows = 64, but a round alone has 4096 rows"),
    ):
        with pytest.raises(ConfigError, match=said):
            build_config({"algorithm": {"name": name, "network": "recurrent", **settings}})
    if name == "qr_dqn":
        with pytest.raises(ConfigError, match=r"noisy_scale = 0.5: network = 'recurrent' has no noisy layers"):
            build_config({"algorithm": {"name": name, "network": "recurrent", "noisy_scale": 0.5}})
    images = {"environment": {"id": "ALE/Pong-v5"}, "algorithm": {"name": name, "network": "recurrent"}}
    pytest.importorskip("ale_py", reason="comes with penstock-rl[atari]")
    with pytest.raises(ConfigError, match=r"network = 'recurrent': ALE/Pong-v5 observes images .*; choose nature"):
        make_pool(build_config(images), 1)


def test_runs_without_a_memory_keep_their_identity():
    """Settings of sequences are part of it only where they are set."""
    added = {"sequence_steps", "burn_in_steps", "value_rescaling"}
    for kind in (DQNSettings, QRDQNSettings):
        assert not added & kind().identity().keys()
        assert kind(**MEMORY, value_rescaling=True).identity().keys() >= added


@pytest.mark.parametrize("kind", [DQN, QRDQN])
def test_it_learns_a_task_that_needs_memory(kind):
    """A cue is shown in an episode's first step, and pays in its third, where nothing is seen."""
    settings = {**MEMORY, "features": 16, "sequence_steps": 3, "burn_in_steps": 0, "return_steps": 1}
    settings |= {"learning_rate": 1e-2, "target_minibatches": 5, "priority_exponent": 0.6, "warm_up_rows": 1}
    settings |= {"minibatch_rows": 64, "minibatches": 4, "window_rows": 1536, "dueling": False}
    algorithm: Any = kind((DQNSettings if kind is DQN else QRDQNSettings)(**settings), CHOICES)
    state, envs, generator = algorithm.init(1), 64, torch.Generator().manual_seed(1)
    window, kept = RoundWindow(algorithm.window, 2 * envs), {}
    paid = 0.0
    for round_ in range(40):
        cue = torch.randint(2, (2, envs), generator=generator)
        observation = torch.zeros(6, envs, 3)
        for at in (0, 1):
            observation[3 * at, torch.arange(envs), cue[at]] = 1.0
        rows, greedy, carry = [], [], algorithm.initial_carry(envs)
        state.params["exploration"].flat.fill_(0.3)
        for step in range(6):
            if step == 3:
                carry = algorithm.initial_carry(envs)
            noise = torch.rand((envs, *algorithm.noise.shape), generator=generator)
            with torch.no_grad():
                greedy.append(algorithm.act(state.params, carry, observation[step], 0 * noise)[0]["action"])
                row, carry = algorithm.act(state.params, carry, observation[step], noise)
            rows.append(row)
        columns = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        reward, ended = torch.zeros(6, envs), torch.zeros(6, envs, dtype=torch.uint8)
        ended[2], ended[5] = 1, 1
        reward[2], reward[5] = (columns["action"][2] == cue[0]).float(), (columns["action"][5] == cue[1]).float()
        columns |= {"observation": observation, "reward": reward, "terminated": ended}
        columns["truncated"] = torch.zeros_like(ended)
        last = torch.cat([torch.arange(2 * envs, 3 * envs), torch.arange(5 * envs, 6 * envs)])
        batch = algorithm.post({}, Trajectory(columns, last, torch.zeros(len(last), 3)))
        window.begin_round()
        kept = {name: torch.cat([kept.get(name, column[:0]), column])[-window.rows :] for name, column in batch.items()}
        plan = algorithm.plan(torch.Generator().manual_seed(round_), window)
        shares = take_share(plan, range(2 * envs), 2 * envs)
        for share, drawn in gather_minibatches(partial(rows_of, kept), shares, 0):
            gradient, outputs = minibatch_gradient(algorithm.losses[0], state, drawn, {}, 4096)
            with torch.no_grad():
                state = algorithm.after_minibatch(algorithm.update(state, algorithm.losses[0], gradient))
            window.update(share.rows, outputs["priority"].double())
        paid = float(((greedy[2] == cue[0]).float().mean() + (greedy[5] == cue[1]).float().mean()) / 2)
    assert paid > 0.9, "without memory, half of the cues are met"

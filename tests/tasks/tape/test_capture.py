"""Captured losses: the bytes of losses that Python computes, for other rows, and none where Python has to decide."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from penstock.native.kernel_level import LEVELS, TORCH, use_level
from penstock.tasks.model.algorithms.contract import WEIGHT, Loss, SumsMinibatches
from penstock.tasks.model.algorithms.dqn import DQN
from penstock.tasks.model.algorithms.mappo import MAPPO
from penstock.tasks.model.algorithms.ppo import PPO
from penstock.tasks.model.algorithms.qr_dqn import QRDQN
from penstock.tasks.model.algorithms.sac import SAC
from penstock.tasks.model.algorithms.td3 import TD3
from penstock.tasks.model.algorithms.td3_bc import TD3BC
from penstock.tasks.model.nn.layers import init_mlp, mlp
from penstock.tasks.model.nn.optimizers import count_round
from penstock.tasks.model.nn.surrogate import value_error
from penstock.tasks.roles.learning.gradients import minibatch_gradient
from penstock.tasks.setup.config.off_policy import DQNSettings, QRDQNSettings, SACSettings, TD3Settings
from penstock.tasks.setup.config.offline import TD3BCSettings
from penstock.tasks.setup.config.on_policy import IPPOSettings, MAPPOSettings, PPOSettings
from penstock.tasks.specs import ActionSpec, EnvironmentSpec, ParameterGroup, Spec, State
from penstock.tasks.tape.totals import RoundTotals

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from penstock.tasks.model.algorithms.contract import Algorithm
    from penstock.tasks.roles.learning.gradients import Gradient
    from penstock.tasks.specs import Batch

ROWS, MANY = 24, 10_000
OBSERVATION = Spec("float32", (5,))
CHOICES = EnvironmentSpec("choices", OBSERVATION, ActionSpec("discrete", n=3), None, None)
TEAM = EnvironmentSpec("team", Spec("float32", (3, 5)), ActionSpec("discrete", n=3, shape=(3,)), None, None, agents=3)
VECTORS = EnvironmentSpec(
    "vectors", OBSERVATION, ActionSpec("box", shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0)), None, None
)


@dataclass(frozen=True)
class Case:
    """An algorithm, rows for it, and the losses that are made of kernels alone."""

    algorithm: Algorithm
    rows: Callable[[torch.Generator], Batch]
    captured: set[str]


def on_policy(discrete: bool) -> Callable[[torch.Generator], Batch]:
    def rows(generator: torch.Generator) -> Batch:
        vectors = torch.randn(ROWS, 2, generator=generator)
        return {
            "observation": torch.randn(ROWS, 5, generator=generator),
            "action": torch.randint(0, 3, (ROWS,), generator=generator) if discrete else vectors,
            "log_probability": torch.randn(ROWS, generator=generator) * 0.1 - 1.5,
            "advantage": torch.randn(ROWS, generator=generator),
            "value_target": torch.randn(ROWS, generator=generator),
            "discounted_reward": torch.randn(ROWS, generator=generator),
            "slope": torch.randn(ROWS, generator=generator) * 0.1,
            "value": torch.randn(ROWS, generator=generator),
        }

    return rows


def of_team(generator: torch.Generator) -> Batch:
    numbers = ("log_probability", "advantage", "value_target", "value", "discounted_reward")
    return {
        "observation": torch.randn(ROWS, 3, 5, generator=generator),
        "action": torch.randint(0, 3, (ROWS, 3), generator=generator),
        **{name: torch.randn(ROWS, 3, generator=generator) for name in numbers},
    }


def of_sequences(generator: torch.Generator) -> Batch:
    rows = {name: torch.stack([column] * 2, 1) for name, column in of_team(generator).items()}
    return {**rows, "memory": torch.randn(ROWS, 2, 3, 4, generator=generator), "fresh": torch.zeros(ROWS, 2)}


def off_policy(discrete: bool) -> Callable[[torch.Generator], Batch]:
    def rows(generator: torch.Generator) -> Batch:
        vectors = torch.rand(ROWS, 2, generator=generator) * 1.8 - 0.9
        return {
            "observation": torch.randn(ROWS, 5, generator=generator),
            "action": torch.randint(0, 3, (ROWS,), generator=generator) if discrete else vectors,
            "return" if discrete else "reward": torch.randn(ROWS, generator=generator),
            "following": torch.randn(ROWS, 5, generator=generator),
            "factor": torch.rand(ROWS, generator=generator),
            WEIGHT: torch.rand(ROWS, generator=generator),
        }

    return rows


def of_replayed_sequences(generator: torch.Generator) -> Batch:
    rows = {name: torch.stack([column] * 2, 1) for name, column in off_policy(discrete=False)(generator).items()}
    longer = torch.randn(ROWS, 3, 5, generator=generator)
    return {
        **rows,
        "observation": longer,
        "fresh": torch.zeros(ROWS, 3),
        "burned": torch.arange(ROWS) > 1,
        "memory": torch.randn(ROWS, 3, 4, generator=generator),
    }


REPLAYED = {"hidden": (8,), "network": "recurrent", "features": 4, "sequence_steps": 2, "burn_in_steps": 1}


CASES = {
    "ppo, choices": Case(PPO(PPOSettings(hidden=(8,)), CHOICES), on_policy(discrete=True), {"policy", "value"}),
    "ppo, vectors": Case(
        PPO(PPOSettings(hidden=(8, 8), normalize_observation=True, entropy_weight=0.01), VECTORS),
        on_policy(discrete=False),
        {"policy", "value"},
    ),
    "ppo, whose entropy bonus changes": Case(
        PPO(
            PPOSettings(hidden=(8,), entropy_weight=0.1, final_entropy_weight=0.01, anneal_rounds=2, minibatches=2),
            CHOICES,
        ),
        on_policy(discrete=True),
        {"policy", "value"},
    ),
    "mappo": Case(MAPPO(MAPPOSettings(hidden=(8,)), TEAM), of_team, {"policy", "value"}),
    "ippo, with all settings": Case(
        MAPPO(
            IPPOSettings(
                hidden=(8,),
                normalize_observation=True,
                normalize_reward=True,
                normalize_value=True,
                huber_delta=1.0,
                value_clip_range=0.2,
            ),
            TEAM,
        ),
        of_team,
        {"policy", "value"},
    ),
    "mappo, networks apart": Case(MAPPO(MAPPOSettings(hidden=(8,), shared_parameters=False), TEAM), of_team, set()),
    "mappo, with memories": Case(
        MAPPO(MAPPOSettings(hidden=(8,), network="recurrent", features=4, sequence_steps=2), TEAM), of_sequences, set()
    ),
    "ppo, squashed vectors": Case(
        PPO(
            PPOSettings(hidden=(8,), actions="squashed", advantage_normalization="minibatch", joint_gradient_norm=True),
            VECTORS,
        ),
        on_policy(discrete=False),
        {"actor_critic"},
    ),
    "ppo, clipped values": Case(
        PPO(PPOSettings(hidden=(8,), value_clip_range=0.2, advantage_normalization="none"), CHOICES),
        on_policy(discrete=True),
        {"policy", "value"},
    ),
    "dqn": Case(
        DQN(DQNSettings(hidden=(8,), double=False, dueling=False, huber=True), CHOICES), off_policy(True), {"value"}
    ),
    "double dqn": Case(DQN(DQNSettings(hidden=(8,), double=True, dueling=False), CHOICES), off_policy(True), {"value"}),
    "dueling dqn": Case(DQN(DQNSettings(hidden=(8,), dueling=True), CHOICES), off_policy(True), {"value"}),
    "qr-dqn": Case(
        QRDQN(QRDQNSettings(hidden=(8,), quantiles=4, double=False, dueling=False), CHOICES),
        off_policy(True),
        {"value"},
    ),
    "double and dueling qr-dqn": Case(
        QRDQN(QRDQNSettings(hidden=(8,), quantiles=4), CHOICES), off_policy(True), {"value"}
    ),
    "sac": Case(SAC(SACSettings(hidden=(8,)), VECTORS), off_policy(False), {"critic", "actor", "temperature"}),
    "sac, with memories": Case(SAC(SACSettings(**REPLAYED), VECTORS), of_replayed_sequences, set()),
    "td3, with memories": Case(TD3(TD3Settings(**REPLAYED), VECTORS), of_replayed_sequences, set()),
    "td3_bc": Case(TD3BC(TD3BCSettings(hidden=(8,)), VECTORS), off_policy(False), {"critic", "balance", "actor"}),
    "td3": Case(
        TD3(TD3Settings(hidden=(8,), normalize_observation=True), VECTORS), off_policy(False), {"critic", "actor"}
    ),
}


def totals_of(algorithm: Algorithm, rows: Batch) -> RoundTotals:
    """Return what the losses of a minibatch of these rows find, whose round has no others."""
    sums = algorithm.stats(rows)
    if isinstance(algorithm, SumsMinibatches) and algorithm.summed_columns:
        sums |= algorithm.minibatch_stats(rows)
    return RoundTotals({name: value.item() for name, value in sums.items() if not value.dim()})


def gradient_of(algorithm: Algorithm, loss: Loss, state: State, number: int, *, captures: bool) -> Gradient:
    """Return a loss's gradient and outputs for rows of a number; plain totals keep it from being captured."""
    generator = torch.Generator().manual_seed(number)
    rows = next(case.rows for case in CASES.values() if case.algorithm is algorithm)(generator)
    totals = totals_of(algorithm, rows)
    noise = torch.randn(ROWS, *loss.noise.shape, generator=generator) if loss.noise else None
    return minibatch_gradient(loss, state, rows, totals if captures else dict(totals), MANY, ROWS, noise)


@pytest.mark.parametrize("level", LEVELS[1:])
@pytest.mark.parametrize("name", CASES)
def test_a_captured_loss_has_the_bytes_of_the_loss(name: str, level: str):
    """Other rows, totals and noise, and parameters that updates change in place: always the same bits."""
    case = CASES[name]
    states = [case.algorithm.init(1) for _ in range(2)]
    with use_level(level):
        for number in range(4):
            for loss in case.algorithm.losses:
                (found, outputs), (expected, eager) = (
                    gradient_of(case.algorithm, loss, state, number, captures=state is states[0]) for state in states
                )
                assert torch.equal(found, expected)
                assert outputs.keys() == eager.keys()
                assert all(torch.equal(outputs[each], eager[each]) for each in eager)
                for state, gradient in zip(states, (found, expected), strict=True):
                    with torch.no_grad():
                        case.algorithm.update(state, loss, gradient)
            for state in states:
                with torch.no_grad():
                    case.algorithm.after_minibatch(state)
            if number % 2:  # the end of a round
                for state in states:
                    count_round(state)
    groups = states[0].params.values()
    known = {key[0]: program is not None for group in groups for key, program in group.programs.items()}
    assert known == {loss.name: loss.name in case.captured for loss in case.algorithm.losses}
    assert not any(group.programs for group in states[1].params.values())


def test_without_kernels_nothing_is_captured():
    """At the level `torch` there is no kernel to capture."""
    case = CASES["ppo, choices"]
    state = case.algorithm.init(1)
    with use_level(TORCH):
        for loss in case.algorithm.losses:
            gradient_of(case.algorithm, loss, state, 1, captures=True)
    assert not any(group.programs for group in state.params.values())


@pytest.fixture
def state() -> State:
    return State(params={"net": ParameterGroup(init_mlp((5, 8, 1), 1.0, torch.Generator().manual_seed(1)))})


@pytest.fixture
def rows() -> Batch:
    generator = torch.Generator().manual_seed(2)
    return {"observation": torch.randn(ROWS, 5, generator=generator), "target": torch.randn(ROWS, generator=generator)}


def plain(params, batch):
    return batch.mean(value_error(mlp(params["net"], batch["observation"]), batch["target"])), {}


def with_torch(params, batch):
    """Have torch compute something that kernels also read."""
    return batch.mean(value_error(mlp(params["net"], batch["observation"].sin()), batch["target"])), {}


def with_a_decision(params, batch):
    """Decide by the rows' content, which differs from minibatch to minibatch."""
    target = batch["target"] if batch["target"].sum() > 0 else -batch["target"]
    return batch.mean(value_error(mlp(params["net"], batch["observation"]), target)), {}


def with_a_total(params, batch):
    """Read a number that differs from round to round."""
    target = batch["target"] * batch.stats["scale"]
    return batch.mean(value_error(mlp(params["net"], batch["observation"]), target)), {}


def with_a_changed_column(params, batch):
    """Change a column in place."""
    return batch.mean(value_error(mlp(params["net"], batch["observation"].mul_(1.0)), batch["target"])), {}


def with_a_column_as_output(params, batch):
    """Give rows back as they came."""
    return plain(params, batch)[0], {"target": batch["target"]}


CONSTANT = torch.linspace(0.0, 1.0, ROWS)


def with_a_constant_as_output(params, batch):
    """Give back what kernels have read, and what is no row's."""
    return batch.mean(value_error(mlp(params["net"], batch["observation"]), CONSTANT)), {"constant": CONSTANT}


def with_numpy(params, batch):
    """Compute with NumPy."""
    target = torch.from_numpy(np.sign(batch["target"].numpy()))
    return batch.mean(value_error(mlp(params["net"], batch["observation"]), target)), {}


def with_its_own_gradient(params, batch):
    """Sum squares of weights, which torch differentiates."""
    return plain(params, batch)[0] + params["net"]["0.weight"].square().sum(), {}


def with_a_counter(params, batch):
    """Weigh errors by a number that rounds change."""
    error = value_error(mlp(params["net"], batch["observation"]), batch["target"])
    return batch.weighted_mean((error, float(batch.targets["rounds"]))), {}


def with_a_target_network(params, batch):
    """Read a number of a target that has more than one."""
    error = value_error(mlp(params["net"], batch["observation"]), batch["target"])
    return batch.weighted_mean((error, float(batch.targets["other"][0]))), {}


def learned(function, state: State, rows: Batch, stats: dict[str, float] | None = None) -> Tensor:
    return minibatch_gradient(Loss("loss", "net", function), state, rows, RoundTotals(stats or {}), MANY)[0]


def programs(state: State) -> list[bool]:
    return [program is not None for program in state.params["net"].programs.values()]


@pytest.mark.parametrize(
    "function",
    [
        with_torch,
        with_a_decision,
        with_a_total,
        with_a_changed_column,
        with_a_column_as_output,
        with_a_constant_as_output,
        with_numpy,
        with_its_own_gradient,
    ],
)
def test_what_kernels_do_not_compute_is_not_captured(function, state: State, rows: Batch):
    """Such a loss is computed anew for every minibatch: with other rows and totals it has other gradients."""
    for sign, scale in ((1.0, 2.0), (-1.0, 3.0)):
        given = {"observation": rows["observation"] * sign, "target": rows["target"] * sign}
        found = learned(function, state, given, {"scale": scale})
        fresh = State(params={"net": ParameterGroup(dict(state.params["net"]))})
        assert torch.equal(found, learned(function, fresh, given, {"scale": scale}))
    assert programs(state) == [False]


def test_a_number_that_a_target_gives_holds_while_it_is_the_same(state: State, rows: Batch):
    """Two minibatches a round: every round's gradient is that of its own count."""
    one = learned(plain, State(params={"net": ParameterGroup(dict(state.params["net"]))}), rows)
    state.targets["rounds"] = torch.zeros((), dtype=torch.int64)
    for expected in (0.0, 1.0, 2.0):
        first, second = (learned(with_a_counter, state, rows) for _ in range(2))
        assert torch.equal(first, second)
        assert torch.allclose(first, expected * one)
        assert all(programs(state))
        state.targets["rounds"] += 1


def test_a_number_that_is_new_in_every_minibatch_is_not_captured_again(state: State, rows: Batch):
    """A program that nothing used is given up: capturing costs more than a loss. Gradients stay right."""
    state.targets["rounds"] = torch.ones((), dtype=torch.int64)
    one = learned(with_a_counter, state, rows)
    for expected in (2.0, 3.0):
        state.targets["rounds"] += 1
        assert torch.allclose(learned(with_a_counter, state, rows), expected * one)
        assert programs(state) == [False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_weight_may_be_a_tensor_of_one_number(state: State, rows: Batch, dtype: torch.dtype):
    """Its type does not matter: the gradient is that of the same Python number."""

    def weighed(weight):
        def function(params, batch):
            error = value_error(mlp(params["net"], batch["observation"]), batch["target"])
            return batch.weighted_mean((error, weight), (error, 0.25)), {}

        return Loss("loss", "net", function)

    fresh = [State(params={"net": ParameterGroup(dict(state.params["net"]))}) for _ in range(2)]
    found, expected = (
        minibatch_gradient(weighed(weight), each, rows, RoundTotals({}), MANY)[0]
        for each, weight in zip(fresh, (torch.tensor(0.5, dtype=dtype), 0.5), strict=True)
    )
    torch.testing.assert_close(found, expected)


def test_a_number_of_a_larger_target_is_not_captured(state: State, rows: Batch):
    """Only a target that is one number is watched: others change in part."""
    state.targets["other"] = torch.tensor([2.0, 1.0])
    learned(with_a_target_network, state, rows)
    assert programs(state) == [False]


def test_rows_of_another_number_or_type_have_their_own_program(state: State, rows: Batch):
    """A program reads as many bytes as those that it was captured from."""
    learned(plain, state, rows)
    learned(plain, state, {name: column[:7] for name, column in rows.items()})
    learned(plain, state, {**rows, "more": torch.zeros(ROWS, dtype=torch.float64)})
    assert programs(state) == [True, True, True]


def test_programs_of_many_numbers_of_rows_do_not_pile_up(state: State, rows: Batch):
    """Each has memory of its own, so that a limited number is kept, and every gradient stays right."""
    for number in range(1, 100):
        given = {name: torch.cat([column] * 5)[:number] for name, column in rows.items()}
        found = learned(plain, state, given)
        assert torch.equal(found, learned(plain, state, given))
    assert len(programs(state)) <= 64


def test_parameters_that_moved_are_captured_again(state: State, rows: Batch):
    """An algorithm may return other tensors than it was given: the program of the old ones no longer holds."""
    learned(plain, state, rows)
    group = state.params["net"]
    state.targets["new"] = torch.zeros(3)
    with torch.no_grad():
        group.flat.mul_(2.0)
    found = learned(plain, state, rows)
    assert torch.equal(found, learned(plain, State(params={"net": ParameterGroup(dict(group))}), rows))


def with_a_mean_as_a_factor(params, batch):
    """Use the value of a mean of rows, not its gradient alone."""
    return sum((batch.mean(batch["target"]) * value.sum() for value in params["net"].values()), torch.zeros(())), {}


def test_a_loss_that_uses_the_value_of_a_mean_has_it_in_every_minibatch(state: State, rows: Batch):
    """A capture computes no values of means: a loss that needs one is called again without."""
    expected = rows["target"].mean().expand(state.params["net"].flat.shape)
    for _ in range(3):
        _ = [torch.full((), 1e30) for _ in range(1000)]  # what memory that nobody fills has
        torch.testing.assert_close(learned(with_a_mean_as_a_factor, state, rows), expected)
    assert programs(state) == [False]


def with_goals(params, batch):
    """Learn what a target holds."""
    return batch.mean(value_error(mlp(params["net"], batch["observation"]), batch.targets["goals"])), {}


def test_a_state_with_other_targets_is_not_learned_from_those_it_had(state: State, rows: Batch):
    """An algorithm may return a new state that keeps its parameters, such as one of `dataclasses.replace`."""
    for scale in (1.0, -3.0, 7.0):
        goals = rows["target"] * scale
        state = replace(state, targets={"goals": goals})
        for _ in range(3):
            found = learned(with_goals, state, rows)
            fresh = State(params={"net": ParameterGroup(dict(state.params["net"]))}, targets={"goals": goals.clone()})
            assert torch.equal(found, learned(with_goals, fresh, rows))


def test_an_action_that_is_no_choice_is_refused_by_the_program():
    """As by the loss itself, and not by reading beyond the values."""
    case = CASES["dqn"]
    state, (loss,) = case.algorithm.init(1), case.algorithm.losses
    for action in (0, 3):
        rows = case.rows(torch.Generator().manual_seed(1))
        rows["action"].fill_(action)
        if action:
            with pytest.raises(IndexError, match="none of the 3 choices"):
                minibatch_gradient(loss, state, rows, RoundTotals({}), MANY)
        else:
            minibatch_gradient(loss, state, rows, RoundTotals({}), MANY)


IMPORTING = """
import sys
import torch
from penstock.tasks.tape.capture import _Watch

class Asked:
    why, made = "asked", set()

with _Watch(Asked()):
    torch.empty(3)
print(*(name for name in ("torch._dynamo", "sympy") if name in sys.modules))
"""


@pytest.mark.slow
def test_capturing_does_not_import_torchs_compiler():
    """It has no part in it and would take 90 MB of a learner's process."""
    done = subprocess.run([sys.executable, "-c", IMPORTING], capture_output=True, text=True, check=True)
    assert not done.stdout.split()

"""A round that stays on a device is learned to the same bytes, and crosses to the host once, after its last step."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from penstock.storage.shards.codec import decode_shard
from penstock.tasks.data.input.fixed_shapes import has_fixed_shapes, with_fixed_shapes
from penstock.tasks.data.input.hand_over import HandedRows
from penstock.tasks.environments.torch import pool
from penstock.tasks.environments.torch.kernels import kernels_for
from penstock.tasks.roles.acting.tile import RoundBuffers
from penstock.tasks.roles.acting.torch_tile import DeviceParams, TorchTileActor
from penstock.tasks.roles.learning.device_round import DeviceRounds
from penstock.tasks.roles.learning.learn import learn
from penstock.tasks.roles.learning.round_update import StageTally, learn_batches
from penstock.tasks.roles.learning.shard_feed import ActedRounds, ShardFeed, learned_columns, reader_at
from penstock.tasks.roles.learning.stage_state import Stage, move_state
from penstock.tasks.roles.reducing.reduction import LocalReduction, SummedReduction, reducing
from penstock.tasks.setup.distribution.policies import single_learner_coarse

from ....support.algorithms.distant_device import DISTANT, HERE, DistantDevice, DistantTensor
from ....support.stored.synthetic_shards import store_shard
from ...conftest import first_stage_of

if TYPE_CHECKING:
    from penstock.storage.refs import ShardRef
    from penstock.tasks.model.algorithms.contract import Loss
    from penstock.tasks.roles.acting.tile import ActedRound
    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.specs import LossInputs, LossResult, Params, State, Trajectory

    from ...conftest import MakeContext

ROUNDS, TILES = 5, 2
GPU_ONLY: dict[str, Any] = {"distribution": {"policy": "gpu_only"}}
ANNEALING = {"entropy_weight": 0.02, "final_entropy_weight": 0.001, "anneal_rounds": 3}
NORMALISING = {"normalize_observation": True, "normalize_reward": True}
RUNS: dict[str, dict[str, Any]] = {
    "ppo": {"algorithm": {"epochs": 2}},
    "ppo-annealing": {
        "algorithm": {**NORMALISING, **ANNEALING, "final_learning_rate": 1e-5},
    },
    "ppo-pendulum": {"environment": {"id": "Pendulum-v1"}, "algorithm": {"shared_network": True}},
    "ppo-recurrent": {"algorithm": {"network": "recurrent", "features": 8, "sequence_steps": 4}},
    "ppo-options": {
        "environment": {"id": "Pendulum-v1"},
        "algorithm": {
            **NORMALISING,
            "actions": "squashed",
            "reward_normalization": "running",
            "advantage_normalization": "minibatch",
            "value_clip_range": 0.2,
            "joint_gradient_norm": True,
        },
    },
    "impala": {"algorithm": {"name": "impala", "hidden": [8], "minibatches": 3, **NORMALISING, **ANNEALING}},
}
REPRESENTATIVE = ("ppo-recurrent", "impala")
"""Both algorithms, and a memory: the others have options and other spaces."""


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the distant device kernels of its own: those of the CPU, which its values are on."""
    monkeypatch.setattr(pool, "kernels_for", lambda environment_id, device: kernels_for(environment_id, HERE))


@pytest.fixture(
    params=[name if name in REPRESENTATIVE else pytest.param(name, marks=pytest.mark.slow) for name in RUNS]
)
def context(request: pytest.FixtureRequest, make_context: MakeContext) -> RunContext:
    return make_context({**RUNS[request.param], **GPU_ONLY})


class Loop:
    """Actors of all tiles that hand rounds over to a learner, in one thread, on one device."""

    def __init__(self, context: RunContext, device: torch.device) -> None:
        self.context = context
        self.state = context.algorithm.init(3)
        move_state(self.state, device)
        self.tally = StageTally()
        self.actors = [TorchTileActor(context, tile, device) for tile in range(TILES)]
        for actor in self.actors:
            actor.start()
        self.acted: list[ActedRound] = []
        self._params = DeviceParams(device)
        self._round = 0

    def prepare(self) -> list[Any]:
        """Stage what the host knows of a round before it; returns the tiles' rounds, begun."""
        with torch.inference_mode():
            params = self._params.load(self.state.params)
            begun = [actor.acting(0, params, RoundBuffers(self.context, actor.tile)) for actor in self.actors]
            for each in begun:
                next(each)
        return begun

    def act(self, begun: list[Any]) -> list[Trajectory]:
        """Play the rounds that were begun; returns what the learner gets."""
        rows = HandedRows(learned_columns(self.context), self._round, 0, lambda: None)
        with torch.inference_mode():
            for each in begun:
                with pytest.raises(StopIteration) as ended:
                    next(each)
                self.acted.append(ended.value.value)
                stored: Future[ShardRef] = Future()
                rows.offer(self._round, self.acted[-1].tile, lambda: None, self.acted[-1].played, stored)
        taken = [rows.take(self._round, tile) for tile in range(TILES)]
        self._round += 1
        return [each.trajectory for each in taken if each is not None]

    @property
    def round(self) -> int:
        return self._round - 1


def everything(state: State) -> dict[str, torch.Tensor]:
    """Return copies of all tensors of a state, on the host."""
    found = {f"params/{name}": group.flat for name, group in state.params.items()}
    found |= {f"{name}/{key}": value for name, kept in state.optimizer.items() for key, value in kept.items()}
    found |= {f"targets/{name}": value for name, value in state.targets.items()}
    return {
        name: (value.held if isinstance(value, DistantTensor) else value).detach().clone()
        for name, value in found.items()
    }


def learned_as_others_do(
    context: RunContext, *, repeated: bool = False
) -> tuple[list[dict[str, torch.Tensor]], StageTally]:
    """Act and learn as under every policy on a CPU: plans and totals of the host, and no repeated rows by default."""
    loop, states = Loop(context, HERE), []
    reduction = LocalReduction(context.algorithm)
    for _ in range(ROUNDS):
        trajectories = loop.act(loop.prepare())
        if repeated:
            trajectories = [with_fixed_shapes(each) for each in trajectories]
        with torch.no_grad():
            batches = [context.algorithm.post(loop.state.params, each) for each in trajectories]
        loop.state = learn_batches(context, loop.state, loop.round, batches, loop.tally, reduction)
        states.append(everything(loop.state))
    return states, loop.tally


def test_a_round_of_fixed_tensors_learns_the_same_bytes(context: RunContext):
    """Parameters, optimizers, normalisers and row outputs after each round, with rows repeated to a fixed shape.

    Kernels compute each row alone, so repeated ones change no byte. Torch, which computes recurrent networks, may
    multiply more rows in another order: those are repeated on both sides.
    """
    expected, wanted = learned_as_others_do(
        context, repeated=getattr(context.algorithm.settings, "network", "") == "recurrent"
    )
    loop, repeated = Loop(context, HERE), 0
    learner = DeviceRounds(context, HERE, LocalReduction(context.algorithm))
    for state in expected:
        learner.prepare(loop.round + 1)
        played = loop.act(loop.prepare())
        trajectories = [with_fixed_shapes(each) for each in played]
        repeated += sum(len(each.bootstrap_rows) for each in trajectories)
        repeated -= sum(len(each.bootstrap_rows) for each in played)
        loop.state = learner.learn(loop.state, loop.round, trajectories, loop.tally)
        found = everything(loop.state)
        assert found.keys() == state.keys()
        for name, value in state.items():
            assert torch.equal(found[name], value), name
    assert repeated > 100
    assert loop.tally.outputs == wanted.outputs
    assert loop.tally.update_rows == wanted.update_rows


def test_no_byte_crosses_to_the_host_within_a_round(context: RunContext):
    """From the first environment's step to the optimizer's last: no copy in either direction, and no waiting.

    Noise, starts and plan are there before; the row outputs leave in one copy after the last operation. The first round
    of a process is an exception: its plan is made once the number of training rows is known.
    """
    expected, wanted = learned_as_others_do(context)
    with DistantDevice() as device:
        loop = Loop(context, DISTANT)
        learner = DeviceRounds.of(context, DISTANT, LocalReduction(context.algorithm))
        assert learner is not None
        for state in expected:
            learner.prepare(loop.round + 1)
            begun = loop.prepare()
            device.crossings.clear()
            before = device.operations
            loop.state = learner.learn(loop.state, loop.round + 1, loop.act(begun), loop.tally)
            assert device.operations - before > 500
            *within, last = device.crossings
            assert [crossing.what for crossing in within] == ["copy_ to the device"] * (loop.round == 0)
            assert last == (device.operations, "_to_copy to the host")
            for name, value in everything(loop.state).items():
                torch.testing.assert_close(value, state[name], rtol=1e-4, atol=1e-4, msg=name)
        end, _ = loop.acted[-1].facts()
        assert len(end.episodes["row"]) > 0
    for name, by_round in wanted.outputs.items():
        for round_, (mean, rows) in by_round.items():
            assert loop.tally.outputs[name][round_] == (pytest.approx(mean, rel=1e-3, abs=1e-4), rows)


class Apart:
    """The part of a membership that a learner uses when nobody else is there."""

    def __init__(self) -> None:
        self.log = logging.getLogger("learner")
        self.events: list[Any] = []

    def check(self) -> None: ...

    def emit_event(self, event: Any) -> None:
        self.events.append(event)


def test_the_learners_loop_learns_rounds_of_a_device(make_context: MakeContext):
    """Through its feed, from rounds that were handed over: outputs, rows, episodes and parameters are there at the end.

    Two learners of the same rounds end with the same bytes.
    """
    context = make_context({**RUNS["ppo-annealing"], **GPU_ONLY})
    rounds, steps, envs = context.rounds_of(0), context.config.schedule.round_steps, 3
    refs = {
        (round_, tile): store_shard(context.run.store, context.columns, 0, round_, tile, steps, envs)
        for round_ in rounds
        for tile in range(TILES)
    }
    first = refs[0, 0]
    info = decode_shard(context.run.store.view(first.name), context.columns, first.name, first.digest).info
    found = []
    with DistantDevice():
        for _ in range(2):
            loop, apart = Loop(context, DISTANT), Apart()
            membership: Any = apart
            rows = HandedRows(learned_columns(context), 0, len(rounds), lambda: None)
            for round_ in rounds:
                loop.act(loop.prepare())
                for acted in loop.acted[-TILES:]:
                    stored: Future[ShardRef] = Future()
                    stored.set_result(refs[round_, acted.tile])
                    rows.offer(round_, acted.tile, lambda: info, acted.played, stored)
            assignment, reader = first_stage_of("worker"), reader_at(context, 0)
            stage = Stage(assignment, context, membership, DISTANT, ActedRounds(context), reader, loop.state, [], None)
            with ShardFeed(assignment, context, membership, DISTANT, reader, rows) as feed:
                found.append(learn(stage, feed, None, LocalReduction(context.algorithm)))
            assert len(apart.events) == len(rounds)
    one, other = found
    assert one.parameters == other.parameters
    assert sorted(one.outputs) == ["clip_fraction", "entropy", "kl", "value_loss"]
    assert all(sorted(by_round) == [*rounds] for by_round in one.outputs.values())
    assert one.outputs == other.outputs
    assert one.times.env_steps == len(rounds) * TILES * steps * envs
    assert one.times.update_rows == one.times.env_steps * context.algorithm.settings.epochs
    assert one.episodes == len(rounds) * TILES * len(info.episodes)
    assert one.shards == tuple(refs.values())


def test_the_count_sees_a_loss_that_asks_the_host(make_context: MakeContext):
    """A loss that reads a number of its parameters learns all the same, and is counted in every minibatch."""
    context = make_context({**RUNS["impala"], **GPU_ONLY})
    (loss,) = context.algorithm.losses

    def asking(params: Params, batch: LossInputs) -> LossResult:
        scalar, outputs = loss.function(params, batch)
        return (scalar * 2.0 if scalar.item() > 1e9 else scalar), outputs

    class Asking(type(context.algorithm)):  # type: ignore[misc]
        @property
        def losses(self) -> tuple[Loss, ...]:
            return (replace(loss, function=asking),)

    context = replace(context, algorithm=Asking(context.algorithm.settings, context.algorithm.environment))
    with DistantDevice() as device:
        loop, learner = Loop(context, DISTANT), DeviceRounds(context, DISTANT, LocalReduction(context.algorithm))
        for _ in range(2):
            learner.prepare(loop.round + 1)
            trajectories = loop.act(loop.prepare())
            device.crossings.clear()
            loop.state = learner.learn(loop.state, loop.round, trajectories, loop.tally)
    assert [crossing.what for crossing in device.crossings[:-1]] == ["_local_scalar_dense waits for the device"] * 3


def test_rounds_are_learned_by_the_host_where_a_device_cannot(make_context: MakeContext):
    """On a CPU, with native environments, several learners, or a window of earlier rounds."""
    context = make_context(GPU_ONLY)
    local = LocalReduction(context.algorithm)
    assert DeviceRounds.of(context, DISTANT, local) is not None
    assert DeviceRounds.of(context, HERE, local) is None
    assert DeviceRounds.of(context, DISTANT, SummedReduction.__new__(SummedReduction)) is None
    assert DeviceRounds.of(replace(context, policy=single_learner_coarse(1)), DISTANT, local) is None
    window = {"name": "dqn", "window_rows": 96, "warm_up_rows": 48, "minibatch_rows": 16}
    off_policy = make_context({"algorithm": window, **GPU_ONLY}, "off-policy")
    assert not has_fixed_shapes(off_policy, DISTANT)
    assert DeviceRounds.of(off_policy, DISTANT, LocalReduction(off_policy.algorithm)) is None


def test_a_single_learner_of_several_adds_up_nothing(make_context: MakeContext):
    """With one worker, the policies that reduce together need no group, and no copy of a gradient to the host."""
    context, nobody = make_context(GPU_ONLY), None
    with reducing(first_stage_of("worker"), context, nobody, None) as reduction:
        assert type(reduction) is LocalReduction

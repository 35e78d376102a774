"""Whole rounds in tensors, acting included, leave the bytes of single steps, and ask the device for no value."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from penstock.native.batch.kernels import BatchError
from penstock.storage.shards.specs import Spec
from penstock.storage.tensors import load_tensors, save_tensors
from penstock.tasks.environments.torch.pool import make_torch_pool
from penstock.tasks.environments.torch.rollout import RoundPlayer, play_round
from penstock.tasks.roles.acting.tile import RoundBuffers, TileActor

from ...support.environments.rounds import Arrays, assert_same, buffers_for, left, seeds_of
from ..conftest import MakeContext

WIDTH = {"CartPole-v1": 4, "Pendulum-v1": 3}


class Remembering:
    """Acts by the observation, noise and the length of its memory."""

    def __init__(self, environment_id: str) -> None:
        self.environment_id = environment_id
        weight = torch.linspace(-1.0, 1.0, WIDTH[environment_id])
        self.weight = weight.requires_grad_()

    @property
    def rows(self) -> dict[str, Spec]:
        action = Spec("int64") if self.environment_id == "CartPole-v1" else Spec("float32", (1,))
        return {"action": action, "memory": Spec("float32")}

    def __call__(
        self, carry: torch.Tensor | None, observation: torch.Tensor, noise: torch.Tensor
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor | None]:
        assert carry is not None
        value = (observation * self.weight).sum(-1) + noise[:, 0] + 0.1 * carry[:, 0].sin()
        action = (value > 0).long() if self.environment_id == "CartPole-v1" else value.unsqueeze(-1)
        return {"action": action, "memory": carry[:, 0]}, carry + 1.0


@pytest.mark.parametrize("environment_id", ["CartPole-v1", "Pendulum-v1"])
def test_a_whole_round_equals_single_steps(environment_id: str):
    """Rows, buffers, bootstraps, episodes, carry and state have the same bytes, round after round."""
    steps, policy = 40, Remembering(environment_id)
    pool, stepped = (make_torch_pool(environment_id, 6, max_episode_steps=30) for _ in range(2))
    player = RoundPlayer(pool, policy, policy.rows, (2,), steps, torch.zeros(6, 1))
    for each in (pool, stepped):
        each.reset_ids(seeds_of(6))
    carry = torch.zeros(6, 1)
    for round_ in range(3):
        noise = np.random.default_rng(round_).normal(size=(steps, 6, 2)).astype(np.float32)
        buffers, expected = buffers_for(pool, steps), buffers_for(stepped, steps)
        pool.begin_round(**buffers)
        player.stage(noise)
        player.play()
        found = left(buffers, pool.end_round()) | {name: rows.numpy() for name, rows in player.rows.items()}
        rows = {name: np.empty((steps, 6, *spec.shape), dtype=spec.dtype) for name, spec in policy.rows.items()}
        with torch.no_grad():
            stepped.begin_round(**expected)
            for t in range(steps):
                given, following = policy(
                    carry, torch.from_numpy(expected["observation"][t]), torch.from_numpy(noise[t])
                )
                for name, row in given.items():
                    rows[name][t] = row
                stepped.step_round(t, rows["action"][t])
                over = torch.from_numpy(expected["terminated"][t] | expected["truncated"][t]).bool()
                assert following is not None
                carry = torch.where(over.unsqueeze(-1), torch.zeros(6, 1), following)
        assert_same(found, left(expected, stepped.end_round()) | rows)
        assert_same(pool.save(), stepped.save())
        assert player.carry is not None
        assert torch.equal(player.carry, carry)
        assert len(found["episodes/row"]) >= 6
        assert player.rows["memory"].max() > 5


@pytest.mark.parametrize("environment_id", ["CartPole-v1", "Pendulum-v1"])
def test_a_round_that_ends_on_the_device_leaves_the_same(environment_id: str):
    """Asked after the next round was played: facts, state, columns, and rows without a successor, in both forms."""
    steps, policy = 12, Remembering(environment_id)
    pool, other = (make_torch_pool(environment_id, 5, max_episode_steps=7) for _ in range(2))
    for each in (pool, other):
        each.reset_ids(seeds_of(5))
    players = [RoundPlayer(each, policy, policy.rows, (2,), steps, torch.zeros(5, 1)) for each in (pool, other)]
    waiting, expected = [], []
    for round_ in range(4):
        noise = np.random.default_rng(round_).normal(size=(steps, 5, 2)).astype(np.float32)
        buffers = buffers_for(other, steps)
        pool.begin_round(**buffers_for(pool, steps))
        other.begin_round(**buffers)
        for player in players:
            player.stage(noise)
            player.play()
        waiting.append(pool.end_on_device({"more": torch.full((2,), float(round_))}))
        end, state = other.end_round(), other.save()
        expected.append((left(buffers, end), {**state, "more": np.full(2, round_, dtype=np.float32)}))
    for ended, (wanted, state) in zip(waiting, expected, strict=True):
        end, found = ended.facts()
        record = ended.record
        assert_same(left({name: column.numpy() for name, column in record.columns.items()}, end), wanted)
        assert_same(found, state)
        rows = record.leaving_rows(fixed=False)
        assert rows.tolist() == end.bootstrap_rows.tolist()
        last = [5 * steps - 1] * (5 * steps - len(rows))
        assert record.leaving_rows(fixed=True).tolist() == rows.tolist() + last
        assert 5 < len(rows) < 5 * steps


class Operations(TorchDispatchMode):
    """Records the operations that torch is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        moves = func._schema.name == "aten::_to_copy" and kwargs.get("device", args[0].device) != args[0].device
        self.names.add("a copy to another device" if moves else func._schema.name)
        return func(*args, **kwargs)


READS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal", "a copy to another device"}
"""Operations that wait for a device, or copy from it."""


@pytest.mark.parametrize("environment_id", ["CartPole-v1", "Pendulum-v1"])
def test_a_round_asks_for_no_value(environment_id: str):
    """A round neither reads a value nor replaces a tensor: a CUDA graph needs that."""
    pool, policy = make_torch_pool(environment_id, 3), Remembering(environment_id)
    pool.reset_ids(seeds_of(3))
    pool.begin_round(**buffers_for(pool, 8))
    noise, carry, fresh = torch.zeros(8, 3, 2), torch.zeros(3, 1), torch.zeros(3, 1)
    rows = {
        name: torch.empty(8, 3, *spec.shape, dtype=getattr(torch, spec.dtype)) for name, spec in policy.rows.items()
    }
    with pool.whole_round(8) as (slots, record), Operations() as asked:
        held = (slots.words, slots.flags, slots.observation, *record.columns.values(), carry)
        addresses = [tensor.data_ptr() for tensor in held]
        play_round(slots, record, policy, noise, rows, carry, fresh)
        assert addresses == [tensor.data_ptr() for tensor in held]
    assert "aten::copy_" in asked.names
    assert not asked.names & READS
    with Operations() as asked:
        bool(rows["memory"].any())
    assert asked.names & READS


@pytest.mark.parametrize("environment_id", ["CartPole-v1", "Pendulum-v1"])
def test_a_tile_acts_with_either_pool(environment_id: str, make_context: MakeContext):
    """TileActor accepts a torch pool in place of a native one; a restored actor continues bit for bit."""
    context = make_context({"environment": {"id": environment_id}})
    params = context.algorithm.init(3).params

    def actor(*, in_torch: bool) -> TileActor:
        made = TileActor(context, 1)
        if in_torch:
            made._pool = make_torch_pool(environment_id, 3, max_episode_steps=5)
        return made

    def kept(acting: TileActor) -> Arrays:
        acted = acting.act_round(0, params, RoundBuffers(context, 1))
        return left(acted.buffers.arrays, acted.end) | {f"state/{name}": value for name, value in acted.state.items()}

    one, two = actor(in_torch=True), actor(in_torch=False)
    for each in (one, two):
        each.start()
    stored: list[Arrays] = []
    for _ in range(3):
        found, expected = kept(one), kept(two)
        stored.append(found)
        assert_same(found, expected)
    late = actor(in_torch=True)
    state = {name.removeprefix("state/"): value for name, value in stored[0].items() if name.startswith("state/")}
    late.restore(load_tensors(memoryview(save_tensors(state, {})), "state")[0], 1)
    for expected in stored[1:]:
        assert_same(kept(late), expected)


def test_a_policys_actions_are_checked():
    """One out of range, of another type or shape is refused before a kernel reads it, and the round is given up."""
    pool = make_torch_pool("CartPole-v1", 2)
    for action, message in (
        (torch.tensor([0, 2]), "action 2 of environment 1 is out of range"),
        (torch.zeros(2), r"expected a torch.int64 tensor of shape \(2,\) on cpu, got torch.float32"),
        (torch.zeros(3, dtype=torch.int64), r"got torch.int64 \(3,\)"),
    ):
        pool.reset(seed=1)
        pool.begin_round(**buffers_for(pool, 2))
        with pytest.raises((BatchError, ValueError), match=message), pool.whole_round(2) as (slots, record):
            record.step(slots, 0, action)
        with pytest.raises(RuntimeError, match=r"no round is open|not every environment is ready"):
            pool.end_round()


def drawn_actions(
    carry: torch.Tensor | None, observation: torch.Tensor, noise: torch.Tensor
) -> tuple[dict[str, torch.Tensor], torch.Tensor | None]:
    return {"action": (noise[:, 0] > 0).long()}, None


def test_rounds_and_steps_out_of_turn_are_refused():
    """A wrong step, action or buffer changes nothing; a reset, a restore or closing abandons a round."""
    pool = make_torch_pool("CartPole-v1", 2)
    buffers, right = buffers_for(pool, 3), np.zeros(2, dtype=np.int64)
    for call in (lambda: pool.step(right), lambda: pool.begin_round(**buffers), pool.save, lambda: pool.observation):
        with pytest.raises(RuntimeError, match="not every environment is ready"):
            call()
    pool.reset(seed=1)
    with pytest.raises(RuntimeError, match="no round is open"):
        pool.step_round(0, right)
    with pytest.raises(ValueError, match="reward: expected"):
        pool.begin_round(**buffers | {"reward": buffers["reward"].astype(np.float64)})
    pool.begin_round(**buffers)
    before = pool.save()
    for action, message in ((right + 2, "out of range"), (right.astype(np.int32), "int64"), (right[:1], "shape")):
        with pytest.raises(ValueError, match=message):
            pool.step_round(0, action)
    with pytest.raises(ValueError, match="got t=1, expected 0"):
        pool.step_round(1, right)
    with pytest.raises(RuntimeError, match="a round is open"):
        pool.step(right)
    assert_same(pool.save(), before)
    pool.step_round(0, right)
    with pytest.raises(RuntimeError, match="3 steps, only 1 were made"):
        pool.end_round()
    player = RoundPlayer(pool, drawn_actions, {"action": Spec("int64")}, (1,), 3)
    noise = np.zeros((3, 2, 1), dtype=np.float32)
    player.stage(noise)
    with pytest.raises(RuntimeError, match="1 steps of the round were made"):
        player.play()
    with pytest.raises(ValueError, match=r"noise: expected shape \(3, 2, 1\)"):
        player.stage(noise[:2])
    pool.begin_round(**buffers)
    with pytest.raises(TypeError, match="must agree whether there is a memory"):
        RoundPlayer(pool, drawn_actions, {"action": Spec("int64")}, (1,), 3, torch.zeros(2, 1)).play()
    pool.restore(before)
    with pytest.raises(RuntimeError, match="no round is open"):
        player.play()
    pool.begin_round(**buffers_for(pool, 2))
    with pytest.raises(ValueError, match="rounds of 3 steps, this one has 2"):
        player.play()
    pool.close()
    with pytest.raises(RuntimeError, match="this pool is closed"):
        pool.step(right)

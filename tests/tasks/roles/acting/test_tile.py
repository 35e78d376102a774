"""A tile's rounds are the same in whichever process they are acted, and however often it restarts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
import torch

from penstock.storage.errors import DivergedError
from penstock.storage.tensors import load_tensors, save_tensors
from penstock.tasks.roles.acting.tile import RoundBuffers, TileActor
from penstock.tasks.specs import LossInputs, NoiseSpec, ParameterGroup, Spec, State

if TYPE_CHECKING:
    from torch import Tensor

    from penstock.tasks.roles.acting.tile import ActedRound
    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.specs import Params

    from ...conftest import MakeContext

ROUNDS = 4
Arrays = dict[str, np.ndarray]


@pytest.fixture(params=["CartPole-v1", "Pendulum-v1", "simple_spread_v3"])
def context(request: pytest.FixtureRequest, make_context: MakeContext) -> RunContext:
    """Two tiles of three environments; episodes end every five steps at the latest, rounds have eight."""
    name = "mappo" if request.param == "simple_spread_v3" else "ppo"
    return make_context({"environment": {"id": request.param}, "algorithm": {"name": name}})


def params_of(context: RunContext) -> Params:
    return context.algorithm.init(3).params


def kept(acted: ActedRound) -> Arrays:
    """Copies of everything that a round leaves: the buffers are used again."""
    arrays = {name: array.copy() for name, array in acted.buffers.arrays.items()}
    arrays |= {f"state/{name}": np.array(value) for name, value in acted.state.items()}
    arrays |= {f"episodes/{name}": np.array(value) for name, value in acted.end.episodes.items()}
    arrays["bootstrap_rows"] = np.array(acted.end.bootstrap_rows)
    arrays["bootstrap_observation"] = np.array(acted.end.bootstrap_observation)
    return arrays


def assert_same(left: list[Arrays], right: list[Arrays]) -> None:
    assert len(left) == len(right)
    for one, two in zip(left, right, strict=True):
        assert one.keys() == two.keys()
        for name, array in one.items():
            found = (two[name].dtype, two[name].shape, two[name].tobytes())
            assert (array.dtype, array.shape, array.tobytes()) == found, name


def act_rounds(context: RunContext, tile: int, rounds: int = ROUNDS) -> list[Arrays]:
    actor = TileActor(context, tile)
    actor.start()
    buffers = RoundBuffers(context, tile)
    return [kept(actor.act_round(0, params_of(context), buffers)) for _ in range(rounds)]


def test_a_tile_resumes_from_its_state_bit_for_bit(context: RunContext):
    """A new instance for every round, restored from stored bytes: rows, bootstraps, episodes and states are equal."""
    found = []
    stored: bytes | None = None
    for round_ in range(ROUNDS):
        actor = TileActor(context, 1)
        if stored is None:
            actor.start()
        else:
            actor.restore(load_tensors(memoryview(stored), "state")[0], round_)
        assert actor.next_round == round_
        acted = actor.act_round(0, params_of(context), RoundBuffers(context, 1))
        stored = save_tensors(acted.state, {})
        found.append(kept(acted))
    assert_same(found, act_rounds(context, 1))
    assert sum(arrays["truncated"].sum() for arrays in found) > 0


def test_one_task_or_two_act_the_same(context: RunContext):
    """Two tiles round by round in one task, or each alone in its own."""
    actors = [TileActor(context, tile) for tile in range(2)]
    buffers = [RoundBuffers(context, tile) for tile in range(2)]
    for actor in actors:
        actor.start()
    together: list[list[Arrays]] = [[], []]
    for _ in range(ROUNDS):
        for tile, actor in enumerate(actors):
            together[tile].append(kept(actor.act_round(0, params_of(context), buffers[tile])))
    for tile in range(2):
        assert_same(together[tile], act_rounds(context, tile))
    assert together[0][0]["observation"].tobytes() != together[1][0]["observation"].tobytes()


def test_rounds_follow_each_other_without_a_gap(context: RunContext):
    """The successor of a round's last row is the first observation of the next, unless the episode ended there."""
    rounds = act_rounds(context, 0)
    envs = context.config.environment.envs_per_tile
    checked = 0
    for earlier, later in pairwise(rounds):
        ended = earlier["terminated"][-1] | earlier["truncated"][-1]
        steps = len(earlier["reward"])
        for env in range(envs):
            at = earlier["bootstrap_rows"].tolist().index((steps - 1) * envs + env)
            same = np.array_equal(earlier["bootstrap_observation"][at], later["observation"][0, env])
            assert same == (not ended[env])
            assert later["episode_id"][0, env] == earlier["episode_id"][-1, env] + ended[env]
            checked += not ended[env]
    assert checked > 0


def test_rows_record_environment_episode_and_version(context: RunContext):
    """Environment ids count over the whole run, versions are those of the parameters, and every cell is written."""
    actor = TileActor(context, 1)
    actor.start()
    buffers = RoundBuffers(context, 1)
    for array in buffers.arrays.values():
        if array is not buffers.arrays["env_id"]:
            array.fill(77)
    acted = actor.act_round(12, params_of(context), buffers)
    arrays = acted.buffers.arrays
    assert (acted.tile, acted.round, acted.version, actor.next_round, actor.round_steps) == (1, 0, 12, 1, 24)
    assert arrays["env_id"].tolist() == [[3, 4, 5]] * 8
    assert (arrays["policy_version"] == 12).all()
    for name, array in arrays.items():
        assert name == "policy_version" or not (array == 77).any(), name


def test_actions_are_those_of_the_algorithm(context: RunContext):
    """The stored log-probability is that of the stored action at the stored observation."""
    arrays = act_rounds(context, 0, rounds=1)[0]
    rows = {name: torch.from_numpy(arrays[name]).flatten(0, 1) for name in ("observation", "action", "log_probability")}
    rows |= {"advantage": torch.ones(rows["log_probability"].shape)}
    stats = {"count": 1.0, "advantage": 0.0, "advantage_square": 1.0}
    _, outputs = context.algorithm.losses[0].function(params_of(context), LossInputs(rows, 24, stats))
    assert outputs["kl"].abs().max() < 1e-5


@pytest.mark.parametrize("change", [{"seed": 6}, {}])
def test_everything_random_follows_from_the_seed(change: dict[str, Any], make_context: MakeContext):
    """Another seed gives other starts and other actions; the same, in another run, the same."""
    first = act_rounds(make_context({}), 0)
    second = act_rounds(make_context(change, name="second"), 0)
    if change:
        assert first[0]["observation"][0].tobytes() != second[0]["observation"][0].tobytes()
        assert first[0]["action"].tobytes() != second[0]["action"].tobytes()
    else:
        assert_same(first, second)


def test_every_round_has_noise_of_its_own(make_context: MakeContext):
    """A state acted as another round gets other actions; as the same round, the same."""
    context = make_context({"environment": {"id": "Pendulum-v1"}})
    state = TileActor(context, 0)
    state.start()
    saved = state.act_round(0, params_of(context), RoundBuffers(context, 0)).state

    def act_as(round_: int) -> bytes:
        actor = TileActor(context, 0)
        actor.restore(saved, round_)
        return actor.act_round(0, params_of(context), RoundBuffers(context, 0)).buffers.arrays["action"].tobytes()

    assert act_as(1) == act_as(1)
    assert act_as(1) != act_as(2)


@dataclass(frozen=True)
class StepCounter:
    """A policy with memory: its carry counts the steps of the episode, and is stored with every row."""

    rows: ClassVar = {"action": Spec("int64"), "count": Spec("float32", (2,))}
    noise: ClassVar = NoiseSpec("uniform")

    def init(self, seed: int) -> State:
        return State(params={"none": ParameterGroup({"x": torch.zeros(1)})})

    def initial_carry(self, envs: int) -> Tensor:
        return torch.zeros(envs, 2)

    def act(
        self, params: Params, carry: Tensor | None, observation: Tensor, noise: Tensor
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        assert carry is not None
        return {"action": (noise > 0.5).long(), "count": carry.clone()}, carry + torch.tensor([1.0, 10.0])


def test_the_carry_resets_with_every_episode_and_survives_a_restart(make_context: MakeContext):
    """The carry is fresh in an episode's first row, continues over the end of a round, and is in the stored state."""
    context = replace(make_context({}), algorithm=StepCounter())
    rounds = act_rounds(context, 0)
    length = np.zeros(3)
    for arrays in rounds:
        for step in range(8):
            assert arrays["count"][step, :, 0].tolist() == length.tolist()
            assert arrays["count"][step, :, 1].tolist() == (10 * length).tolist()
            length = np.where(arrays["terminated"][step] | arrays["truncated"][step], 0, length + 1)
    actor = TileActor(context, 0)
    state = {name.removeprefix("state/"): value for name, value in rounds[1].items() if name.startswith("state/")}
    actor.restore(load_tensors(memoryview(save_tensors(state, {})), "state")[0], 2)
    buffers = RoundBuffers(context, 0)
    assert_same([kept(actor.act_round(0, params_of(context), buffers)) for _ in range(2)], rounds[2:])


@pytest.mark.parametrize("broken", [np.inf, np.nan])
def test_a_policy_that_gives_no_numbers_has_diverged(make_context: MakeContext, broken: float):
    """By too large a learning rate: a search goes on with other trials, and a command says what would help."""
    context = make_context({"environment": {"id": "Pendulum-v1", "max_episode_steps": 200}})
    params = context.algorithm.init(1).params
    actor, buffers = TileActor(context, 0), RoundBuffers(context, 0)
    actor.start()
    params["policy"].flat.fill_(broken)
    with pytest.raises(DivergedError, match=r"stage 0 diverged in round 0: action .*finite.*algorithm\.learning_rate"):
        actor.act_round(0, params, buffers)

"""A tile whose environments are tensors gives the rounds of a native one, and resumes from its stored state."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from penstock.storage.errors import DivergedError
from penstock.storage.tensors import load_tensors, save_tensors
from penstock.tasks.roles.acting.tile import RoundBuffers, act_together
from penstock.tasks.roles.acting.torch_tile import DeviceParams, TorchTileActor

from .test_tile import ROUNDS, StepCounter, act_rounds, assert_same, kept, params_of

if TYPE_CHECKING:
    from penstock.tasks.roles.acting.tile import ActedRound
    from penstock.tasks.runtime.run_context import RunContext

    from ...conftest import MakeContext
    from .test_tile import Arrays

CPU = torch.device("cpu")


@pytest.fixture(params=["CartPole-v1", "Pendulum-v1", "ConnectFour-v0", "simple_spread_v3"])
def context(request: pytest.FixtureRequest, make_context: MakeContext) -> RunContext:
    name = "mappo" if request.param == "simple_spread_v3" else "ppo"
    return make_context({"environment": {"id": request.param}, "algorithm": {"name": name}})


def act_in_torch(context: RunContext, rounds: int = ROUNDS) -> list[Arrays]:
    """Every round by a new actor, from stored bytes."""
    found: list[Arrays] = []
    stored = b""
    for round_ in range(rounds):
        actor = TorchTileActor(context, 0, CPU)
        if stored:
            actor.restore(load_tensors(memoryview(stored), "state")[0], round_)
        else:
            actor.start()
        acted = actor.act_round(0, DeviceParams(CPU).load(params_of(context)), RoundBuffers(context, 0))
        stored = save_tensors(acted.state, {})
        found.append(kept(acted))
        actor.close()
    return found


def act_in_one_sitting(context: RunContext) -> list[Arrays]:
    """Parameters come over those before, as versions do in a run."""
    actor, params, buffers = TorchTileActor(context, 0, CPU), DeviceParams(CPU), RoundBuffers(context, 0)
    actor.start()
    found = []
    newest = params_of(context)
    older = {name: {key: value + 1 for key, value in group.items()} for name, group in newest.items()}
    for _ in range(ROUNDS):
        params.load(older)
        found.append(kept(actor.act_round(0, params.load(newest), buffers)))
    actor.close()
    return found


def test_rounds_are_those_of_native_environments(context: RunContext):
    """Actions, numbers, flags, episodes, bootstrap rows and states have the same bytes."""
    assert_same(act_in_one_sitting(context), act_rounds(context, 0))


def test_a_round_goes_to_the_host_when_it_is_asked_for(context: RunContext):
    """Acting leaves the host's columns alone, but for the first step's observations, with which a round begins.

    The next round does not change what is copied of this one.
    """
    actor, params = TorchTileActor(context, 0, CPU), DeviceParams(CPU).load(params_of(context))
    actor.start()
    rounds: list[ActedRound] = []
    for _ in range(2):
        act_together([actor], 0, params, lambda actor: RoundBuffers(context, actor.tile), rounds.append)
    actor.close()
    for acted in rounds:
        arrays = acted.buffers.arrays
        assert not any(column.any() for column in (arrays["observation"][1:], arrays["action"], arrays["reward"]))
        acted.to_host()
    assert_same([kept(acted) for acted in rounds], act_in_one_sitting(context)[:2])


def test_a_tile_resumes_from_its_state_bit_for_bit(context: RunContext):
    """A new actor for every round gives what one gives in a sitting, with the newest parameters."""
    assert_same(act_in_torch(context), act_in_one_sitting(context))


def test_the_carry_is_stored_and_resets_with_every_episode(make_context: MakeContext):
    """A policy's carry is that of native tiles, over the ends of episodes and rounds, and from stored bytes."""
    context = replace(make_context({}), algorithm=StepCounter())
    expected = act_rounds(context, 0)
    for found in (act_in_torch(context), act_in_one_sitting(context)):
        for mine, native in zip(found, expected, strict=True):
            assert np.array_equal(mine["count"], native["count"])
            assert np.array_equal(mine["state/carry"], native["state/carry"])
            assert mine["state/carry"].any()


def test_a_policy_that_diverged_is_named(make_context: MakeContext):
    """As by native environments: a sweep takes it for the worst result, and no failure."""
    context = make_context({"environment": {"id": "Pendulum-v1"}})
    params = params_of(context)
    with torch.inference_mode(mode=False), torch.no_grad():
        params["policy"].flat.fill_(np.nan)
    actor = TorchTileActor(context, 0, CPU)
    actor.start()
    with pytest.raises(DivergedError, match="stage 0 diverged in round 0: action of environment 0 is not finite"):
        actor.act_round(0, params, RoundBuffers(context, 0))
    actor.close()

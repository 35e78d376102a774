"""Learners that own agents have, after every round, each byte of one learner that trains all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from penstock.storage.errors import SpecMismatchError
from penstock.tasks.model.algorithms.mappo import MAPPO
from penstock.tasks.roles.acting.tile import RoundBuffers, TileActor
from penstock.tasks.roles.learning.round_update import StageTally, learn_batches
from penstock.tasks.roles.reducing.agents import AgentsReduction, trained_values
from penstock.tasks.roles.reducing.reduction import LocalReduction
from penstock.tasks.setup.config.loading import build_config
from penstock.tasks.setup.planning.dry_run import training_rows, trial_run

from .test_reduction import together

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.tasks.runtime.process_group import Group
    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.specs import Batch, State

ROUNDS, AGENTS = 3, 3
CONFIG = build_config(
    {
        "environment": {"id": "simple_spread_v3", "num_envs": 8, "envs_per_tile": 4},
        "algorithm": {
            "name": "mappo",
            "shared_parameters": False,
            "normalize_observation": True,
            "normalize_reward": True,
            "hidden": [8],
            "epochs": 2,
            "minibatches": 3,
        },
        "schedule": {"round_steps": 16},
        "distribution": {"gradient_block_rows": 16},
    }
)
OWNERS = [((0,), (1, 2)), ((2, 0), (1,)), ((1,), (2,), (0,)), ((0, 1, 2),)]


@pytest.fixture(scope="module")
def context() -> Iterator[RunContext]:
    with trial_run(CONFIG) as (_, context):
        yield context


@pytest.fixture(scope="module")
def rounds(context: RunContext) -> list[list[Batch]]:
    """Training rows of some rounds of two tiles, which random networks acted."""
    state = context.algorithm.init(1)
    actors = [(TileActor(context, tile), RoundBuffers(context, tile)) for tile in range(2)]
    for actor, _ in actors:
        actor.start()
    found = [
        [training_rows(context, state, actor.act_round(0, state.params, buffers)) for actor, buffers in actors]
        for _ in range(ROUNDS)
    ]
    for actor, _ in actors:
        actor.close()
    return found


def everything(state: State) -> dict[str, torch.Tensor]:
    """Return copies of all that a checkpoint has of a state."""
    found = {name: group.flat for name, group in state.params.items()} | state.targets
    found |= {f"{name}/{key}": value for name, group in state.optimizer.items() for key, value in group.items()}
    return {name: value.clone() for name, value in found.items()}


def learn(
    context: RunContext, rounds: list[list[Batch]], reduction: Any
) -> tuple[list[dict[str, torch.Tensor]], StageTally]:
    """Learn the rounds; returns the state after each, and the tally of all."""
    state, tally, states = context.algorithm.init(1), StageTally(), []
    for number, batches in enumerate(rounds):
        state = learn_batches(context, state, number, batches, tally, reduction)
        states.append(everything(state))
    return states, tally


@pytest.mark.parametrize("owners", OWNERS, ids=str)
def test_owners_of_agents_have_every_byte_of_one_learner(context, rounds, owners):
    """Parameters, moments of the optimizers and normalisers, on every learner; outputs are each one's own, and whole.

    Messages are a round's state of each owner's groups, to each of the others, and no gradient.
    """
    expected, alone = learn(context, rounds, LocalReduction(context.algorithm))

    def work(rank: int, group: Group) -> Any:
        reduction = AgentsReduction(context.algorithm, group, rank, owners)
        return *learn(context, rounds, reduction), reduction.edges.counts()

    found = together(len(owners), work)
    for states, _, _ in found:
        for after, one in zip(states, expected, strict=True):
            assert after.keys() == one.keys()
            assert all(torch.equal(after[name], value) for name, value in one.items())
    assert not torch.equal(expected[0]["policy_2"], expected[1]["policy_2"])
    outputs = {name: values for _, tally, _ in found for name, values in tally.outputs.items()}
    assert outputs == alone.outputs
    state, others = context.algorithm.init(1), len(owners) - 1
    for own, (_, tally, edges) in zip(owners, found, strict=True):
        assert tally.outputs.keys() == {name for name in alone.outputs if int(name.rpartition("_")[2]) in own}
        groups = [loss.group for loss in context.algorithm.losses if loss.agents[0] in own]
        nbytes = sum(value.nbytes for value in trained_values(state, groups))
        counted = edges.pop("learn -> learn")
        assert (counted.bytes, counted.rounds) == (ROUNDS * others * nbytes, ROUNDS * others)
        assert edges == {}


def test_a_learner_takes_no_step_for_others_agents(context, rounds):
    """Until the end of a round it changes the groups of its own agents alone."""

    class Interrupted(AgentsReduction):
        def after_round(self, state: State, stats: Any) -> State:
            return state

    def work(rank: int, group: Group) -> Any:
        return learn(context, rounds[:1], Interrupted(context.algorithm, group, rank, ((0, 2), (1,))))[0][0]

    before, found = everything(context.algorithm.init(1)), together(2, work)
    for name in ("policy_0", "value_0", "policy_2", "value_2", "policy_1/mean", "value_1/step"):
        own, other = (0, 1) if "_1" not in name else (1, 0)
        assert not torch.equal(found[own][name], before[name]), name
        assert torch.equal(found[other][name], before[name]), name


@pytest.mark.parametrize("shared", [True, False])
def test_losses_that_no_learner_owns_are_refused(context, shared):
    """Those of shared networks, and those of an agent without a learner: the message has the loss and the owners."""
    algorithm = context.algorithm
    if shared:
        algorithm = MAPPO(algorithm.settings.model_copy(update={"shared_parameters": True}), algorithm.environment)

    def work(rank: int, group: Group) -> str:
        with pytest.raises(SpecMismatchError) as caught:
            AgentsReduction(algorithm, group, rank, ((0, 1),))
        return str(caught.value)

    said = (
        "'policy' trains parameters of the agents None" if shared else "'policy_2' trains parameters of the agents [2]"
    )
    (message,) = together(1, work)
    assert said in message
    assert "the learners own [[0, 1]]" in message

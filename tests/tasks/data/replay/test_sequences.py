"""Training rows of several steps: which of them a replay selects, and how learners share them."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from penstock.storage.errors import ConfigError, SpecMismatchError
from penstock.storage.runs.run import RunFolder
from penstock.storage.shards.codec import decode_shard
from penstock.storage.stores.open import open_store
from penstock.tasks.data.replay.plan import _whole_rows, make_plan, pin
from penstock.tasks.driver.run import describe_run
from penstock.tasks.model.algorithms.behaviour_cloning import BehaviourCloning
from penstock.tasks.roles.acting.act import _resume_all
from penstock.tasks.roles.acting.shard_writer import RoundWriter
from penstock.tasks.roles.learning.stored_feed import StoredFeed
from penstock.tasks.runtime.run_context import RunContext, _load
from penstock.tasks.runtime.stored_objects import stored_shards
from penstock.tasks.setup.config.offline import BehaviourCloningSettings
from penstock.tasks.setup.config.replay import ReplayConfig, build_replay_config
from penstock.tasks.setup.planning.dry_run import NullMembership

from ....support.stored.synthetic_shards import commit_stage
from ...conftest import first_stage_of

if TYPE_CHECKING:
    from penstock.storage.shards.codec import Shard

    from ...conftest import MakeContext

STEPS, ENVS, ROUNDS, EPISODE_STEPS = 8, 3, 5, 20
MEMORY = {"network": "recurrent", "features": 4, "hidden": [4], "sequence_steps": 4, "burn_in_steps": 2}


@pytest.fixture
def shards(make_context: MakeContext) -> tuple[RunContext, list[Shard]]:
    """Five committed rounds of Pendulum: each of three environments has two whole episodes of 20 steps."""
    context = make_context(
        {
            "environment": {"id": "Pendulum-v1", "num_envs": ENVS, "max_episode_steps": EPISODE_STEPS},
            "schedule": {"round_steps": STEPS, "rounds_per_stage": ROUNDS},
        }
    )
    assignment, members = first_stage_of("act"), NullMembership()
    params, store = context.algorithm.init(3).params, context.run.store
    actors, found = _resume_all(assignment, context, range(1), None, None)
    writer = RoundWriter(assignment, context, members, found.shards, found.states)  # type: ignore[arg-type]
    for round_ in range(ROUNDS):
        writer.submit(actors[0].act_round(context.acting_version(round_), params, writer.buffers(actors[0])))
    writer.finish()
    writer.close()
    made = [
        replace(ref, nbytes=len(store.read(ref.name)), rows=STEPS * ENVS)
        for _, ref in sorted(stored_shards(store, 0, 0).items())
    ]
    commit_stage(context.run, 0, made)
    return context, [decode_shard(store.view(ref.name), None, ref.name, ref.digest) for ref in made]


def replay_of(context: RunContext, **changed: Any) -> ReplayConfig:
    given = {"name": "cloned", "source": {"runs": [context.run.name]}, "algorithm": MEMORY, **changed}
    return build_replay_config(given)


def test_a_row_is_selected_if_all_of_its_steps_are(shards: tuple[RunContext, list[Shard]]):
    """Two good episodes may share a row, and a shard without a whole row of good steps is left out."""
    context, found = shards
    reward = np.concatenate([shard.columns["reward"] for shard in found]).astype(np.float64)
    returns = reward.reshape(2, EPISODE_STEPS, ENVS).sum(1)
    for least in [*sorted(returns.flat), returns.max() + 1.0]:
        good = np.repeat(returns >= least - 1e-3, EPISODE_STEPS, 0)
        for steps in (4, 8):
            config = replay_of(
                context,
                source={"runs": [context.run.name], "min_return": float(least) - 1e-3},
                algorithm={**MEMORY, "sequence_steps": steps},
            )
            rows = good.reshape(ROUNDS, STEPS // steps, steps, ENVS).all(2).reshape(ROUNDS, -1)
            if not rows.any():
                with pytest.raises(ConfigError, match=rf", in whole sequences of {steps} steps; widen one of them"):
                    make_plan(context.run.root, config)
                continue
            plan, _ = make_plan(context.run.root, config)
            chosen = {plan[at].ref.round: plan[at] for at in range(len(plan))}
            assert sorted(chosen) == np.flatnonzero(rows.any(1)).tolist()
            for round_, planned in chosen.items():
                ids = planned.row_ids(STEPS, ENVS, steps)
                assert ids is not None
                assert ids.tolist() == np.flatnonzero(rows[round_]).tolist()
                assert planned.row_count == steps * len(ids)


def test_rows_that_episodes_share_are_whole():
    """Segments that lie side by side in one environment, and in no other, make up a row."""
    assert _whole_rows([1, 0, 1, 0, 2, 9, 1, 2, 3, 2, 4, 6], 4) == [0, 4, 7, 1, 0, 3]
    assert _whole_rows([0, 1, 4], 4) == []


@pytest.mark.parametrize("min_return", [None, 0.5], ids=["all", "chosen"])
def test_learners_have_the_chosen_sequences_between_them(shards: tuple[RunContext, list[Shard]], min_return):
    """The rows are those of one learner, numbered as it numbers them, though shards have different numbers of them."""
    context, found = shards
    root = open_store(context.run.root.url)
    source: dict[str, Any] = {"runs": [context.run.name]}
    if min_return is not None:
        reward = np.concatenate([shard.columns["reward"] for shard in found])
        source["min_return"] = float(np.quantile(reward.reshape(2, EPISODE_STEPS, ENVS).sum(1), min_return))
    run = RunFolder(root, "cloned")
    config, reads = pin(root, run, replay_of(context, source=source, schedule={"shards_per_round": 4}))
    run.create({**describe_run(config), **reads})
    replaying = _load(root.url, "cloned", "", str(context.cache.folder))
    params = replaying.algorithm.init(0).params
    rounds = []
    for replicas in (1, 2):
        parts = []
        for replica in range(replicas):
            assignment = first_stage_of("learn", replicas, store=root.url, run="cloned", replica=replica)
            members: Any = SimpleNamespace(log=logging.getLogger("learner"))
            with StoredFeed(assignment, replaying, members, torch.device("cpu")) as feed:
                taken = feed.next_round(params)
            (batch,) = taken.batches
            assert len(taken.steps) == MEMORY["sequence_steps"] * len(batch["action"])
            parts.append((taken, batch))
        assert {taken.all_steps for taken, _ in parts} == {4 * sum(len(batch["action"]) for _, batch in parts)}
        rounds.append({name: torch.cat([batch[name] for _, batch in parts]) for name in parts[0][1]})
    alone, shared = rounds
    assert alone.keys() == shared.keys() == {"observation", "fresh", "burned", "action"}
    assert all(torch.equal(column, shared[name]) for name, column in alone.items())
    assert (len(alone["action"]) < 4 * STEPS // 4 * ENVS) == (min_return is not None)


def test_steps_are_not_selected_of_rows_that_have_several(shards: tuple[RunContext, list[Shard]]):
    """A custom algorithm may make sequences that the settings of the replay do not tell: others would be taken."""
    context, _ = shards
    run, source = RunFolder(context.run.root, "cloned"), {"runs": [context.run.name], "min_return": -1e9}
    config, reads = pin(context.run.root, run, replay_of(context, source=source, algorithm={}))
    run.create({**describe_run(config), **reads})
    replaying = _load(context.run.root.url, "cloned", "", str(context.cache.folder))
    sequences = BehaviourCloning(BehaviourCloningSettings(**MEMORY), replaying.environment)
    members: Any = SimpleNamespace(log=logging.getLogger("learner"))
    assignment = first_stage_of("learn", store=context.run.root.url, run="cloned")
    feed = StoredFeed(assignment, replace(replaying, algorithm=sequences), members, torch.device("cpu"))
    with (
        feed,
        pytest.raises(SpecMismatchError, match=r"6 training rows of 24 stored steps, .* of 1 step: leave min_re"),
    ):
        feed.next_round(sequences.init(0).params)


def test_rounds_that_are_no_whole_number_of_sequences_are_refused(shards: tuple[RunContext, list[Shard]]):
    """Before anything is stored, by the run's name and both numbers; without a memory it is no matter."""
    context, _ = shards
    for algorithm in ({**MEMORY, "sequence_steps": 3}, {**MEMORY, "sequence_steps": 16}):
        said = (
            rf"sequence_steps = {algorithm['sequence_steps']}: run 'small' has stored rounds of 8 steps, .* a divisor"
        )
        with pytest.raises(ConfigError, match=said):
            make_plan(context.run.root, replay_of(context, algorithm=algorithm))
    plan, _ = make_plan(context.run.root, replay_of(context, algorithm={"sequence_steps": 3}))
    assert [plan[at].row_ids(STEPS, ENVS) for at in range(len(plan))] == [None] * ROUNDS

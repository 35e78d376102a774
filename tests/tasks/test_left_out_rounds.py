"""Episodes of a tile that leaves rounds out, and of which a shard came too late to be committed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from storage.joined import joined_episodes
from storage.shards import decode_shard
from tasks.act import _resume_all
from tasks.replay_plan import _good_segments
from tasks.stored import stored_shards
from tasks.tile import RoundBuffers, TileActor
from tasks.trial_rounds import Nobody
from tasks.writer import RoundWriter

from .conftest import first_stage_of

if TYPE_CHECKING:
    from storage.refs import ShardRef
    from storage.shards import Shard
    from tasks.context import RunContext

    from .conftest import MakeContext

STEPS, ENVS, EPISODE_STEPS = 8, 3, 20
ACTED, LATE = (0, 1, 3, 4, 6), 4


@pytest.fixture
def context(make_context: MakeContext) -> RunContext:
    """Pendulum's episodes have all their steps: two end, in the third and in the fifth round that are acted."""
    return make_context(
        {
            "environment": {"id": "Pendulum-v1", "max_episode_steps": EPISODE_STEPS},
            "schedule": {"round_steps": STEPS, "rounds_per_stage": 7},
            "placement": {"quorum": 0.5},
        }
    )


@pytest.fixture
def shards(context: RunContext) -> dict[int, tuple[ShardRef, Shard]]:
    """By round; each is acted by a task that began after the one before it was killed."""
    assignment = first_stage_of("act", replicas=2)
    params = context.algorithm.init(3).params
    for round_ in ACTED:
        members: Any = Nobody()
        actors, stored, states, _ = _resume_all(assignment, context, range(1), None, None)
        writer = RoundWriter(assignment, context, members, stored, states)
        actors[0].next_round = round_
        writer.submit(actors[0].act_round(context.acting_version(round_), params, writer.buffers(actors[0])))
        kept = writer.finish()
        writer.close()
        assert kept[0].round == round_
    store = context.run.store
    read = {
        ref.round: (ref, decode_shard(store.view(ref.name), None, ref.name, ref.digest)) for ref in stored_refs(context)
    }
    assert sorted(read) == list(ACTED)
    assert len(store.list("states/")) == 2
    return read


def stored_refs(context: RunContext) -> list[ShardRef]:
    return [
        replace(ref, nbytes=len(context.run.store.read(ref.name)), rows=STEPS * ENVS)
        for _, ref in sorted(stored_shards(context.run.store, 0, 0).items())
    ]


def test_a_shard_says_what_it_follows_and_when_its_episodes_began(shards, context):
    """A round that was left out is none of the episode's, and the version that began it is known all the same."""
    infos = {round_: shard.info for round_, (_, shard) in shards.items()}
    assert [infos[round_].round_before for round_ in ACTED] == [-1, 0, 1, 3, 4]
    for round_, began in ((3, 0), (6, 3)):
        episodes = infos[round_].episodes
        assert episodes.length.tolist() == [EPISODE_STEPS] * ENVS
        assert episodes.first_policy_version.tolist() == [began] * ENVS
        assert episodes.last_policy_version.tolist() == [round_] * ENVS


def test_episodes_are_whole_over_what_was_left_out_and_cut_where_a_shard_is_missing(shards):
    """No two steps stand side by side between which there were others."""
    committed = [shard for round_, (_, shard) in shards.items() if round_ != LATE]
    found = [(len(episode.columns["reward"]), episode.cut) for episode in joined_episodes(committed)]
    assert sorted(found) == sorted([(EPISODE_STEPS, False), (4, True), (STEPS, False)] * ENVS)


def test_a_replay_by_returns_takes_the_steps_of_the_episode(shards, context):
    """Those behind a shard that is missing, and none that only seem to lie before it."""
    refs = [ref for round_, (ref, _) in shards.items() if round_ != LATE]
    found = _good_segments(context.run, refs, STEPS, -1e9)
    expected = {0: (0, STEPS - 1), 1: (0, STEPS - 1), 3: (0, 3), 6: (0, STEPS - 1)}
    assert found == {
        (round_, 0): [number for env in range(ENVS) for number in (env, *span)] for round_, span in expected.items()
    }


def test_waiting_for_all_changes_no_state(make_context):
    """A run with quorum 1 stores no more of a tile than it ever did."""
    context = make_context({}, name="all")
    actor = TileActor(context, 0)
    actor.start()
    acted = actor.act_round(0, context.algorithm.init(3).params, RoundBuffers(context, 0))
    assert "first_policy_version" not in acted.state
    assert acted.follows_round is None

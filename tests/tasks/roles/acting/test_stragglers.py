"""Episodes of a tile that leaves rounds out, and of which a shard came too late to be committed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from penstock.storage.shards.codec import decode_shard
from penstock.storage.shards.whole_episodes import whole_episodes
from penstock.tasks.data.replay.plan import _good_segments
from penstock.tasks.roles.acting.act import _resume_all
from penstock.tasks.roles.acting.shard_writer import RoundWriter
from penstock.tasks.roles.acting.stragglers import due_rounds
from penstock.tasks.roles.acting.tile import RoundBuffers, TileActor
from penstock.tasks.runtime.stored_objects import stored_shards
from penstock.tasks.setup.planning.dry_run import NullMembership

from ...conftest import first_stage_of

if TYPE_CHECKING:
    from penstock.storage.refs import ShardRef
    from penstock.storage.shards.codec import Shard
    from penstock.tasks.runtime.run_context import RunContext

    from ...conftest import MakeContext

STEPS, ENVS, EPISODE_STEPS = 8, 3, 20
ACTED, LATE = (0, 1, 3, 4, 6), 4


@pytest.fixture
def context(make_context: MakeContext) -> RunContext:
    """Pendulum's episodes have all their steps: two end, in the third and in the fifth round that are acted."""
    return make_context(
        {
            "environment": {"id": "Pendulum-v1", "max_episode_steps": EPISODE_STEPS},
            "schedule": {"round_steps": STEPS, "rounds_per_stage": 7},
            "distribution": {"quorum": 0.5},
        }
    )


@pytest.fixture
def shards(context: RunContext) -> dict[int, tuple[ShardRef, Shard]]:
    """By round; each is acted by a task that began after the one before it was killed."""
    assignment = first_stage_of("act", replicas=2)
    params = context.algorithm.init(3).params
    for round_ in ACTED:
        members: Any = NullMembership()
        actors, found = _resume_all(assignment, context, range(1), None, None)
        writer = RoundWriter(assignment, context, members, found.shards, found.states)
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


def test_a_shard_records_its_predecessor_and_episode_starts(shards, context):
    """A round that was left out is none of the episode's, and the version that began it is known all the same."""
    infos = {round_: shard.info for round_, (_, shard) in shards.items()}
    assert [infos[round_].round_before for round_ in ACTED] == [-1, 0, 1, 3, 4]
    for round_, began in ((3, 0), (6, 3)):
        episodes = infos[round_].episodes
        assert episodes.length.tolist() == [EPISODE_STEPS] * ENVS
        assert episodes.first_policy_version.tolist() == [began] * ENVS
        assert episodes.last_policy_version.tolist() == [round_] * ENVS


def test_episodes_span_skipped_rounds_and_are_cut_at_a_missing_shard(shards):
    """No two steps stand side by side between which there were others."""
    committed = [shard for round_, (_, shard) in shards.items() if round_ != LATE]
    found = [(len(episode.columns["reward"]), episode.cut) for episode in whole_episodes(committed)]
    assert sorted(found) == sorted([(EPISODE_STEPS, False), (4, True), (STEPS, False)] * ENVS)


def test_a_replay_by_returns_takes_the_steps_of_the_episode(shards, context):
    """Those behind a shard that is missing, and none that only seem to be before it."""
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


@dataclass
class Actor:
    tile: int
    next_round: int


def test_a_round_is_acted_by_those_who_have_it_next():
    """A round that nobody has next is left out, and the member is told to leave before such a round, too."""
    actors, checks, acted = [Actor(0, 5), Actor(1, 7)], [], []
    for round_, due in due_rounds(range(4, 8), actors, None, lambda: checks.append(len(acted))):
        acted.append((round_, [actor.tile for actor in due]))
        for actor in due:
            actor.next_round += 1
    assert acted == [(5, [0]), (6, [0]), (7, [0, 1])]
    assert checks == [0, 0, 1, 2]

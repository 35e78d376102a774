"""A learner reads its stage's rounds in order, from the checkpoint's position, whatever other learners read."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from penstock.storage.errors import CorruptObjectError
from penstock.storage.runs.run import RunFolder
from penstock.storage.shards.codec import decode_shard
from penstock.storage.stores.open import open_store
from penstock.tasks.data.input.hand_over import HandedRows, ref_of
from penstock.tasks.roles.learning.shard_feed import ShardFeed, check_reader, learned_columns, reader_at
from penstock.tasks.runtime.assignment import Assignment
from penstock.tasks.runtime.stored_objects import stored_shards
from penstock.tasks.specs import Trajectory

from ....support.stored.faulty import FaultyStore
from ....support.stored.synthetic_shards import fill, store_shard

if TYPE_CHECKING:
    from penstock.storage.refs import ShardRef
    from penstock.storage.shards.epoch_order import ReaderState
    from penstock.tasks.data.input.pipeline import LoadedShard
    from penstock.tasks.runtime.run_context import RunContext

    from ...conftest import MakeContext

TILES, ROUNDS_A_STAGE = 4, 3
CPU = torch.device("cpu")


@pytest.fixture
def context(make_context: MakeContext) -> RunContext:
    """Four tiles, three rounds a stage; stage 1 is stored, so nobody has to be waited for."""
    context = make_context(
        {
            "environment": {"num_envs": 12, "envs_per_tile": 3},
            "schedule": {"round_steps": 5, "rounds_per_stage": ROUNDS_A_STAGE},
        }
    )
    for round_ in context.rounds_of(1):
        for tile in range(TILES):
            store_shard(context.run.store, context.columns, 1, round_, tile, 5, 3)
    return context


class Alone:
    """The part of a membership that a feed uses when it waits for no other member."""

    def __init__(self) -> None:
        self.log = logging.getLogger("learner")


def feed_of(
    context: RunContext,
    reader: ReaderState,
    replica: int = 0,
    replicas: int = 1,
    read_budget_bytes: int | None = None,
    handed: HandedRows | None = None,
) -> ShardFeed:
    assignment = Assignment(
        store="",
        run="small",
        stage=1,
        attempt=0,
        gang="",
        generation=1,
        role="learn",
        replica=replica,
        replicas=replicas,
        task_run="",
        cache_folder="",
        device="cpu",
        read_budget_bytes=read_budget_bytes,
    )
    # Every shard is stored, so the feed has nobody to ask.
    return ShardFeed(assignment, context, Alone(), CPU, reader, handed)


def keys(round_: list[LoadedShard]) -> list[tuple[int, int]]:
    return [(loaded.ref.round, loaded.ref.tile) for loaded in round_]


def test_rounds_come_in_order_with_all_their_tiles(context):
    """And reading stands behind the stage, as its checkpoint will say."""
    with feed_of(context, reader_at(context, 1)) as feed:
        for round_ in context.rounds_of(1):
            loaded = feed.take_shards()
            assert keys(loaded) == [(round_, tile) for tile in range(TILES)]
            for item in loaded:
                expected = fill(context.columns, round_, item.ref.tile, 5, 3)
                assert item.trajectory.columns["observation"].numpy().tobytes() == expected["observation"].tobytes()
            assert feed.reader.cursor == (round_ + 1) * TILES
        assert feed.reader == reader_at(context, 2)
        assert feed.tally().shards == TILES * ROUNDS_A_STAGE


def hand(context: RunContext, rows: HandedRows, round_: int, tile: int) -> Trajectory:
    """Hand a stored round over; returns the memory that a learner gets."""
    ref = stored_shards(context.run.store, 1, 0)[round_, tile]
    shard = decode_shard(memoryview(bytearray(context.run.store.read(ref.name))), context.columns, ref.name, ref.digest)
    stored_as: Future[ShardRef] = Future()
    stored_as.set_result(ref)
    columns = {name: torch.from_numpy(array.copy()) for name, array in shard.columns.items()}
    played = Trajectory(columns, torch.tensor(shard.bootstrap_rows), torch.tensor(shard.bootstrap_observation))
    rows.offer(round_, tile, lambda: shard.info, played, stored_as)
    return rows._held[round_, tile].trajectory


def test_an_update_gets_the_memory_that_was_handed_over(context):
    """A tile that was handed over is not read, copied or decoded, and the round's other tiles come from storage."""
    params, first = context.algorithm.init(1).params, context.rounds_of(1)[0]
    with feed_of(context, reader_at(context, 1)) as feed:
        expected = [feed.next_round(params) for _ in context.rounds_of(1)]
    rows = HandedRows(learned_columns(context), first, 0, lambda: None)
    handed = {tile: hand(context, rows, first, tile) for tile in (1, 2)}
    with feed_of(context, reader_at(context, 1), handed=rows) as feed:
        found = [feed.next_round(params) for _ in context.rounds_of(1)]
        read = [ref_of(shard) for wanted in expected for shard in wanted.shards]
        assert feed.tally().read_bytes == sum(
            ref.nbytes for ref in read if ref.round != first or ref.tile not in handed
        )
    for mine, wanted in zip(found, expected, strict=True):
        assert [ref_of(shard).name for shard in mine.shards] == [ref_of(shard).name for shard in wanted.shards]
        assert (mine.steps, mine.all_steps) == (wanted.steps, wanted.all_steps)
        pairs = zip(mine.describe, wanted.describe, strict=True)
        assert all(one().episodes.to_json() == two().episodes.to_json() for one, two in pairs)
        for one, two in zip(mine.batches, wanted.batches, strict=True):
            assert all(torch.equal(one[name], two[name]) for name in two)
    for tile, batch in enumerate(found[0].batches):
        shared = batch["action"].data_ptr() == handed[tile].columns["action"].data_ptr() if tile in handed else False
        assert shared == (tile in handed)


@pytest.mark.parametrize("learners", [2, 3, 4])
def test_learners_together_read_the_rows_of_one(context, learners):
    """Each learner takes its tiles of every round; together they are the round, and all are at the same position."""
    feeds = [feed_of(context, reader_at(context, 1), learner, learners) for learner in range(learners)]
    for feed in feeds:
        feed.__enter__()
    for round_ in context.rounds_of(1):
        parts = [keys(feed.take_shards()) for feed in feeds]
        assert [key for part in parts for key in part] == [(round_, tile) for tile in range(TILES)]
        assert len({feed.reader for feed in feeds}) == 1
    for feed in feeds:
        feed.__exit__()


def test_learners_that_own_agents_read_all_rows(context):
    """Each has every tile of every round, as one learner would."""
    context = replace(context, policy=replace(context.policy, reduce="agents"))
    with feed_of(context, reader_at(context, 1), 1, 2) as feed:
        for round_ in context.rounds_of(1):
            assert keys(feed.take_shards()) == [(round_, tile) for tile in range(TILES)]


def test_reading_resumes_at_the_stored_position(context):
    """From a cursor within the stage: the rounds before it don't come again."""
    with feed_of(context, reader_at(context, 1)) as feed:
        feed.take_shards()
        left = feed.reader
    with feed_of(context, left) as feed:
        assert [keys(feed.take_shards())[0][0] for _ in range(2)] == list(context.rounds_of(1))[1:]
        assert feed.reader == reader_at(context, 2)


def test_a_learner_gets_the_columns_that_losses_may_use(context):
    """The environment's and the algorithm's; who acted, and with what, stays in the file."""
    with feed_of(context, reader_at(context, 1)) as feed:
        columns = feed.take_shards()[0].trajectory.columns
    assert columns.keys() == {"observation", "reward", "terminated", "truncated", "action", "log_probability"}


def test_a_checkpoint_of_another_place_is_refused(context):
    """Rows would be skipped, or learned twice: the error names the checkpoint and both places."""
    right = reader_at(context, 1)
    check_reader(right, 1, right.to_json(), "checkpoints/x")
    for wrong in (
        {**right.to_json(), "cursor": right.cursor - 1},
        {**right.to_json(), "commit": right.commit + 1},
        {**right.to_json(), "seed": right.seed + 1},
        {"cursor": right.cursor},
    ):
        with pytest.raises(CorruptObjectError, match="checkpoints/x"):
            check_reader(right, 1, wrong, "checkpoints/x")
    with pytest.raises(CorruptObjectError, match="skipped or learned twice"):
        check_reader(reader_at(context, 2), 2, right.to_json(), "checkpoints/x")


@pytest.mark.parametrize("place", ["local", "remote"])
@pytest.mark.parametrize("budget_bytes", [None, 1])
def test_a_budget_bounds_reading_ahead_and_changes_no_row(context, budget_bytes, place):
    """With a budget that holds nothing, rounds come as they do with one that holds all: shard after shard."""
    sizes = []
    if place == "remote":
        context = replace(context, run=RunFolder(FaultyStore(open_store(context.run.root.url)), "small"))
    with feed_of(context, reader_at(context, 1), read_budget_bytes=budget_bytes) as feed:
        for round_ in context.rounds_of(1):
            loaded = feed.take_shards()
            assert keys(loaded) == [(round_, tile) for tile in range(TILES)]
            for item in loaded:
                expected = fill(context.columns, round_, item.ref.tile, 5, 3)
                for name in ("observation", "reward", "action", "log_probability"):
                    assert item.trajectory.columns[name].numpy().tobytes() == expected[name].tobytes(), name
            sizes += [item.ref.nbytes for item in loaded]
        peak = feed.tally().peak_bytes
    assert budget_bytes is None or peak <= (TILES + 1) * max(sizes)

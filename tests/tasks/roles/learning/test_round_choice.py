"""The choice of shards with a quorum below 1, and the round at which a late tile resumes."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

from penstock.storage.errors import GangError, StageMismatchError
from penstock.storage.refs import ShardRef, choice_name
from penstock.storage.runs.round_choices import Choice, store_choice
from penstock.tasks.roles.acting.stragglers import LateTiles
from penstock.tasks.roles.learning.shard_feed import ShardFeed, reader_at
from penstock.tasks.runtime.mailbox import Mailbox
from penstock.tasks.runtime.stored_objects import stored_shards

from ....support.stored.synthetic_shards import store_shard
from ...conftest import first_stage_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.tasks.runtime.run_context import RunContext

    from ...conftest import MakeContext

TILES, ROUNDS, LAG = 4, 6, 2
TOPIC = "gang"


class Member:
    """The part of a membership that waiting uses. `others` runs after each poll that was not enough."""

    def __init__(self, others: Callable[[], object] = lambda: None) -> None:
        self.log = logging.getLogger("learner")
        self.mailbox = Mailbox()
        self.mailbox.open(TOPIC)
        self.others = others
        self.left = False

    def wait(self, notified: Callable[[Any], bool], poll: Callable[[], bool]) -> float:
        while not self.mailbox.wait(TOPIC, notified, 0.02) and not poll():
            if self.left:
                raise GangError("the test is over")
            self.others()
        return 0.0

    def wait_notification(self, ready: Callable[[Any], bool], timeout_seconds: float) -> bool:
        return self.mailbox.wait(TOPIC, ready, timeout_seconds)

    def wake(self) -> None:
        self.mailbox.post(TOPIC, {})

    def notify(self, fragment: str, key: str, value: Any) -> None:
        self.mailbox.post(TOPIC, {key: value})

    def latest(self, key: str) -> Any:
        return self.mailbox.get(TOPIC, key)


@pytest.fixture
def context(make_context: MakeContext) -> RunContext:
    """Four tiles, of which two make a round."""
    return make_context(
        {
            "environment": {"num_envs": 12, "envs_per_tile": 3},
            "schedule": {"round_steps": 5, "rounds_per_stage": ROUNDS, "lag": LAG},
            "distribution": {"quorum": 0.5},
        }
    )


@pytest.fixture
def put(context: RunContext) -> Callable[..., None]:
    """Stores shards of a round."""

    def store(round_: int, *tiles: int) -> None:
        for tile in tiles:
            store_shard(context.run.store, context.columns, 0, round_, tile, 5, 3)

    return store


def rounds_of(context: RunContext, member: Member, rounds: int) -> tuple[list[list[int]], int]:
    """The tiles of each round that a learner takes, and how many shards it missed."""
    device: Any = torch.device("cpu")
    with ShardFeed(first_stage_of("learn"), context, member, device, reader_at(context, 0)) as feed:
        found = [[loaded.ref.tile for loaded in feed.take_shards()] for _ in range(rounds)]
        assert feed.reader.cursor == rounds * TILES
        member.left = True
        missed = feed.missed_shards
    for thread in threading.enumerate():
        if thread.name == "shard-finder":  # it reads ahead, and might choose from shards that a test stores next
            thread.join()
    return found, missed


def test_a_round_is_the_stored_shards_and_never_changes(context, put):
    """Three of four are taken, though two would do; the fourth comes late, and a learner that begins again leaves it.

    So does one that finds the choice of another, and the actors hear of every choice.
    """
    put(0, 0, 2, 3)
    put(1, *range(TILES))
    member = Member()
    assert rounds_of(context, member, 2) == ([[0, 2, 3], [0, 1, 2, 3]], 1)
    assert member.latest("chosen") >= 1
    put(0, 1)
    put(2, *range(TILES))
    ref = stored_shards(context.run.store, 0, 0)[2, 1]
    store_choice(context.run.store, 0, 0, Choice(2, {1: ref.digest}))
    assert rounds_of(context, Member(), 3) == ([[0, 2, 3], [0, 1, 2, 3], [1]], 4)


def test_fewer_are_waited_for(context, put):
    """One of four is too few: learning resumes with the second."""
    put(0, 1)
    assert rounds_of(context, Member(lambda: put(0, 3)), 1) == ([[1, 3]], 2)


def test_reading_ahead_leaves_nothing_out(context, put):
    """While nobody waits for a round, its stragglers are: only what learning would wait for is missed."""
    put(0, *range(TILES))
    put(1, 0, 1)
    device = torch.device("cpu")
    late = [3, 2]
    member = Member(lambda: late and put(1, late.pop()))
    with ShardFeed(first_stage_of("learn"), context, member, device, reader_at(context, 0)) as feed:
        feed.take_shards()
        # The finder is at round 1, for which no taker waits: it polls until all are there.
        while not context.run.store.exists(choice_name(0, 0, 1)):
            member.mailbox.wait(TOPIC, lambda _: False, 0.02)
        assert [loaded.ref.tile for loaded in feed.take_shards()] == [0, 1, 2, 3]
        assert feed.missed_shards == 0
        member.left = True


@pytest.mark.parametrize("lost", ["shard", "choice"])
def test_a_choice_that_can_not_be_followed_ends_the_attempt(context, put, lost):
    """Learning something else in its place would make other parameters of the same version."""
    put(0, 0, 1, 2)
    rounds_of(context, Member(), 1)
    store = context.run.store
    if lost == "shard":
        store.delete([name for name in store.list("shards/") if "-0001-" in name])
    else:
        store.write(choice_name(0, 0, 0), [b"{}"])
    with pytest.raises(StageMismatchError, match=r"begins|starts again"):
        rounds_of(context, Member(), 1)


class Snapshots:
    def __init__(self, newest: int) -> None:
        self.newest = newest


class Tile:
    def __init__(self, next_round: int) -> None:
        self.tile, self.next_round = 1, next_round


@pytest.mark.parametrize(
    ("next_round", "chosen", "newest", "stored", "expected"),
    [
        (2, 1, 2, (0, 1), 2),  # in time
        (1, None, 1, (0,), 1),  # nothing was heard yet
        (0, 0, 1, (), 3),  # late: the newest round that may be acted with version 1 at a lag of 2
        (1, 3, 2, (0,), 4),  # late; whatever was announced, never a round that is chosen
        (1, 2, 7, (0,), 5),  # late: the stage's last round
        (1, 5, 6, (0,), 6),  # too late for the stage
        (0, 5, 6, (), 5),  # too late, but each tile acts a round of each stage
        (1, 3, 3, (0, 1), 1),  # it was acted before, so its environments go through it again
        (1, 3, 3, (0, 2), 2),  # and through none that was left out before
    ],
)
def test_the_next_round_of_a_late_tile(context, next_round, chosen, newest, stored, expected):
    """A late tile leaves out what nobody would learn from, and takes the newest round that the lag allows."""
    member = Member()
    if chosen is not None:
        member.notify("act", "chosen", chosen)
    shards = {(round_, 1): ShardRef("", "", 0, round_, 1, 0) for round_ in stored}
    late: Any = LateTiles(first_stage_of("act"), context, member, Snapshots(newest), shards)
    tile = Tile(next_round)
    late.leave_out([tile], next_round)
    assert tile.next_round == expected


@pytest.mark.parametrize("begun", ["after the choice", "before it, on another cluster than the learner"])
def test_an_act_task_without_notifications_finds_choices_in_storage(context, begun):
    """Storage is the truth: for one that was restarted, and for one that the learner can't reach."""
    member, tile = Member(), Tile(1)
    choice = Choice(4, {0: "a" * 32})
    if begun == "after the choice":
        store_choice(context.run.store, 0, 0, choice)
    late: Any = LateTiles(first_stage_of("act"), context, member, Snapshots(0), {})
    if begun != "after the choice":
        member.mailbox.post(TOPIC, {"elsewhere": True})
        store_choice(context.run.store, 0, 0, choice)
    late.leave_out([tile], 1)
    assert tile.next_round == 5

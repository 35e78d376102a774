"""A replay's learner reads the planned rows in order, from a local or a remote store, within its budget."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from penstock.storage.errors import ConfigError, CorruptObjectError, SpecMismatchError
from penstock.storage.runs.run import RunFolder
from penstock.storage.shards.codec import decode_shard
from penstock.storage.shards.specs import Spec
from penstock.storage.stores.open import open_store
from penstock.tasks.data.replay.plan import pin
from penstock.tasks.data.replay.rounds import ReplayRounds, shard_order
from penstock.tasks.driver.run import describe_run
from penstock.tasks.roles.learning import learn
from penstock.tasks.roles.learning.learn import learn_stage
from penstock.tasks.roles.learning.stored_feed import StoredFeed
from penstock.tasks.runtime.assignment import Assignment
from penstock.tasks.runtime.events import MemberEvent, Progress
from penstock.tasks.runtime.run_context import RunContext, _load
from penstock.tasks.setup.config.loading import build_config, merge
from penstock.tasks.setup.config.replay import build_replay_config

from ....support.stored.faulty import Fault, FaultyStore
from ....support.stored.synthetic_shards import commit_stage, fill, store_shard
from ...conftest import SMALL

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.storage.refs import ShardRef

ROUNDS, SHARDS_A_ROUND = 3, 4
CPU = torch.device("cpu")
COLUMNS = {
    "observation": Spec("float32", (3,)),
    "reward": Spec("float32"),
    "terminated": Spec("uint8"),
    "truncated": Spec("uint8"),
    "action": Spec("float32", (1,)),
    "what_only_another_algorithm_needs": Spec("float32", (32,)),
    "env_id": Spec("int32"),
}


class Alone:
    """The part of a membership that a replay's learner uses; it waits for no other member."""

    def __init__(self) -> None:
        self.log = logging.getLogger("learner")
        self.events: list[MemberEvent] = []

    def check(self) -> None:
        pass

    def fail(self, error: BaseException) -> None:
        raise AssertionError("a local store is written to in the learner's own thread") from error

    def notify(self, fragment: str, key: str, value: Any) -> None:
        pass

    def emit_event(self, event: MemberEvent) -> None:
        self.events.append(event)


class Replaying:
    """A replay of two runs of a store, each with a stage of three shards."""

    def __init__(
        self,
        url: str,
        folder: Path,
        columns: dict[str, Spec] = COLUMNS,
        steps: int = 16,
        **algorithm: Any,
    ) -> None:
        root = open_store(url)
        self.url = url
        self.folder = folder
        self.shards: dict[str, list[ShardRef]] = {}
        for index, source in enumerate(("one", "two")):
            run = RunFolder(root, source)
            run.create(describe_run(build_config(merge(SMALL, {"name": source, "environment": {"id": "Pendulum-v1"}}))))
            refs = [store_shard(run.store, columns, 0, round_, index, steps, 3) for round_ in range(3)]
            commit_stage(run, 0, refs)
            self.shards[source] = refs
        schedule = {"shards_per_round": SHARDS_A_ROUND, "rounds_per_stage": ROUNDS, "max_stages": 2}
        wanted = {"name": "cloned", "seed": 3, "source": {"runs": ["one", "two"]}, "schedule": schedule}
        run = RunFolder(root, "cloned")
        config, reads = pin(root, run, build_replay_config({**wanted, "algorithm": {"hidden": [8], **algorithm}}))
        run.create({**describe_run(config), **reads})
        self.context: RunContext = _load(url, "cloned", "", str(folder))
        self.members: Any = Alone()

    def assignment(self, read_budget_bytes: int | None = None) -> Assignment:
        return Assignment(
            store=self.url,
            run="cloned",
            stage=0,
            attempt=0,
            generation=1,
            gang="",
            role="learn",
            replica=0,
            replicas=1,
            task_run="",
            cache_folder=str(self.folder),
            device="cpu",
            read_budget_bytes=read_budget_bytes,
        )

    def feed(self, read_budget_bytes: int | None = None) -> StoredFeed:
        return StoredFeed(self.assignment(read_budget_bytes), self.context, self.members, CPU)

    def expected(self) -> list[dict[str, torch.Tensor]]:
        """The rounds by hand: whole shards, one after another, in the order of the replay."""
        root, planned = open_store(self.url), [(name, ref) for name, refs in self.shards.items() for ref in refs]
        rounds: list[dict[str, torch.Tensor]] = []
        order = list(shard_order(3, len(planned), 0, ROUNDS * SHARDS_A_ROUND))
        for first in range(0, len(order), SHARDS_A_ROUND):
            parts: dict[str, list[torch.Tensor]] = {"observation": [], "action": []}
            for name, ref in (planned[index] for index in order[first : first + SHARDS_A_ROUND]):
                shard = decode_shard(root.at(name).view(ref.name), None, ref.name, ref.digest)
                for column, values in parts.items():
                    values.append(torch.from_numpy(shard.columns[column]).flatten(0, 1))
            rounds.append({column: torch.cat(values) for column, values in parts.items()})
        return rounds


@pytest.fixture(params=["local", "remote"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a store, in a folder or on an S3 server."""
    return str(tmp_path / "runs") if request.param == "local" else request.getfixturevalue("s3_url")


@pytest.mark.parametrize("budget_bytes", [None, 1])
def test_rounds_are_the_planned_rows_in_their_order(url, tmp_path, budget_bytes):
    """Bit for bit, across runs and epochs, wherever the shards lie; also with a budget that holds nothing."""
    replaying = Replaying(url, tmp_path / "cache")
    state = replaying.context.algorithm.init(0)
    with replaying.feed(budget_bytes) as feed:
        for expected in replaying.expected():
            (batch,) = feed.next_round(state.params).batches
            assert batch.keys() == expected.keys()
            for name, column in expected.items():
                assert torch.equal(batch[name], column), name
        tally = feed.tally()
    assert tally.shards == ROUNDS * SHARDS_A_ROUND
    sizes = [ref.nbytes for refs in replaying.shards.values() for ref in refs]
    assert budget_bytes is None or tally.peak_bytes <= (SHARDS_A_ROUND + 1) * max(sizes)


def test_a_budget_for_two_rounds_is_kept_to_and_not_remarked_on(tmp_path, caplog):
    """Rows read ahead and rows learned never exceed it together; a smaller budget is warned about once."""
    replaying = Replaying(str(tmp_path / "runs"), tmp_path / "cache", steps=4096)
    state = replaying.context.algorithm.init(0)
    largest = max(ref.nbytes for refs in replaying.shards.values() for ref in refs)
    budget_bytes = 2 * SHARDS_A_ROUND * largest
    with replaying.feed(budget_bytes) as feed:
        for _ in range(ROUNDS):
            feed.next_round(state.params)
        assert SHARDS_A_ROUND * largest // 2 < feed.tally().peak_bytes <= budget_bytes
    assert not caplog.records
    for _ in range(2):
        replaying.feed(budget_bytes // 2)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "cluster.read_budget_bytes" in caplog.text


def test_a_batch_keeps_none_of_the_memory_that_it_came_in(tmp_path):
    """Its shards are given back with it: a round later it holds what it held."""
    replaying = Replaying(str(tmp_path / "runs"), tmp_path / "cache")
    state = replaying.context.algorithm.init(0)
    with replaying.feed(1) as feed:
        kept = [batch for _ in range(ROUNDS) for batch in feed.next_round(state.params).batches]
        assert feed._pipeline._prefetcher.held_bytes == 0
    for batch, expected in zip(kept, replaying.expected(), strict=True):
        assert torch.equal(batch["observation"], expected["observation"])


def test_only_columns_that_are_learned_from_are_fetched_from_afar(s3_url, tmp_path):
    """From the first shard on, though nobody says what else there is."""
    replaying = Replaying(s3_url, tmp_path / "cache", steps=4096)
    state = replaying.context.algorithm.init(0)
    with replaying.feed() as feed:
        for expected in replaying.expected():
            (batch,) = feed.next_round(state.params).batches
            assert torch.equal(batch["observation"], expected["observation"])
        tally, looked = feed.tally(), feed.cache_tally
    planned = [ref.nbytes for refs in replaying.shards.values() for ref in refs]
    assert tally.read_bytes < 0.4 * ROUNDS * SHARDS_A_ROUND * min(planned)
    assert (looked.hits, looked.misses, looked.origin_bytes) == (0, tally.shards, tally.read_bytes)


def test_a_shard_that_this_node_has_is_not_fetched(s3_url, tmp_path):
    """It lies in the node's cache because an act task of the source run was here."""
    replaying = Replaying(s3_url, tmp_path / "cache")
    store = open_store(s3_url)
    for name, refs in replaying.shards.items():
        for ref in refs:
            replaying.context.cache.get_buffer(store.at(name), ref)
    with replaying.feed() as feed:
        for expected in replaying.expected():
            (batch,) = feed.next_round(replaying.context.algorithm.init(0).params).batches
            assert torch.equal(batch["observation"], expected["observation"])
    assert (feed.cache_tally.hits, feed.cache_tally.misses) == (ROUNDS * SHARDS_A_ROUND, 0)
    assert feed.tally().requests == 0


@pytest.mark.parametrize("harm", ["cut", "altered", "removed"])
def test_a_damaged_shard_is_named_with_its_run_and_stays(url, tmp_path, harm):
    """It is another run's: what is wrong with it is said, and what to do; nothing is removed."""
    replaying = Replaying(url, tmp_path / "cache")
    store, victim = open_store(url).at("two"), replaying.shards["two"][1]
    content = bytearray(store.read(victim.name))
    if harm == "removed":
        store.delete([victim.name])
    else:
        content[content.index(fill(COLUMNS, 1, 1, 16, 3)["action"].tobytes())] ^= 1
        store.write(victim.name, [content[: len(content) // 2] if harm == "cut" else content])
    state = replaying.context.algorithm.init(0)
    with replaying.feed() as feed, pytest.raises(CorruptObjectError) as raised:
        [feed.next_round(state.params) for _ in range(ROUNDS)]
    for part in (f"'{victim.name}' of run 'two'", "Restore it from a copy"):
        assert part in str(raised.value)
    assert store.exists(victim.name) is (harm != "removed")


@pytest.mark.parametrize("steps", [16, 4096], ids=["whole", "in columns"])
@pytest.mark.parametrize("change", [None, Spec("int64")], ids=["without", "of another type"])
def test_lacking_columns_are_named_with_the_shard_and_its_run(url, tmp_path, change, steps):
    """The error names the needed column, the found one, the shard and its run."""
    columns = {name: spec for name, spec in COLUMNS.items() if name != "action"} | (
        {"action": change} if change else {}
    )
    replaying = Replaying(url, tmp_path / "cache", columns, steps)
    with replaying.feed() as feed, pytest.raises(SpecMismatchError) as raised:
        feed.next_round(replaying.context.algorithm.init(0).params)
    found = "int64" if change else "no such column"
    for part in (
        "shards/00000000/",
        "of run '",
        "lacks columns that 'behaviour_cloning' requires",
        f"action: float32[1] (found {found})",
    ):
        assert part in str(raised.value)
    assert "reward:" not in str(raised.value)


def test_a_stage_ends_with_the_same_bytes_and_reports_its_reads(url, tmp_path, monkeypatch):
    """Whatever its budget: one snapshot, one checkpoint; the pipeline's tally is in its timings and its progress."""
    monkeypatch.setattr(learn, "_REPORT_SECONDS", 0.0)
    replaying = Replaying(url, tmp_path / "cache")
    results = [
        learn_stage(replaying.assignment(budget_bytes), replaying.context, replaying.members)
        for budget_bytes in (None, 1)
    ]
    assert results[0].published == results[1].published
    for result in results:
        assert result.times.pipeline.shards == ROUNDS * SHARDS_A_ROUND
        assert result.times.pipeline.read_bytes > 0
        assert result.times.cache is not None
    progress = [event for event in replaying.members.events if isinstance(event, Progress)]
    assert [event.round for event in progress] == [*range(ROUNDS), *range(ROUNDS)]
    assert progress[-1].queue_depth == results[1].times.pipeline.queue_depth


def test_of_rounds_that_follow_quickly_the_first_and_the_last_one_are_reported(url, tmp_path, monkeypatch):
    """Each report costs time in three processes; those in between may be left out."""
    monkeypatch.setattr(learn, "_REPORT_SECONDS", math.inf)
    replaying = Replaying(url, tmp_path / "cache")
    learn_stage(replaying.assignment(), replaying.context, replaying.members)
    progress = [event.round for event in replaying.members.events if isinstance(event, Progress)]
    assert progress == [0, ROUNDS - 1]


def test_a_learner_of_a_replay_has_a_shard_of_every_round():
    """More learners than shards are refused, with both numbers."""
    settings = {"source": {"runs": ["a"]}, "distribution": {"policy": "central", "learn_tasks": 3}}
    assert build_replay_config({**settings, "schedule": {"shards_per_round": 3}}).make_policy().learners == 3
    with pytest.raises(ConfigError, match=r"distribution.learn_tasks = 3, but a round has only 2 shards"):
        build_replay_config({**settings, "schedule": {"shards_per_round": 2}})


@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_learners_have_all_of_a_round_between_them(tmp_path, replicas):
    """One after another, their shards and rows are those of one learner, in its order, in every round and epoch."""
    context = Replaying(str(tmp_path / "runs"), tmp_path / "cache").context
    parts = [ReplayRounds(context, replica, replicas) for replica in range(replicas)]
    for round_ in range(2 * ROUNDS):
        alone = [planned.ref.name for planned in ReplayRounds(context).own(range(round_, round_ + 1))]
        assert [planned.ref.name for part in parts for planned in part.own(range(round_, round_ + 1))] == alone
        shares = [part.share_of(round_) for part in parts]
        assert [row for own, _ in shares for row in own] == list(range(SHARDS_A_ROUND * 16 * 3))
        assert {in_all for _, in_all in shares} == {SHARDS_A_ROUND * 16 * 3}


@pytest.mark.parametrize(
    "memory", [{}, {"network": "recurrent", "features": 4, "sequence_steps": 8, "burn_in_steps": 4}], ids=["", "memory"]
)
def test_implicit_q_learning_replays_as_cloning_does(tmp_path, memory):
    """From the same shards, by its name: it learns all three of its losses, twice to the same bytes."""
    replaying = Replaying(str(tmp_path / "runs"), tmp_path / "cache", name="iql", **memory)
    first, again = (learn_stage(replaying.assignment(), replaying.context, replaying.members) for _ in range(2))
    assert {"value_loss", "critic_loss", "negative_log_likelihood"} <= first.outputs.keys()
    rows = ROUNDS * SHARDS_A_ROUND * 16 * 3
    assert first.times.update_rows == rows // replaying.context.config.algorithm.row_steps
    assert first.published.checkpoint == again.published.checkpoint


def test_a_stage_ends_when_its_snapshot_is_stored(tmp_path):
    """On a remote store uploads run behind; the commit that names a snapshot must not come before it."""
    replaying = Replaying(str(tmp_path / "runs"), tmp_path / "cache")
    slow = Fault("delay", ("write",), "*snapshots/*", calls=None, seconds=0.5)
    remote = RunFolder(FaultyStore(open_store(replaying.url), [slow]), "cloned")
    result = learn_stage(replaying.assignment(), replace(replaying.context, run=remote), replaying.members)
    assert replaying.context.run.store.exists(result.published.snapshots[0].name)

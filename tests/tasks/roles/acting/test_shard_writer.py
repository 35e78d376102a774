"""Rounds are stored behind the actor, near at once, in an order that a restarted task can rely on."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from penstock.storage.cache.node_cache import NodeCache
from penstock.storage.errors import StageMismatchError, StoreError
from penstock.storage.refs import ShardRef, parse_shard_name, parse_state_name
from penstock.storage.runs.run import RunFolder
from penstock.storage.runs.timings import ActTimes
from penstock.storage.shards.codec import decode_shard
from penstock.storage.stores.open import open_store
from penstock.tasks.driver.results import check_agreement
from penstock.tasks.roles.acting.act import _resume_all
from penstock.tasks.roles.acting.shard_writer import RoundWriter
from penstock.tasks.runtime.announcements import wait_for
from penstock.tasks.runtime.assignment import Assignment
from penstock.tasks.runtime.results import ActResult

from ....support.stored.faulty import Fault, FaultyStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.tasks.runtime.run_context import RunContext

    from ...conftest import MakeContext

ROUNDS = 4
PATIENCE_SECONDS = 150


class Hints:
    """The part of a membership that writing uses: it keeps notifications."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = {}
        self.replicas: dict[str, set[int]] = {}
        self.failures: list[BaseException] = []

    def fail(self, error: BaseException) -> None:
        self.failures.append(error)

    def notify(self, fragment: str, key: str, value: Any, replica: int) -> None:
        assert fragment == "buffer"
        self.told[key] = value
        self.replicas.setdefault(key, set()).add(replica)

    def latest(self, key: str) -> Any:
        return self.told.get(key)

    def wait(self, hinted: Callable[[Any], bool], look: Callable[[], bool]) -> float:
        assert hinted(self.told) or look()
        return 0.0


class Acting:
    """An act task's writing on a store that may fail; every instance is a start of the task."""

    def __init__(self, context: RunContext, store: FaultyStore, cache_folder: Path, **settings: int) -> None:
        self.context = replace(context, run=RunFolder(store, "small"), cache=NodeCache(cache_folder, 1 << 24))
        self.hints: Any = Hints()
        self.assignment = Assignment(
            store=store.url,
            run="small",
            stage=0,
            attempt=0,
            generation=1,
            gang="",
            role="act",
            replica=0,
            replicas=1,
            task_run="",
            cache_folder="",
            device="cpu",
            **settings,
        )
        self.actors, found = _resume_all(self.assignment, self.context, range(2), None, None)
        self.writer = RoundWriter(self.assignment, self.context, self.hints, found.shards, found.states)
        self.params = context.algorithm.init(3).params

    def act(self, rounds: int = ROUNDS) -> dict[int, Any]:
        """All rounds that are not stored yet, to the end."""
        try:
            for round_ in range(rounds):
                for actor in self.actors.values():
                    if actor.next_round == round_:
                        self.writer.submit(actor.act_round(0, self.params, self.writer.buffers(actor)))
            return self.writer.finish()
        finally:
            self.writer.close()


@pytest.fixture
def context(make_context: MakeContext) -> RunContext:
    return make_context({"schedule": {"rounds_per_stage": ROUNDS}})


@pytest.fixture
def root(tmp_path: Path) -> Callable[..., FaultyStore]:
    """Makes empty stores, by name."""
    return lambda name, *faults: FaultyStore(open_store(tmp_path / name), faults)


def content(store: FaultyStore) -> dict[str, bytes]:
    """A stage leaves every shard, and the states from which a restarted task may resume."""
    store.heal()
    return {name: store.read(name) for name in store.list("small/")}


def test_a_shard_is_near_before_it_is_stored(context: RunContext, tmp_path: Path):
    """With every upload held back, a reader on the node gets the round; on another node it goes on waiting."""
    go = threading.Event()

    class Held(FaultyStore):
        def at(self, prefix: str) -> FaultyStore:
            return Held(self._inner.at(prefix))

        def write(self, name: str, parts: Any, *, durable: bool = False) -> None:
            assert go.wait(PATIENCE_SECONDS)
            super().write(name, parts, durable=durable)

    acting = Acting(context, Held(open_store(tmp_path / "store")), tmp_path / "cache")
    actor = acting.actors[0]
    acting.writer.submit(actor.act_round(0, acting.params, acting.writer.buffers(actor)))
    acting.writer._pending[0].result(PATIENCE_SECONDS)
    store = acting.context.run.store
    assert store.list() == []

    found = wait_for(acting.hints, acting.context.cache, "shard/0/0", lambda: False, ShardRef.from_json)
    assert found.cached is not None
    shard = decode_shard(found.cached, context.columns, found.ref.name, found.ref.digest)
    assert (shard.info.round, shard.info.tile) == (0, 0)
    elsewhere = NodeCache(tmp_path / "another-node", 1 << 24)
    looks = iter([True])
    found_there = wait_for(acting.hints, elsewhere, "shard/0/0", lambda: next(looks), ShardRef.from_json)
    assert found_there.ref is found_there.cached is None
    assert next(looks, None) is None

    go.set()
    acting.writer._storage._uploads.finish()
    acting.writer.close()
    assert found.ref.name in store.list("shards/")
    stored = wait_for(acting.hints, elsewhere, "shard/0/0", lambda: False, ShardRef.from_json)
    assert (stored.ref, stored.cached) == (found.ref, None)


@pytest.mark.parametrize("seed", range(3))
def test_a_state_is_never_there_without_all_shards_before_it(context: RunContext, tmp_path: Path, seed: int):
    """Whichever upload is slow: a restarted task finds every shard up to the newest state, and that state."""

    class Watched(FaultyStore):
        def at(self, prefix: str) -> FaultyStore:
            return Watched(self._inner.at(prefix), _state=self._state)

        def write(self, name: str, parts: Any, *, durable: bool = False) -> None:
            if name.startswith("states/"):
                state = parse_state_name(name)
                shards = [parse_shard_name(shard) for shard in self._inner.list("shards/")]
                there = {shard.round for shard in shards if shard.tile == state.tile}
                assert there >= set(range(state.round + 1))
            super().write(name, parts, durable=durable)

    slow = Fault("delay", ("write", "delete"), calls=None, chance=0.5, seconds=0.02, seed=seed)
    acting = Acting(context, Watched(open_store(tmp_path / "store"), [slow]), tmp_path / "cache")
    kept = acting.act()
    store = acting.context.run.store
    states = [parse_state_name(name) for name in store.list("states/")]
    assert {(state.round, state.tile) for state in states} == {(r, t) for r in (ROUNDS - 2, ROUNDS - 1) for t in (0, 1)}
    assert [kept[tile].round for tile in (0, 1)] == [ROUNDS - 1] * 2


@pytest.mark.parametrize("threads", [1, 2])
def test_as_many_uploads_go_at_once_as_configured(context: RunContext, tmp_path: Path, threads: int):
    """With two threads the shards of a round's two tiles are uploaded at once; with one, never two are."""
    together = threading.Barrier(threads)
    writing: list[str] = []

    class Watched(FaultyStore):
        def at(self, prefix: str) -> FaultyStore:
            return Watched(self._inner.at(prefix))

        def write(self, name: str, parts: Any, *, durable: bool = False) -> None:
            writing.append(name)
            if name.startswith("shards/"):
                together.wait(PATIENCE_SECONDS)
                time.sleep(0.02)  # for others to come, if they may
            super().write(name, parts, durable=durable)
            assert len(writing) <= threads
            writing.remove(name)

    store = Watched(open_store(tmp_path / "store"))
    Acting(context, store, tmp_path / "cache", upload_threads=threads).act()
    assert len(store.list("small/shards/")) == 2 * ROUNDS


@pytest.mark.parametrize("kind", ["drop", "lose"])
def test_whichever_write_fails_a_restart_ends_with_the_same_bytes(context: RunContext, root, tmp_path, kind: str):
    """The error comes out, what is stored stays, and the next start acts the rest: names and bytes as undisturbed."""
    undisturbed = root("undisturbed")
    kept = Acting(context, undisturbed, tmp_path / "cache").act()
    expected = content(undisturbed)
    assert len([name for name in expected if "shards/" in name]) == 2 * ROUNDS
    for number in (1, 2, 3, 4, 7, 10, 13, 16):
        name = f"failing-{number}"
        store = root(name, Fault(kind, ("write",), first=number))
        with pytest.raises(StoreError, match="failed by a test"):
            Acting(context, store, tmp_path / f"cache-{name}").act()
        store.heal()
        assert Acting(context, store, tmp_path / f"cache-{name}").act() == kept
        found = content(store)
        # A state that the failing start could not remove any more is left over, and harmless.
        assert {name: found[name] for name in expected} == expected
        assert all("states/" in name for name in found.keys() - expected.keys())


@pytest.mark.parametrize("learners", [1, 2])
def test_a_shard_is_told_to_the_learner_that_takes_its_tile(make_context, root, tmp_path: Path, learners: int):
    """And to no other, however many there are."""
    distribution = {"policy": "multiple_learners", "learn_tasks": learners}
    acting = Acting(make_context({"distribution": distribution}), root("store"), tmp_path / "cache")
    acting.act(1)
    assert acting.hints.replicas["shard/0/0"] == {0}
    assert acting.hints.replicas["shard/0/1"] == {learners - 1}


def test_what_is_stored_is_told_and_compared(context: RunContext, root, tmp_path: Path):
    """A learner that read another shard than the one that is stored ends the attempt; the right ones pass."""
    acting = Acting(context, root("store"), tmp_path / "cache")
    acting.act()
    digests = acting.writer.shard_digests()
    learned = [
        ShardRef.from_json(acting.hints.told[f"shard/{round_}/{tile}"]) for round_ in range(ROUNDS) for tile in (0, 1)
    ]
    assert {tile: len(found) for tile, found in digests.items()} == {0: ROUNDS, 1: ROUNDS}
    times = ActTimes(member="act-0", env_steps=0, act_seconds=0.0, wait_seconds=0.0)
    one, other = (ActResult((), {tile: found}, times) for tile, found in digests.items())
    check_agreement(0, learned, [other, one])
    learned[3] = replace(learned[3], digest=learned[1].digest)
    with pytest.raises(StageMismatchError, match=r"stage 0.*tiles \[1\]"):
        check_agreement(0, learned, [one, other])
    with pytest.raises(StageMismatchError, match=r"tiles \[0, 1\]"):
        check_agreement(0, learned[:4], [one, other])


def test_nothing_is_stored_after_a_round_that_is_stored_otherwise(context: RunContext, root, tmp_path: Path):
    """A later round and its state would be taken for those that follow the stored one, by the next try of the stage."""
    other = Acting(context, root("other"), tmp_path / "other-cache")
    other.params = context.algorithm.init(9).params
    other.act()
    (foreign,) = (
        name
        for name in other.context.run.store.list("shards/")
        if (parse_shard_name(name).round, parse_shard_name(name).tile) == (1, 0)
    )
    store = root("store")
    store.write(f"small/{foreign}", [other.context.run.store.read(foreign)])
    acting = Acting(context, store, tmp_path / "cache")
    actor, seen = acting.actors[0], []
    for _ in range(ROUNDS):
        acted = actor.act_round(0, acting.params, acting.writer.buffers(actor))
        try:
            acting.writer.submit(acted)
        except StageMismatchError as error:
            seen.append(error)
    with pytest.raises(StageMismatchError, match="round 1 of tile 0 is stored as"):
        acting.writer.finish()
    acting.writer.close()
    stored = sorted(parse_shard_name(name).round for name in acting.context.run.store.list("shards/"))
    assert stored == [0, 1]
    assert all(parse_state_name(name).round == 0 for name in acting.context.run.store.list("states/"))
    assert {type(error) for error in acting.hints.failures} == {StageMismatchError}

"""The input pipeline: the same rows in the same order whatever the store and the way, and a budget that holds."""

from __future__ import annotations

import threading
import time
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from penstock.storage.cache.node_cache import NodeCache
from penstock.storage.errors import CorruptObjectError, SpecMismatchError, StoreError
from penstock.storage.shards.specs import Spec
from penstock.storage.stores.open import open_store
from penstock.tasks.data.input.pipeline import ShardPipeline

from ....support.stored.faulty import Fault, FaultyStore
from ....support.stored.synthetic_shards import COLUMNS, fill, store_shard

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.storage.refs import ShardRef
    from penstock.storage.stores.protocol import Store
    from penstock.tasks.data.input.pipeline import LoadedShard

ROUNDS, STEPS, ENVS = 6, 16, 4
CPU = torch.device("cpu")
PATIENCE_SECONDS = 150


class Dead(FaultyStore):
    """A remote store that answers no read until it is told to."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.answer = threading.Event()

    def view(self, name: str) -> memoryview:
        return self._hang(super().view(name))

    def read_range(self, name: str, start: int, stop: int) -> memoryview:
        return self._hang(super().read_range(name, start, stop))

    def _hang(self, content: memoryview) -> memoryview:
        assert self.answer.wait(PATIENCE_SECONDS)
        return content


def eventually(condition) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.005)


def own_threads(before: set[threading.Thread]) -> list[threading.Thread]:
    """Threads that are new, but for those of requests: the store's clients end those."""
    return [
        thread for thread in threading.enumerate() if thread not in before and not thread.name.startswith("hedged-read")
    ]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def refs(store: Store) -> list[ShardRef]:
    return [store_shard(store, COLUMNS, 0, round_, 0, STEPS, ENVS) for round_ in range(ROUNDS)]


def assert_is_shard(loaded: LoadedShard, round_: int) -> None:
    """Bit for bit what was stored, flags and bootstrap observations included."""
    expected = fill(COLUMNS, round_, 0, STEPS, ENVS)
    columns = loaded.trajectory.columns
    for name in columns.keys() - {"terminated", "truncated"}:
        assert columns[name].numpy().tobytes() == expected[name].tobytes(), name
        assert tuple(columns[name].shape) == expected[name].shape
    assert columns["terminated"].sum() == columns["terminated"][0, 1] == 1
    rows = [1, *range((STEPS - 1) * ENVS, STEPS * ENVS)]
    assert loaded.trajectory.bootstrap_rows.tolist() == rows
    assert loaded.trajectory.bootstrap_observation[:, 0].tolist() == [100 + row for row in rows]
    assert (loaded.info.round, loaded.ref.rows, loaded.ref.nbytes > 0) == (round_, STEPS * ENVS, True)


def take_all(pipeline: ShardPipeline) -> None:
    with pipeline:
        for round_ in range(ROUNDS):
            loaded = pipeline.take()
            assert_is_shard(loaded, round_)
            loaded.release()


@pytest.mark.parametrize("staged", [False, True], ids=["mapped", "staged"])
@pytest.mark.parametrize("place", ["local", "remote", "in ranges"])
def test_rows_arrive_bit_for_bit_and_in_order(store, refs, place, staged):
    """From a mapped file, in one read and in ranges, with the device copy (here to the CPU) and without."""
    source = store if place == "local" else FaultyStore(store)
    part_bytes = 1000 if place == "in ranges" else 1 << 20
    pipeline = ShardPipeline(refs, source, expected=COLUMNS, device=CPU, staged=staged, part_bytes=part_bytes)
    take_all(pipeline)
    tally = pipeline.tally()
    assert tally.shards == ROUNDS
    assert tally.read_bytes == sum(ref.nbytes for ref in refs)
    assert (tally.staging_uses > 0) == (staged or place == "in ranges")
    if place == "in ranges":
        assert {call.operation for call in source.calls} == {"read_range"}


def test_staging_memory_is_used_again_while_shards_are_read(store, refs):
    """Six shards pass through no more buffers than are in use at once, and the budget bounds them."""
    many = refs * 10
    pipeline = ShardPipeline(many, store, staged=True, budget_bytes=4 * refs[0].nbytes)
    with pipeline:
        for index in range(len(many)):
            loaded = pipeline.take()
            assert_is_shard(loaded, index % ROUNDS)
            loaded.release()
    tally = pipeline.tally()
    assert tally.staging_uses == len(many)
    assert tally.staging_allocations <= 4
    assert tally.peak_bytes <= 4 * refs[0].nbytes


def test_what_is_not_released_bounds_what_is_read(store, refs):
    """A taker that keeps its shards gets on, one at a time; the budget is exceeded by what it holds and no more."""
    budget = 2 * refs[0].nbytes + 100
    pipeline = ShardPipeline(refs, store, budget_bytes=budget)
    with pipeline:
        held = [pipeline.take() for _ in range(ROUNDS)]
        for round_, loaded in enumerate(held):
            assert_is_shard(loaded, round_)
    assert pipeline.tally().peak_bytes <= sum(ref.nbytes for ref in refs) + 1000


def test_only_wanted_columns_are_moved(store, refs):
    """A loss that needs two columns gets two, and the bootstrap observations."""
    with ShardPipeline(refs, store, columns=("action", "observation"), staged=True) as pipeline:
        loaded = pipeline.take()
    assert loaded.trajectory.columns.keys() == {"observation", "action"}
    assert loaded.trajectory.bootstrap_observation.shape == (ENVS + 1, 3)


@pytest.mark.parametrize("staged", [False, True], ids=["mapped", "staged"])
def test_only_wanted_columns_are_fetched_from_afar(store, staged):
    """Large shards are read in part: fewer bytes, verified, and the same rows."""
    large = [store_shard(store, COLUMNS, 0, round_, 0, 8192, ENVS) for round_ in range(3)]
    remote = FaultyStore(store)
    pipeline = ShardPipeline(large, remote, expected=COLUMNS, columns=("action", "reward"), staged=staged)
    with pipeline:
        for round_, ref in enumerate(large):
            loaded = pipeline.take()
            expected = fill(COLUMNS, round_, 0, 8192, ENVS)
            assert loaded.trajectory.columns.keys() == {"action", "reward"}
            for name, column in loaded.trajectory.columns.items():
                assert column.numpy().tobytes() == expected[name].tobytes()
            assert loaded.ref == ref
            loaded.release()
    assert {call.operation for call in remote.calls} == {"read_range"}
    assert pipeline.tally().read_bytes < 0.6 * sum(ref.nbytes for ref in large)


def test_a_damaged_part_of_a_shard_is_named_where_it_is_wanted(store):
    """Columns are verified separately: other columns of the same shard can still be read."""
    ref = store_shard(store, COLUMNS, 0, 0, 0, 8192, ENVS)
    content = bytearray(store.read(ref.name))
    content[content.index(fill(COLUMNS, 0, 0, 8192, ENVS)["action"].tobytes())] ^= 1
    store.write(ref.name, [content])
    for source in (store, FaultyStore(store)):
        with ShardPipeline([ref], source, expected=COLUMNS, columns=("reward",)) as pipeline:
            pipeline.take()
        with (
            ShardPipeline([ref], source, expected=COLUMNS, columns=("action",)) as pipeline,
            pytest.raises(CorruptObjectError, match="action"),
        ):
            pipeline.take()


def test_a_reference_without_a_size_is_filled_in(store, refs):
    """A listing gives names alone; a commit needs sizes and rows."""
    unknown = [type(ref)(ref.name, ref.digest, 0, ref.round, ref.tile, 0) for ref in refs]
    with ShardPipeline(unknown, FaultyStore(store)) as pipeline:
        assert [pipeline.take().ref for _ in refs] == refs


def test_asking_for_more_than_there_is_is_an_error(store, refs):
    """Not a wait for ever."""
    with ShardPipeline(refs[:1], store) as pipeline:
        pipeline.take()
        for _ in range(2):
            with pytest.raises(LookupError, match="no more"):
                pipeline.take()


def test_what_the_references_raise_is_raised_in_its_turn(store, refs):
    """Shards found before the failure still come."""

    def finding():
        yield from refs[:2]
        raise KeyError("the store is gone")

    with ShardPipeline(finding(), store) as pipeline:
        for round_ in range(2):
            assert_is_shard(pipeline.take(), round_)
        with pytest.raises(KeyError, match="the store is gone"):
            pipeline.take()


@pytest.mark.parametrize("remove", [False, True])
def test_a_damaged_shard_is_named_and_removed_if_that_is_wanted(store, refs, remove):
    """The shards around it come through; what was damaged is never learned from."""
    content = bytearray(store.read(refs[1].name))
    content[content.index(fill(COLUMNS, 1, 0, STEPS, ENVS)["observation"].tobytes())] ^= 1
    store.write(refs[1].name, [content])
    with ShardPipeline(refs, store, remove_damaged=remove) as pipeline:
        assert_is_shard(pipeline.take(), 0)
        with pytest.raises(CorruptObjectError, match=refs[1].name):
            pipeline.take()
        assert_is_shard(pipeline.take(), 2)
    assert store.exists(refs[1].name) is not remove


def test_another_algorithms_columns_are_refused(store, refs):
    """Before anything is learned from them."""
    with (
        ShardPipeline(refs, store, expected={**COLUMNS, "value": Spec("float32")}) as pipeline,
        pytest.raises(SpecMismatchError, match="value"),
    ):
        pipeline.take()


def test_a_store_that_fails_is_named_where_its_shard_is_taken(store, refs):
    """And nobody hangs."""
    faulty = FaultyStore(store, [Fault("drop", ("view", "read_range"), f"*{refs[2].name}", calls=None)])
    with ShardPipeline(refs, faulty) as pipeline:
        assert_is_shard(pipeline.take(), 0)
        assert_is_shard(pipeline.take(), 1)
        with pytest.raises(StoreError):
            pipeline.take()


def test_what_the_node_has_is_not_read_again(store, refs, tmp_path):
    """A shard in the node's cache, which an act task of this node wrote, is taken from there."""
    cache, remote = NodeCache(tmp_path / "cache", 1 << 20), FaultyStore(store)
    cache.get_buffer(remote, refs[0])
    before = len(remote.calls)
    with ShardPipeline(refs, remote, cache=cache) as pipeline:
        for round_ in range(ROUNDS):
            assert_is_shard(pipeline.take(), round_)
    assert refs[0].name not in {call.name for call in remote.calls[before:]}
    assert len(list((tmp_path / "cache").glob("[0-9a-f]*"))) == 1


def test_columns_of_a_local_store_are_not_copied(store, refs):
    """They are the file's pages, private ones: writing to them changes no file."""
    with ShardPipeline(refs, store) as pipeline:
        loaded = pipeline.take()
        loaded.trajectory.columns["reward"].zero_()
    again = np.frombuffer(store.read(refs[0].name), np.uint8)
    with ShardPipeline(refs, store) as pipeline:
        assert_is_shard(pipeline.take(), 0)
    assert again.size == refs[0].nbytes


@pytest.mark.parametrize("staged", [False, True], ids=["mapped", "staged"])
def test_what_was_released_is_gone(store, refs, staged):
    """A released shard keeps none of its memory, and never shows another shard in its place."""
    with ShardPipeline(refs, store, staged=staged) as pipeline:
        loaded = pipeline.take()
        column = weakref.ref(loaded.trajectory.columns["reward"])
        for _ in range(2):
            loaded.release()
            assert column() is None
            assert loaded.trajectory.columns == {}
        assert loaded.ref == refs[0]
        for round_ in range(1, ROUNDS):
            assert_is_shard(pipeline.take(), round_)


def test_a_pipeline_that_nobody_enters_leaves_nothing_that_runs(store, refs):
    """A pipeline that was never entered can be dropped."""
    before = set(threading.enumerate())
    ShardPipeline(refs, FaultyStore(store))
    assert own_threads(before) == []


@pytest.mark.parametrize("part_bytes", [1000, 1 << 20], ids=["in ranges", "whole"])
def test_a_taker_may_leave_while_the_store_is_dead(store, refs, part_bytes, monkeypatch):
    """Leaving does not wait for answers; when they come after all, nothing more is asked for and all threads end."""
    monkeypatch.setattr("penstock.storage.transfer.prefetch._CLOSE_SECONDS", 0.05)
    monkeypatch.setattr("penstock.storage.stores.daemon_threads.IDLE_SECONDS", 0.05)
    before, dead = set(threading.enumerate()), Dead(store)
    pipeline = ShardPipeline(refs, dead, part_bytes=part_bytes, budget_bytes=1 << 20)
    asked = 4 if part_bytes == 1000 else ROUNDS  # parts that are on their way at first, or all shards
    with pipeline:
        eventually(lambda: len(dead.calls) == asked)
    dead.answer.set()
    eventually(lambda: not own_threads(before))
    assert len(dead.calls) == asked
    with pytest.raises(RuntimeError, match="closed"):
        pipeline.take()


def test_staging_memory_is_let_go_with_the_pipeline(store, refs):
    """Not when garbage is collected, which may be many stages later."""
    pipeline = ShardPipeline(refs, store, staged=True)
    take_all(pipeline)
    assert pipeline.tally().staging_bytes > 0
    assert pipeline._staging._idle == []
    assert not [thread for thread in pipeline._prefetcher._threads if thread.is_alive()]


def test_staging_buffers_count_for_what_they_take(store):
    """A shard in ranges lies in a buffer that is larger than itself; the budget holds for the buffers."""
    many = [store_shard(store, COLUMNS, 0, round_, 0, 512, ENVS) for round_ in range(12)]
    assert 64 << 10 < many[0].nbytes < 96 << 10
    budget_bytes = 600 << 10
    pipeline = ShardPipeline(many, FaultyStore(store), part_bytes=1000, budget_bytes=budget_bytes)
    with pipeline:
        for round_ in range(len(many)):
            loaded = pipeline.take()
            assert loaded.info.round == round_
            loaded.release()
    tally = pipeline.tally()
    assert tally.peak_bytes <= budget_bytes
    assert tally.staging_bytes <= budget_bytes
    assert tally.read_bytes == sum(ref.nbytes for ref in many)


def test_shards_of_unknown_size_stay_within_the_budget(store, refs):
    """They are charged `unsized_bytes`; without it each thread could have two in flight, however large."""
    unknown = [replace(ref, nbytes=0, rows=0) for ref in refs] * 4
    budget_bytes = 3 * refs[0].nbytes - 1
    pipeline = ShardPipeline(unknown, store, budget_bytes=budget_bytes, unsized_bytes=refs[0].nbytes)
    with pipeline:
        for index in range(len(unknown)):
            loaded = pipeline.take()
            assert_is_shard(loaded, index % ROUNDS)
            loaded.release()
    assert pipeline.tally().peak_bytes <= budget_bytes


@pytest.mark.parametrize("staged", [False, True], ids=["mapped", "staged"])
@pytest.mark.parametrize("part_bytes", [1000, 1 << 20], ids=["in ranges", "whole"])
def test_a_shard_that_is_larger_than_the_budget_passes_alone(store, refs, part_bytes, staged):
    """In parts and in staging buffers: one that is held and one on its way, and nobody waits for room in vain."""
    pipeline = ShardPipeline(refs, FaultyStore(store), part_bytes=part_bytes, staged=staged, budget_bytes=1)
    take_all(pipeline)
    assert pipeline.tally().peak_bytes <= 2 * (64 << 10)


def test_damage_is_what_is_said_where_it_can_not_be_removed(store, refs):
    """A store that refuses to delete hides nothing."""
    content = bytearray(store.read(refs[0].name))
    content[content.index(fill(COLUMNS, 0, 0, STEPS, ENVS)["observation"].tobytes())] ^= 1
    store.write(refs[0].name, [content])
    faulty = FaultyStore(store, [Fault("drop", ("delete",), calls=None)])
    with (
        ShardPipeline(refs, faulty, remove_damaged=True) as pipeline,
        pytest.raises(CorruptObjectError, match=refs[0].name),
    ):
        pipeline.take()
    assert [call.operation for call in faulty.calls].count("delete") == 1


@pytest.mark.parametrize("place", ["local", "remote"])
@pytest.mark.parametrize("steps", [STEPS, 8192], ids=["whole", "in columns"])
def test_wanted_columns_must_be_what_they_are_said_to_be(store, place, steps):
    """Whatever else a shard has, and however it stores them; the error says what is lacking and what there is."""
    ref = store_shard(store, COLUMNS, 0, 0, 0, steps, ENVS)
    source = store if place == "local" else FaultyStore(store)
    wanted = {"action": Spec("int64", compression="lz4"), "reward": Spec("float32")}
    with ShardPipeline([ref], source, columns=wanted) as pipeline:
        assert pipeline.take().trajectory.columns.keys() == wanted.keys()
    wanted |= {"value": Spec("float32"), "observation": Spec("float32", (4,))}
    said = r"lacks value: float32 \(found no such column\), observation: float32\[4\] \(found float32\[3\]\)"
    with ShardPipeline([ref], source, columns=wanted) as pipeline, pytest.raises(SpecMismatchError, match=said):
        pipeline.take()


def test_only_wanted_columns_are_fetched_though_nobody_says_what_else_there_is(store):
    """From the first shard on."""
    large = [store_shard(store, COLUMNS, 0, round_, 0, 1 << 15, ENVS) for round_ in range(2)]
    pipeline = ShardPipeline(large, FaultyStore(store), columns=("reward",))
    with pipeline:
        for round_ in range(2):
            loaded = pipeline.take()
            expected = fill(COLUMNS, round_, 0, 1 << 15, ENVS)["reward"]
            assert loaded.trajectory.columns["reward"].numpy().tobytes() == expected.tobytes()
    assert pipeline.tally().read_bytes < 0.4 * sum(ref.nbytes for ref in large)


def test_looking_into_the_nodes_cache_is_counted(store, refs, tmp_path):
    """A hit, or a miss with the bytes that it cost; a local store's reads count nowhere."""
    cache, remote = NodeCache(tmp_path / "cache", 1 << 20), FaultyStore(store)
    cache.get_buffer(remote, refs[0])
    for source, hits, misses in ((remote, 1, ROUNDS - 1), (store, 0, 0)):
        pipeline = ShardPipeline(refs, source, cache=cache)
        take_all(pipeline)
        found = pipeline.cache_tally.to_json()
        nbytes = sum(ref.nbytes for ref in refs[1:]) if misses else 0
        assert found == {"hits": hits, "misses": misses, "downloads": misses, "waits": 0, "origin_bytes": nbytes}

"""Reading a part of a shard gives the right values from few requests for only the needed, verified bytes."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.storage.errors import CorruptObjectError, ObjectNotFoundError, SpecMismatchError, StoreError
from penstock.storage.refs import ShardRef
from penstock.storage.shards.codec import decode_shard
from penstock.storage.shards.reader import HEAD_BYTES, open_buffer, open_shard
from penstock.storage.shards.specs import Spec
from penstock.storage.stores.local import LocalStore

from ...support.stored.faulty import Fault, FaultyStore
from ...support.stored.shard_cases import PIXELS, a_shard, stored

STEPS, ENVS = 40, 12
PLAIN = {
    "observation": PIXELS,
    "reward": Spec("float32"),
    "mask": Spec("bool", (7,)),
    "action": Spec("int64"),
    "features": Spec("float64", (3, 50)),
    "value": Spec("float32"),
}
LZ4 = {**PLAIN, "observation": Spec("uint8", PIXELS.shape, "lz4"), "features": Spec("float64", (3, 50), "lz4")}
ZSTD = {name: Spec(spec.dtype, spec.shape, "zstd") for name, spec in PLAIN.items()}
STACKED = {**PLAIN, "observation": Spec("uint8", PIXELS.shape, stacked=True)}
STACKED_LZ4 = {**PLAIN, "observation": Spec("uint8", PIXELS.shape, "lz4", stacked=True)}
FORMS = {"plain": PLAIN, "lz4": LZ4, "zstd": ZSTD, "stacked": STACKED, "stacked lz4": STACKED_LZ4}


class CountingStore(LocalStore):
    """Records which ranges were read."""

    def __init__(self, root):
        super().__init__(root)
        self.ranges = []

    def read_range(self, name, start, stop):
        self.ranges.append((start, stop))
        return super().read_range(name, start, stop)

    @property
    def read_bytes(self):
        return sum(stop - start for start, stop in self.ranges)


@pytest.fixture
def store(tmp_path):
    return CountingStore(tmp_path)


@pytest.fixture(scope="module", params=list(FORMS))
def case(request):
    return FORMS[request.param], *a_shard(FORMS[request.param], STEPS, ENVS)


def same(found, expected):
    assert found.dtype == expected.dtype
    assert found.flags.writeable
    np.testing.assert_array_equal(found, expected)


def test_whole_shards_make_round_trips_in_every_form(case):
    """Bits, compressed columns and stacked frames are rebuilt exactly; same input, same bytes."""
    columns, arrays, rows, bootstrap, shard = case
    buffer = bytearray(b"".join(shard.parts))
    found = decode_shard(memoryview(buffer), PLAIN, "x", shard.digest)
    assert list(found.columns) == list(columns)
    for name, array in arrays.items():
        same(found.columns[name], array)
    same(found.bootstrap_rows, rows)
    same(found.bootstrap_observation, bootstrap)
    again = a_shard(columns, STEPS, ENVS)[3]
    assert (again.digest, bytearray(b"".join(again.parts))) == (shard.digest, buffer)


def test_any_part_equals_the_whole_shards(case, store):
    """Columns, steps, episodes and bootstrap observations, in any order, from one reader."""
    columns, arrays, rows, bootstrap, shard = case
    reader = open_shard(store, stored(store, shard), PLAIN)
    for start, stop in [(17, 18), (0, 1), (STEPS - 1, STEPS), (3, 30), (7, 7), (0, STEPS)]:
        found = reader.steps(start, stop, columns)
        for name in columns:
            same(found[name], arrays[name][start:stop])
    for episode, steps in [(0, range(1, STEPS // 2 + 1)), (1, range(STEPS))]:
        found = reader.episode(episode, ["observation", "value"])
        same(found["observation"], arrays["observation"][steps.start : steps.stop, [1, 0][episode]])
        assert len(found["value"]) == len(steps)
    same(reader.bootstrap()[0], rows)
    same(reader.bootstrap()[1], bootstrap)
    fresh = open_shard(store, reader.ref).shard(["reward", "observation"])
    assert list(fresh.columns) == ["reward", "observation"]
    same(fresh.columns["observation"], arrays["observation"])
    same(fresh.bootstrap_observation, bootstrap)


def test_the_index_is_one_request_and_a_column_is_its_bytes(store):
    """Columns that a loss does not need are not read."""
    arrays, *_, shard = a_shard(PLAIN, STEPS, ENVS)
    reader = open_shard(store, stored(store, shard))
    assert reader.info.episodes.return_.tolist() == [1.0, 2.5]
    assert reader.info.episodes.first_policy_version.tolist() == [20, 15]
    assert store.ranges == [(0, HEAD_BYTES)]

    reader.columns(["features", "value"])

    assert len(store.ranges) == 2, "neighbours are read together"
    wanted = arrays["features"].nbytes + arrays["value"].nbytes
    assert wanted <= store.read_bytes - HEAD_BYTES < wanted + 256

    reader.columns(["value"])
    assert len(store.ranges) == 2, "what is here is not read again"
    assert (reader.requests, reader.read_bytes) == (2, store.read_bytes)


@pytest.mark.parametrize("form", list(FORMS))
def test_steps_take_as_many_requests_in_large_shards_as_in_small_ones(form, store):
    """They read a few blocks, independent of the shard's size."""
    for steps in (STEPS, 6 * STEPS):
        *_, shard = a_shard(FORMS[form], steps, ENVS)
        reader = open_shard(store, stored(store, shard))
        store.ranges.clear()
        reader.steps(steps // 2, steps // 2 + 1, ["observation"])
        assert len(store.ranges) <= (3 if FORMS[form]["observation"].stacked else 1)
        assert store.read_bytes < 2_000_000


@pytest.mark.parametrize("form", list(FORMS))
def test_no_steps_are_no_rows_and_no_request(form, store):
    """Wherever they would be; they have the form of others."""
    *_, shard = a_shard(FORMS[form], STEPS, ENVS)
    reader = open_shard(store, stored(store, shard), head_bytes=4096)
    store.ranges.clear()
    nothing = [reader.steps(step, step, FORMS[form]) for step in (0, STEPS // 2, STEPS)]
    assert store.ranges == []
    one = reader.steps(0, 1, FORMS[form])
    for part in nothing:
        for name, rows in one.items():
            assert (part[name].shape, part[name].dtype) == ((0, *rows.shape[1:]), rows.dtype), name


def test_a_small_shard_is_one_request(store):
    """Its data are read with the head."""
    columns = {"observation": Spec("float32", (4,)), "reward": Spec("float32")}
    arrays, *_, shard = a_shard(columns, 64, 8)
    reader = open_shard(store, stored(store, shard))
    same(reader.columns(["reward"])["reward"], arrays["reward"])
    reader.bootstrap()
    assert len(store.ranges) == 1


@pytest.mark.parametrize("guess", [0, 8, 100, 2000])
def test_a_head_longer_than_guessed_takes_more_requests(guess, store):
    """It takes a few; `head_bytes` is the right guess for the next one."""
    *_, shard = a_shard(PLAIN, STEPS, ENVS)
    ref = stored(store, shard)
    reader = open_shard(store, ref, head_bytes=guess)
    assert len(store.ranges) <= 4
    store.ranges.clear()
    open_shard(store, ref, head_bytes=reader.head_bytes)
    assert store.ranges == [(0, reader.head_bytes)]


def test_parts_are_verified(case, store):
    """Reading altered bytes is an error that names shard and column."""
    columns, *_, shard = case
    content = bytearray(b"".join(shard.parts))
    ref = stored(store, shard)
    head = open_shard(store, ref).head_bytes
    rng = np.random.default_rng(0)
    for at in [head - 1, head, *rng.integers(head, head + 100_000, 4), *rng.integers(0, len(content) // 2, 4)]:
        content[at] ^= 16
        store.write(ref.name, [content])
        with pytest.raises(CorruptObjectError, match=rf"'{ref.name}'.*[Rr]esume"):
            open_shard(store, ref).shard()
        content[at] ^= 16
    store.write(ref.name, [content[: len(content) // 2]])
    with pytest.raises(CorruptObjectError, match=rf"'{ref.name}'.*cut short"):
        open_shard(store, ref).columns(columns)


def test_a_failure_of_the_store_is_no_damage_of_the_shard(tmp_path):
    """Otherwise a caller that removes damaged shards would remove a whole one."""
    local = LocalStore(tmp_path)
    ref = stored(local, a_shard(PLAIN, STEPS, ENVS)[3])
    store = FaultyStore(local, [Fault("drop", ("read_range",), first=2, calls=None)])
    with pytest.raises(StoreError):
        open_shard(store, ref, head_bytes=100)
    store = FaultyStore(local, [Fault("drop", ("read_range",), first=2, calls=None)])
    reader = open_shard(store, ref, head_bytes=open_shard(local, ref).head_bytes)
    with pytest.raises(StoreError):
        reader.columns(["observation"])


def test_the_causes_of_an_error_have_no_cycle(store):
    """Dask follows the causes, and would loop on an error that is its own cause."""
    *_, shard = a_shard(PLAIN, STEPS, ENVS)
    ref = stored(store, shard)
    content = bytearray(b"".join(shard.parts))
    content[len(content) // 2] ^= 1
    for read in (
        lambda: decode_shard(memoryview(content), None, ref.name, ref.digest),
        lambda: open_buffer(store, ref, memoryview(content)).shard(),
    ):
        with pytest.raises(CorruptObjectError) as caught:
            read()
        seen: list[BaseException] = []
        error: BaseException | None = caught.value
        while error is not None:
            assert error not in seen
            seen.append(error)
            error = error.__cause__


def test_another_shard_of_the_same_name_is_refused(store):
    """The digest of the reference decides, not the name."""
    ref = stored(store, a_shard(PLAIN, STEPS, ENVS)[3])
    store.write(ref.name, a_shard(PLAIN, STEPS, ENVS, seed=1)[3].parts)
    with pytest.raises(CorruptObjectError, match=f"expected {ref.digest}"):
        open_shard(store, ref)


def test_missing_parts_are_named(store):
    """Errors name missing shards, columns and steps, and columns that differ from the expected ones."""
    with pytest.raises(ObjectNotFoundError, match="'shards/none'"):
        open_shard(store, ShardRef("shards/none", "0" * 32, 0, 0, 0, 0))
    ref = stored(store, a_shard(PLAIN, STEPS, ENVS)[3])
    reader = open_shard(store, ref)
    with pytest.raises(SpecMismatchError, match="no column 'advantage'; it has observation"):
        reader.columns(["value", "advantage"])
    with pytest.raises(IndexError, match="which has 40"):
        reader.steps(39, 41, ["value"])
    with pytest.raises(SpecMismatchError, match=r"value: float32, expected"):
        open_shard(store, ref, {**PLAIN, "value": Spec("float64")})

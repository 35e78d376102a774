"""Shards make exact round trips, equal rounds give equal bytes, and damage is never read silently."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from penstock.storage.digest import digest
from penstock.storage.errors import ConfigError, CorruptObjectError, SpecMismatchError
from penstock.storage.refs import ShardRef
from penstock.storage.shards.codec import (
    BOOTSTRAP_COLUMN,
    ShardColumns,
    ShardInfo,
    allocate,
    check_shard,
    decode_shard,
    encode_shard,
)
from penstock.storage.shards.episode_index import Episodes
from penstock.storage.shards.reader import open_shard
from penstock.storage.shards.specs import Spec
from penstock.storage.stores.open import open_store
from penstock.storage.tensors import load_tensors, save_tensors

STEPS, ENVS = 8, 8
COLUMNS = {
    "observation": Spec("float32", (4,)),
    "reward": Spec("float32"),
    "terminated": Spec("uint8"),
    "truncated": Spec("uint8"),
    "action": Spec("int64"),
    "env_id": Spec("int32"),
}


def a_round(seed: int = 0, columns: dict[str, Spec] = COLUMNS):
    rng = np.random.default_rng(seed)
    arrays = allocate(columns, STEPS, ENVS)
    for array in arrays.values():
        array[...] = rng.integers(0, 100, array.shape)
    rows = np.array([5, 17, *range(STEPS * ENVS - ENVS, STEPS * ENVS)], dtype=np.int64)
    bootstrap = rng.random((len(rows), 4), dtype=np.float32)
    episodes = Episodes.from_flags(
        row=np.array([5, 17]),
        env_id=np.array([5, 1]),
        episode_id=np.array([0, 3]),
        length=np.array([1, 3]),
        return_=np.array([1.0, 2.5]),
        terminated=np.array([1, 1], dtype=np.uint8),
        truncated=np.array([0, 1], dtype=np.uint8),
        first_policy_version=np.array([20, 19]),
        last_policy_version=np.array([20, 20]),
    )
    info = ShardInfo(7, 2, 21, 3, STEPS, ENVS, 20, 20, "CartPole-v1", {"gravity": 9.8}, episodes)
    return arrays, rows, bootstrap, info


def encoded(seed: int = 0) -> tuple[bytearray, str]:
    arrays, *rest = a_round(seed)
    shard = encode_shard(ShardColumns(COLUMNS, arrays), *rest)
    return bytearray(b"".join(shard.parts)), shard.digest


def test_a_round_trip_is_exact():
    """Columns, bootstrap observations and the episode index come back exactly, as writable views of the buffer."""
    arrays, rows, bootstrap, info = a_round()
    buffer, content = encoded()

    shard = decode_shard(memoryview(buffer), COLUMNS, "shard", content)

    assert set(shard.columns) == set(COLUMNS)
    for name, array in arrays.items():
        np.testing.assert_array_equal(shard.columns[name], array)
        assert shard.columns[name].dtype == array.dtype
        assert np.shares_memory(shard.columns[name], np.frombuffer(buffer, np.uint8))
    np.testing.assert_array_equal(shard.bootstrap_rows, rows)
    np.testing.assert_array_equal(shard.bootstrap_observation, bootstrap)
    assert shard.info.episodes.to_json() == info.episodes.to_json()
    assert shard.info.episodes.end.tolist() == [0, 2]
    assert (shard.info.round, shard.info.max_policy_version, shard.info.environment) == (21, 20, "CartPole-v1")


def test_column_buffers_are_not_copied_and_are_aligned_to_64():
    """The caller's arrays are pieces of the file, and every column is aligned for vector instructions."""
    arrays, rows, bootstrap, info = a_round()
    parts = encode_shard(ShardColumns(COLUMNS, arrays), rows, bootstrap, info).parts

    pieces = {np.frombuffer(part, np.uint8).ctypes.data for part in parts}
    assert {array.ctypes.data for array in arrays.values()} <= pieces

    buffer = bytearray(b"".join(parts))
    start = np.frombuffer(buffer, np.uint8).ctypes.data
    shard = decode_shard(memoryview(buffer), COLUMNS, "shard", None)
    assert {(column.ctypes.data - start) % 64 for column in shard.columns.values()} == {0}


def test_equal_rounds_have_equal_bytes_and_others_differ():
    """Content addresses depend on it."""
    assert encoded(1) == encoded(1)
    assert encoded(1)[1] != encoded(2)[1]


def test_any_arrow_tool_reads_a_shard():
    """Plain pyarrow sees rows `t * B + b` and a bootstrap observation exactly where a row has no successor."""
    arrays, rows, bootstrap, _ = a_round()
    table = pa.ipc.open_file(pa.py_buffer(encoded()[0])).read_all()

    assert table.num_rows == STEPS * ENVS
    assert table["reward"].to_pylist() == arrays["reward"].reshape(-1).tolist()
    assert table["observation"].to_pylist()[ENVS] == arrays["observation"][1, 0].tolist()
    lists = table[BOOTSTRAP_COLUMN].to_pylist()
    assert [row for row, value in enumerate(lists) if value is not None] == rows.tolist()
    assert [value for value in lists if value is not None] == bootstrap.tolist()


def test_every_altered_byte_and_every_truncation_is_detected():
    """An altered byte in the head, columns, gaps or footer is an error that names the shard."""
    buffer, content = encoded()
    check_shard(memoryview(buffer), "shards/x.arrow", content)
    for at in range(len(buffer)):
        buffer[at] ^= 1
        with pytest.raises(CorruptObjectError, match=r"shards/x\.arrow"):
            check_shard(memoryview(buffer), "shards/x.arrow", content)
        buffer[at] ^= 1
    for size in range(0, len(buffer), 7):
        with pytest.raises(CorruptObjectError, match=r"shards/x\.arrow"):
            decode_shard(memoryview(buffer)[:size], COLUMNS, "shards/x.arrow", content)
    with pytest.raises(CorruptObjectError, match="altered or cut short behind"):
        check_shard(memoryview(buffer + b"more"), "shards/x.arrow", content)


@pytest.mark.parametrize("content", [b"", b"ARROW1", b"no shard at all"])
def test_other_files_are_refused(content, tmp_path):
    """They are refused even without a digest, and when only the index is requested."""
    with pytest.raises(CorruptObjectError, match="not a trajectory shard"):
        decode_shard(memoryview(bytearray(content)), None, "x", None)
    store = open_store(tmp_path)
    store.write("x", [content])
    with pytest.raises(CorruptObjectError, match="'x'"):
        open_shard(store, ShardRef("x", digest(content), len(content), 0, 0, 0))


def test_other_columns_are_refused_both_ways():
    """A reader that expects other columns, and an array of another type, get both sides named."""
    with pytest.raises(SpecMismatchError, match="value: float32"):
        decode_shard(memoryview(encoded()[0]), {**COLUMNS, "value": Spec("float32")}, "x", None)
    arrays = a_round()[0]
    with pytest.raises(SpecMismatchError, match="'reward' is float64"):
        ShardColumns(COLUMNS, {**arrays, "reward": arrays["reward"].astype(np.float64)})


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((STEPS, ENVS - 1), np.float32), r"'reward' is float32\[8, 7\], expected float32\[8, 8\]"),
        (np.zeros((STEPS, ENVS, 1), np.float32), r"'reward' is float32\[8, 8, 1\], expected float32\[8, 8\]"),
        (np.zeros((ENVS, STEPS), np.float32).T, "'reward' is not C-contiguous"),
    ],
)
def test_an_array_whose_bytes_are_not_the_columns_is_refused(array, message):
    """It has other rows, or has them in another order; its bytes would be stored as they are."""
    with pytest.raises(SpecMismatchError, match=message):
        ShardColumns(COLUMNS, {**a_round()[0], "reward": array})


def test_columns_of_two_compressions_are_refused():
    """An Arrow file has one for all of its buffers."""
    columns = COLUMNS | {"reward": Spec("float32", (), "zstd"), "action": Spec("int64", (), "lz4")}
    with pytest.raises(ConfigError, match="compressed by lz4 and zstd, expected one"):
        ShardColumns(columns, a_round()[0])


def test_the_episode_index_is_sorted_json_and_refuses_non_finite_returns():
    """Any JSON tool reads it; a return that is not finite is named instead of becoming null."""
    info = a_round()[3]
    text = info.episodes.to_json()
    assert text == (
        b'{"end":["terminated","both"],"env_id":[5,1],"episode_id":[0,3],"first_policy_version":[20,19],'
        b'"last_policy_version":[20,20],"length":[1,3],"return":[1.0,2.5],"row":[5,17]}'
    )
    with pytest.raises(ValueError, match="episode 3 of environment 1 has return nan"):
        replace(info.episodes, return_=np.array([1.0, np.nan])).to_json()


def test_tensors_of_any_shape_make_exact_round_trips():
    """Scalars, empty arrays and all kinds of numbers keep shape, type and value; same tensors, same bytes."""
    tensors = {
        "scalar": np.array(3.5),
        "empty": np.zeros((0, 4), dtype=np.float32),
        "words": np.arange(8, dtype=np.uint64).reshape(2, 4),
        "flags": np.array([True, False]),
    }
    meta = {"b": [1, 2], "a": {"z": 1.5}}
    data = save_tensors(tensors, meta)
    assert data == save_tensors(dict(reversed(tensors.items())), dict(reversed(meta.items())))

    loaded, found = load_tensors(memoryview(bytearray(data)), "t", digest(data))

    assert found == meta
    assert set(loaded) == set(tensors)
    for name, value in tensors.items():
        assert loaded[name].shape == value.shape
        assert loaded[name].dtype == value.dtype
        np.testing.assert_array_equal(loaded[name], value)


@pytest.mark.parametrize("cut", [0, 4, 40, -1])
def test_damaged_tensors_are_an_error_that_names_them(cut):
    """A cut anywhere is detected, with and without a digest to compare."""
    data = save_tensors({"x": np.arange(64, dtype=np.float32)}, {})
    buffer = memoryview(bytearray(data[:cut] if cut else b""))
    for expected in (digest(data), None):
        with pytest.raises(CorruptObjectError, match="'checkpoints/y'"):
            load_tensors(buffer, "checkpoints/y", expected)

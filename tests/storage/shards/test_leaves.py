"""Structured columns: a column a leaf in its own type, joined again to the same array; any Arrow tool reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.storage.errors import ConfigError, CorruptObjectError, SpecMismatchError
from penstock.storage.shards.codec import ShardColumns, ShardInfo, allocate, decode_shard, encode_shard
from penstock.storage.shards.header import FORMAT, STRUCTURED_FORMAT, read_head
from penstock.storage.shards.leaves import join_leaves, split_leaves, stored_columns
from penstock.storage.shards.reader import open_shard
from penstock.storage.shards.specs import Leaf, Spec
from penstock.storage.stores.open import open_store

from ...support.stored.shard_cases import some_episodes, stored

LEAVES = (
    Leaf("arm.position", "numbers", "float32", (2,)),
    Leaf("camera", "image", "uint8", (4, 5, 3)),
    Leaf("goal.0", "choice", "int64", (2,), (2, 3)),
    Leaf("goal.1", "bits", "int8", (4,)),
    Leaf("count", "numbers", "int32"),
    Leaf("shift", "choice", "int64", (), (3,)),
)
WIDTH = 2 + 60 + 5 + 4 + 1 + 3
SEEN = Spec("float32", (WIDTH,), leaves=LEAVES)
STEPS, ENVS = 6, 3


def values(rows: tuple[int, ...], seed: int = 0) -> dict[str, np.ndarray]:
    """Leaves of observations, by their stored names."""
    rng = np.random.default_rng(seed)
    position = rng.normal(size=(*rows, 2)).astype(np.float32)
    position[0, ..., 0], position[-1, ..., 1] = np.nan, -0.0
    return {
        "observation.arm.position": position,
        "observation.camera": rng.integers(0, 256, (*rows, 4, 5, 3), dtype=np.uint8),
        "observation.goal.0": rng.integers(0, [2, 3], (*rows, 2)),
        "observation.goal.1": rng.integers(0, 2, (*rows, 4), dtype=np.int8),
        "observation.count": rng.integers(-1000, 1000, rows, dtype=np.int32),
        "observation.shift": rng.integers(0, 3, rows),
    }


def a_shard(compression: str | None = None) -> tuple[dict[str, np.ndarray], dict[str, Any], Any]:
    """(leaves, arrays, encoded shard)."""
    seen = Spec("float32", (WIDTH,), compression, leaves=LEAVES)
    columns = {"observation": seen, "reward": Spec("float32"), "allowed": Spec("bool", (3,))}
    leaves = values((STEPS, ENVS))
    arrays = allocate(columns, STEPS, ENVS)
    arrays["observation"][:] = join_leaves(seen, leaves, "observation")
    arrays["reward"][:] = np.arange(STEPS * ENVS).reshape(STEPS, ENVS)
    arrays["allowed"][:] = True
    ends = np.array([(STEPS // 2) * ENVS + 1, *range((STEPS - 1) * ENVS, STEPS * ENVS)])
    after = join_leaves(seen, values((len(ends),), seed=1), "observation")
    info = ShardInfo(7, 2, 21, 3, STEPS, ENVS, 20, 20, "any", {}, some_episodes(STEPS, ENVS))
    arrays["after"] = after
    return leaves, arrays, encode_shard(ShardColumns(columns, arrays), ends, after, info)


def test_splitting_and_joining_are_exact():
    """Both ways, to the last bit, and every leaf has its own type."""
    leaves = values((STEPS, ENVS))
    joined = join_leaves(SEEN, leaves, "observation")
    assert joined.dtype == np.float32
    assert joined.shape == (STEPS, ENVS, WIDTH)
    found = split_leaves("observation", SEEN, joined)
    assert list(found) == list(stored_columns({"observation": SEEN})) == list(leaves)
    for name, array in leaves.items():
        assert found[name].dtype == array.dtype
        assert found[name].tobytes() == array.tobytes(), name
    assert join_leaves(SEEN, found, "observation").tobytes() == joined.tobytes()


@pytest.mark.parametrize("compression", [None, "lz4"])
def test_a_shard_is_read_as_it_was_written(compression: str | None):
    """Whole, as flat arrays: what learners see does not depend on how it is stored."""
    _, arrays, encoded = a_shard(compression)
    content = memoryview(b"".join(encoded.parts))
    found = decode_shard(content, {"observation": Spec("float32", (WIDTH,)), "reward": Spec("float32"),
                                   "allowed": Spec("bool", (3,))}, "x", encoded.digest)  # fmt: skip
    for name in ("observation", "reward", "allowed"):
        assert found.columns[name].tobytes() == arrays[name].tobytes(), name
    assert found.bootstrap_observation.tobytes() == arrays["after"].tobytes()
    assert found.bootstrap_rows.tolist() == [10, 15, 16, 17]


def test_any_arrow_tool_sees_the_leaves():
    """Columns `observation.<leaf>` with the leaves' own types and shapes, also of what followed."""
    leaves, arrays, encoded = a_shard()
    with pa.ipc.open_file(b"".join(encoded.parts)) as file:
        table = file.read_all()
    assert STRUCTURED_FORMAT.encode() in table.schema.metadata[b"penstock.shard"]
    after = split_leaves("observation", SEEN, arrays["after"])
    for name, array in leaves.items():
        column = table.column(name).combine_chunks()
        found = column.to_numpy_ndarray() if array.ndim > 2 else column.to_numpy()
        assert found.dtype == array.dtype
        assert found.tobytes() == array.tobytes(), name
        later = table.column(f"bootstrap_{name}").drop_null().combine_chunks().flatten()
        assert later.to_numpy().tobytes() == after[name].tobytes(), name
    assert "observation" not in table.column_names


def test_leaves_are_read_by_name_alone(tmp_path: Any):
    """A reader fetches one leaf without the others, next to columns, steps and episodes as usual."""
    leaves, arrays, encoded = a_shard()
    store = open_store(str(tmp_path))
    ref = stored(store, encoded, rows=STEPS * ENVS)
    reader = open_shard(store, ref)
    assert list(reader.specs) == ["observation", "reward", "allowed"]
    assert reader.readable["observation.camera"] == Spec("uint8", (4, 5, 3))
    found = reader.steps(1, 3, ("observation.camera", "reward", "observation"))
    assert np.array_equal(found["observation.camera"], leaves["observation.camera"][1:3])
    assert found["observation"].tobytes() == arrays["observation"][1:3].tobytes()
    one = reader.episode(0, ("observation.shift",))["observation.shift"]
    assert np.array_equal(one, leaves["observation.shift"][1:4, 1])
    assert reader.bootstrap()[1].tobytes() == arrays["after"].tobytes()
    some = reader.shard(("observation.goal.0",)).columns
    assert np.array_equal(some["observation.goal.0"], leaves["observation.goal.0"])
    with pytest.raises(SpecMismatchError, match=r"no column 'observation\.sound'; it has observation, .*\.camera"):
        reader.columns(("observation.sound",))


def test_a_flat_column_keeps_format_and_bytes():
    """Only a structured column changes the format."""
    columns = {"observation": Spec("float32", (2,))}
    arrays = allocate(columns, 1, 1)
    info = ShardInfo(7, 2, 21, 3, 1, 1, 20, 20, "any", {}, some_episodes(4, 2))
    encoded = encode_shard(ShardColumns(columns, arrays), np.array([0]), np.zeros((1, 2), np.float32), info)
    assert FORMAT.encode() in bytes(encoded.parts[0])
    assert b"leaves" not in bytes(encoded.parts[0])


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (63, 1.0, r"'observation\.goal\.0' has other numbers .*one 1 among zeros"),
        (
            5,
            0.5,
            r"'observation\.camera' has other numbers .*numbers that uint8 holds.*outside of its observation space",
        ),
        (71, 2.0**40, r"'observation\.count' .*int32"),
        (5, np.nan, r"'observation\.camera' "),
    ],
)
def test_numbers_that_a_leaf_does_not_hold_are_refused(place: int, value: float, message: str):
    """Nothing is stored that would be read as something else."""
    joined = join_leaves(SEEN, values((2,)), "observation")
    joined[1, 62:64] = 0, 1
    joined[1, place] = value
    if place == 63:
        joined[1, 62] = 1
    with pytest.raises(SpecMismatchError, match=message):
        split_leaves("observation", SEEN, joined)


def test_a_choice_that_there_is_not_is_damage():
    """A file whose checksums fit may still be wrong."""
    leaves = values((2,))
    leaves["observation.shift"][1] = 3
    with pytest.raises(ValueError, match=r"'shift' has the choices .* expected below 3"):
        join_leaves(SEEN, leaves, "observation")


def test_bootstrap_observations_in_other_rows_for_one_leaf_are_damage():
    """Joining them by their order would mix different observations; rows 10 and 9 are bits of one byte."""
    buffer = bytearray(b"".join(a_shard()[2].parts))
    (validity_at, _), *_ = read_head(memoryview(buffer), "x", None).fields["bootstrap_observation.camera"].buffers
    buffer[validity_at + 1] ^= 0b110
    with pytest.raises(CorruptObjectError, match="leaves have bootstrap observations in different rows"):
        decode_shard(memoryview(buffer), None, "x", None)


def test_names_collide_with_nothing():
    """A column with the name of a leaf's is refused, and so is a leaf that is declared wrongly."""
    columns = {"observation": SEEN, "observation.camera": Spec("float32")}
    with pytest.raises(ConfigError, match=r"a column is called 'observation\.camera', a name that shards reserve"):
        ShardColumns(columns, allocate(columns, 1, 1))
    with pytest.raises(
        ConfigError, match=r"leaves of \[2, 60, 5, 4, 1, 3\] numbers: expected a flat column of as many"
    ):
        Spec("float32", (3,), leaves=LEAVES)
    with pytest.raises(ConfigError, match=r"leaf 'x' is of kind 'choice' with .* expected a name, one of numbers"):
        Leaf("x", "choice", "int64", (2,), (3,))
    assert Spec.from_json(SEEN.to_json()) == SEEN


def test_the_bytes_of_the_format_stay():
    """The digest covers the head, which has checksums of everything else: later versions write the same file."""
    _, _, encoded = a_shard()
    assert encoded.digest == "bea5f655e0f1f06a3161daf2793dd3ba"

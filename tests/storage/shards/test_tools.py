"""Any Arrow tool reads a shard as it is, however its columns are stored."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from penstock.storage.shards.columns import STACK_SUFFIX
from penstock.storage.shards.specs import Spec

from ...support.stored.shard_cases import PIXELS, a_shard

DOCUMENT = Path(__file__).parents[3] / "docs" / "shards.md"
BLOCKS = re.findall(
    r"^## (.+?)\n.*?^```python\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
)
STEPS, ENVS = 16, 6
PLAIN = {
    "observation": PIXELS,
    "reward": Spec("float32"),
    "mask": Spec("bool", (7,)),
    "action": Spec("int64"),
    "env_id": Spec("int32"),
}


def stored_as(**options):
    """Make columns with these storage options, among them a tensor of more than one block."""
    packed = Spec("uint8", PIXELS.shape, **options)
    if options.get("stacked"):
        return {**PLAIN, "observation": packed}
    mask, action = Spec("bool", (7,), **options), Spec("int64", (), **options)
    return {**PLAIN, "observation": packed, "mask": mask, "action": action}


FORMS = {
    "plain": PLAIN,
    "lz4": stored_as(compression="lz4"),
    "zstd": stored_as(compression="zstd"),
    "stacked": stored_as(stacked=True),
    "stacked lz4": stored_as(stacked=True, compression="lz4"),
}


@pytest.fixture(params=list(FORMS))
def case(request, tmp_path, monkeypatch):
    arrays, *_, shard = a_shard(FORMS[request.param], STEPS, ENVS)
    arrays["env_id"][...] = np.arange(ENVS)
    shard = a_shard_of(FORMS[request.param], arrays)
    monkeypatch.chdir(tmp_path)
    Path("shard.arrow").write_bytes(b"".join(shard.parts))
    return FORMS[request.param], arrays


def a_shard_of(columns, arrays):
    from penstock.storage.shards.codec import ShardColumns, ShardInfo, encode_shard

    from ...support.stored.shard_cases import some_episodes

    info = ShardInfo(7, 2, 21, 3, STEPS, ENVS, 20, 20, "CartPole-v1", {}, some_episodes(STEPS, ENVS))
    rows = np.arange((STEPS - 1) * ENVS, STEPS * ENVS)
    bootstrap = np.zeros((ENVS, *columns["observation"].shape), np.uint8)
    return encode_shard(ShardColumns(columns, arrays), rows, bootstrap, info)


def flat(columns, arrays, name):
    """Return an Arrow column's expected values: all rows, for stacks the last frames."""
    array = arrays[name].reshape(STEPS * ENVS, *arrays[name].shape[2:])
    return array[:, -1] if columns[name].stacked else array


def test_the_documents_code_runs(case, capsys):
    """Every block of docs/shards.md runs unchanged, and prints the sums of rewards of six environments."""
    _, arrays = case
    assert [heading for heading, _ in BLOCKS] == ["pyarrow", "pandas", "Polars", "DuckDB"]
    for heading, code in BLOCKS:
        found = {}
        exec(compile(code, f"{DOCUMENT}: {heading}", "exec"), found)
        if "frame" in found:
            assert len(found["frame"]) == STEPS * ENVS
    assert capsys.readouterr().out.count(str(int(arrays["reward"][:, 0].sum()))) >= 3


def test_arrow_finds_the_file_valid_and_every_value_in_it(case):
    """Full validation succeeds, and every column has its values."""
    columns, arrays = case
    table = pa.ipc.open_file("shard.arrow").read_all()
    table.validate(full=True)
    for name in columns:
        expected = flat(columns, arrays, name)
        chunk = table[name].chunk(0)
        if name == "observation":
            np.testing.assert_array_equal(chunk.to_numpy_ndarray(), expected)
        else:
            assert chunk.to_pylist() == expected.tolist()
    if columns["observation"].stacked:
        lists = table["observation" + STACK_SUFFIX].to_pylist()
        for row, value in enumerate(lists[: 3 * ENVS]):
            if value is not None:
                step, env = divmod(row, ENVS)
                assert value == arrays["observation"][step, env, :-1].reshape(-1).tolist()


def test_polars_and_duckdb_find_every_value(case):
    """This includes columns of bits and compressed ones, with Polars' own reader."""
    columns, arrays = case
    frame = pl.read_ipc("shard.arrow")
    found = frame["observation"].to_numpy()
    np.testing.assert_array_equal(found, flat(columns, arrays, "observation").reshape(STEPS * ENVS, -1))
    shard = pa.ipc.open_file("shard.arrow").read_all()
    rows = duckdb.from_arrow(shard).project("action, mask, env_id, reward").fetchall()
    for index, name in enumerate(("action", "mask", "env_id", "reward")):
        expected = flat(columns, arrays, name).tolist()
        assert frame[name].to_list() == expected
        assert [list(row[index]) if name == "mask" else row[index] for row in rows] == expected

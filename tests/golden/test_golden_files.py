"""Files that version 0.1.0 wrote are read as what they were, and written again as the same bytes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from penstock.storage.digest import digest
from penstock.storage.refs import Ref
from penstock.storage.runs.commit_schema import decode_commit, encode_commit
from penstock.storage.runs.commits import CommitLog
from penstock.storage.runs.latest import LATEST
from penstock.storage.runs.lease_state import Lease
from penstock.storage.runs.reader_claims import keep_shards_from, recorded_claims, shards_kept_from
from penstock.storage.runs.rollups.names import parse_rollup_name
from penstock.storage.runs.round_choices import Choice
from penstock.storage.runs.run import RunFolder, list_runs
from penstock.storage.shards.codec import ShardColumns, ShardInfo, allocate, decode_shard, encode_shard
from penstock.storage.shards.episode_index import Episodes
from penstock.storage.shards.specs import Spec
from penstock.storage.stores.open import open_store
from penstock.storage.tensors import load_tensors, save_tensors
from penstock.tasks.analysis.history import read_history
from penstock.tasks.data.replay.plan import ReplayPlan
from penstock.tasks.data.snapshots.checkpoints import load_checkpoint, write_checkpoint
from penstock.tasks.data.snapshots.quantize import decode_params, encode_params
from penstock.tasks.driver.attempts import current_attempt, give_up
from penstock.tasks.setup.config.replay import build_stored_config

GOLDEN = Path(__file__).parent
FILES = GOLDEN / "files"
STATED: dict[str, Any] = json.loads((FILES / "values.json").read_text())
SHARDS = sorted(name for name in STATED if name.startswith("shard-"))
CPU = torch.device("cpu")
READER = GOLDEN.parents[1] / "docs" / "read_run.py"


def content(name: str) -> memoryview:
    return memoryview(bytearray((FILES / name).read_bytes()))


@pytest.mark.parametrize("name", SHARDS)
def test_shards_decode_to_the_stated_values(name: str):
    """Every column, what followed the rows without a successor, the facts and the episode index."""
    stated = STATED[name]
    shard = decode_shard(content(name), None, name, stated["digest"])
    assert shard.columns.keys() == stated["columns"].keys()
    for column, spec in stated["specs"].items():
        assert shard.columns[column].dtype == spec["dtype"]
        assert shard.columns[column].tolist() == stated["columns"][column]
    assert shard.bootstrap_rows.tolist() == stated["bootstrap_rows"]
    assert shard.bootstrap_observation.tolist() == stated["bootstrap_observation"]
    assert {key: getattr(shard.info, key) for key in stated["info"]} == stated["info"]
    assert json.loads(shard.info.episodes.to_json()) == stated["episodes"]


@pytest.mark.parametrize("name", SHARDS)
def test_shards_are_encoded_to_the_same_bytes(name: str):
    """Compressed ones hold what the codec of the installed pyarrow gives, so of them only the values are compared."""
    stated = STATED[name]
    order = decode_shard(content(name), None, name, None).columns  # JSON states the values sorted by name
    columns = {column: Spec.from_json(stated["specs"][column]) for column in order}
    arrays = allocate(columns, stated["info"]["steps"], stated["info"]["envs"])
    for column, values in stated["columns"].items():
        arrays[column][...] = np.array(values)
    info = ShardInfo(**stated["info"], episodes=Episodes.from_json(json.dumps(stated["episodes"]).encode()))
    bootstrap = np.array(stated["bootstrap_observation"], columns["observation"].dtype)
    shard = encode_shard(ShardColumns(columns, arrays), np.array(stated["bootstrap_rows"]), bootstrap, info)
    written = b"".join(shard.parts)
    if any(spec.compression for spec in columns.values()):
        again = decode_shard(memoryview(bytearray(written)), columns, name, shard.digest)
        assert all(again.columns[column].tolist() == values for column, values in stated["columns"].items())
    else:
        assert written == bytes(content(name))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_snapshots_decode_to_the_stated_weights(dtype: str):
    """Full ones exactly, reduced ones to their precision; the same weights give the same bytes."""
    name = f"snapshot-{dtype}.safetensors"
    weights = {key: torch.tensor(value) for key, value in STATED[name]["tensors"].items()}
    arrays, facts = load_tensors(content(name), name, STATED[name]["digest"])
    assert facts == {"version": 3, **({} if dtype == "float32" else {"dtype": dtype})}
    params = decode_params(arrays)
    assert params.keys() == weights.keys()
    for key, weight in weights.items():
        tolerance = {"float32": 0.0, "bfloat16": 2**-8, "int8": 0.005}[dtype] if weight.dim() > 1 else 0.0
        torch.testing.assert_close(params[key], weight, rtol=tolerance, atol=tolerance)
    assert bytes(encode_params(weights, dtype, {"version": 3})) == bytes(content(name))


def test_states_decode_to_the_stated_arrays():
    """A tile's state, with every kind of number that one has; the same arrays give the same bytes."""
    stated = STATED["state.safetensors"]
    arrays, facts = load_tensors(content("state.safetensors"), "state", stated["digest"])
    assert facts == stated["facts"]
    assert {name: array.tolist() for name, array in arrays.items()} == stated["tensors"]
    assert save_tensors(arrays, facts) == bytes(content("state.safetensors"))


def test_checkpoints_decode_to_the_stated_state(tmp_path: Path):
    """Parameters in their order, optimizer, targets, window and the reader's place; written again to the same bytes."""
    stated = STATED["checkpoint.safetensors"]
    data = content("checkpoint.safetensors")
    ref = Ref("checkpoint.safetensors", stated["digest"], data.nbytes)
    found = load_checkpoint(open_store(str(FILES)), ref, CPU)
    state = found.state
    assert {group: list(values) for group, values in state.params.items()} == stated["order"]
    for kind, groups in (("params", state.params), ("optimizer", state.optimizer)):
        plain = {group: {name: value.tolist() for name, value in values.items()} for group, values in groups.items()}
        assert plain == stated[kind]
    assert {name: value.tolist() for name, value in state.targets.items()} == stated["targets"]
    assert {name: array.tolist() for name, array in found.window.items()} == stated["window"]
    assert found.reader == stated["reader"]
    again = write_checkpoint(open_store(str(tmp_path)), stated["stage"], state, found.reader, found.window)
    assert again.digest == stated["digest"]
    assert (tmp_path / again.name).read_bytes() == bytes(data)


def test_leases_choices_and_claims_decode_to_the_stated_values(tmp_path: Path):
    """The small JSON files; those that today's code writes have the same bytes."""
    lease = Lease.decode(bytes(content("lease.json")))
    assert asdict(lease) == STATED["lease.json"]
    assert lease.encode() == bytes(content("lease.json"))

    name = "choices/00000002/00000021.json"
    choice = Choice.decode(bytes(content("choice.json")), name)
    assert choice.round == STATED["choice.json"]["round"]
    assert {str(tile): value for tile, value in choice.digests.items()} == STATED["choice.json"]["digests"]
    assert choice.encode() == bytes(content("choice.json"))

    store = open_store(str(tmp_path))
    assert shards_kept_from(open_store(str(FILES))) == STATED["retention.json"]
    keep_shards_from(store, STATED["retention.json"])
    assert store.read("retention.json") == bytes(content("retention.json"))
    claims = open_store(shutil.copytree(FILES / "claims", tmp_path / "claims"))
    assert recorded_claims(claims) == []  # its reader has ended
    claims.write("readers/replay-0123456789ab/lease.json", [Lease.of_this_process("a reader", 60.0).encode()])
    assert [asdict(claim) for claim in recorded_claims(claims)] == STATED["claims"]

    stage, attempt = STATED["attempt"]["stage"], STATED["attempt"]["attempt"]
    assert current_attempt(RunFolder(open_store(str(FILES)), "attempt"), stage) == attempt
    give_up(RunFolder(store, "attempt"), stage, 0, "shard of round 12 came out with another digest")
    written = f"attempt/attempts/{stage:08d}.json"
    assert store.read(written) == bytes(content(written))


def test_the_log_decodes_to_the_stated_commits(tmp_path: Path):
    """Five commits with narrow and wide roll-ups: each commit is written again to the same bytes, and so is the log."""
    stated = STATED["log"]
    store = open_store(str(FILES / "log"))
    log, again = CommitLog(store, rollup_interval=2), CommitLog(open_store(str(tmp_path)), rollup_interval=2)
    assert log.verify(stated["genesis"]) == len(stated["commits"])
    for stage, commit in enumerate(stated["commits"]):
        name = f"commits/{stage:08d}.json"
        data = store.read(name)
        assert json.loads(data) == commit
        assert encode_commit(decode_commit(data, name, stage)) == data
        again.append(log.read(stage))
    table = log.shard_table()
    shards = [{"stage": commit["stage"], **ref} for commit in stated["commits"] for ref in commit["shards"]]
    assert table.to_pylist() == shards
    assert open_store(str(tmp_path)).list("") == stated["files"]
    for name in stated["files"]:
        span = parse_rollup_name(name)
        if name == LATEST:  # a later version added the digest, which is no part of any digest itself
            hint = json.loads(store.read(name))
            assert json.loads((tmp_path / name).read_bytes()) == {**hint, "digest": log.digest_of(hint["stage"])}
        elif span is None:
            assert (tmp_path / name).read_bytes() == store.read(name)
        else:
            # The bytes of an Arrow file depend on pyarrow's version; `content` is the digest of all that it says.
            rows = table.slice(2 * span.first, 2 * (span.last - span.first + 1))
            assert metadata_of(tmp_path / name) == metadata_of(FILES / "log" / name)
            assert shards_of(tmp_path / name) == shards_of(FILES / "log" / name) == rows.to_pylist()


def shards_of(path: Path) -> list[dict[str, Any]]:
    with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
        return reader.read_all().to_pylist()


def metadata_of(path: Path) -> dict[bytes, bytes]:
    with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
        return dict(reader.schema.metadata)


def test_the_run_is_read_as_what_it_was():
    """Its settings, its commits, its timings and evaluations, and every object that a commit names."""
    run = RunFolder(open_store(str(GOLDEN)), "run")
    stored = json.loads((GOLDEN / "run" / "run.json").read_bytes())
    config = build_stored_config(run.load()["config"])
    assert config.identity() == stored["identity"]
    assert config.seed == 7
    assert config.distribution.act_tasks == 2
    assert config.distribution.min_act_tasks == 1
    assert config.distribution.gradient_block_rows == 64
    assert config.distribution.snapshot_dtype == "bfloat16"
    assert run.log.verify(run.genesis()) == 2

    history = read_history(run)
    assert history.committed == 2
    assert [stage.timings is not None for stage in history.stages] == [True, True]
    assert [one["version"] for one in history.evaluations] == [6]
    for stage in range(2):
        commit = json.loads((GOLDEN / f"run/commits/{stage:08d}.json").read_bytes())
        for ref in commit["shards"]:
            shard = decode_shard(memoryview(run.store.read(ref["name"])), None, ref["name"], ref["digest"])
            assert shard.columns["observation"].shape == (16, 2, 4)
        for ref in [*commit["states"], *commit["snapshots"], commit["checkpoint"]]:
            load_tensors(memoryview(run.store.read(ref["name"])), ref["name"], ref["digest"])


def test_the_replay_is_read_as_what_it_was():
    """Its settings, its commit and its plan, which is written again to the same bytes."""
    run = RunFolder(open_store(str(GOLDEN)), "replayed")
    config = build_stored_config(run.load()["config"])
    assert config.identity() == json.loads((GOLDEN / "replayed" / "run.json").read_bytes())["identity"]
    assert run.log.verify(run.genesis()) == 1
    (name,) = run.store.list("replay/")
    data = run.store.read(name)
    plan = ReplayPlan.decode(data, name, digest(data))
    assert {plan[index].run for index in range(len(plan))} == {"golden"}
    assert [plan[index].ref.round for index in range(len(plan))] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert bytes(plan.encode()) == data


def test_the_store_lists_its_runs():
    """The summaries that `penstock runs` prints."""
    summaries = {run.name: run for run in list_runs(open_store(str(GOLDEN)))}
    assert (summaries["run"].stage, summaries["run"].env_steps, summaries["run"].finished) == (1, 384, None)
    assert summaries["replayed"].problem is None


def test_the_independent_reader_reads_the_run(tmp_path: Path):
    """docs/read_run.py prints every shard, in a process that finds nothing of Penstock."""
    done = read_alone(GOLDEN / "run", tmp_path)
    assert done.returncode == 0, done.stderr
    rounds = [line.partition(":")[0] for line in done.stdout.splitlines()]
    assert rounds == [f"round {round_}, tile {tile}" for round_ in range(6) for tile in range(2)]


@pytest.mark.parametrize(
    ("damaged", "said"),
    [
        ("commits/00000000.json", "built upon"),
        ("shards/00000001/*-0001-*.arrow", "another digest"),
        ("run.json", "the identity"),
    ],
)
def test_the_independent_reader_finds_damage(tmp_path: Path, damaged: str, said: str):
    """A commit, a shard's head or the settings changed afterwards: the chain of digests or a name gives it away."""
    shutil.copytree(GOLDEN / "run", tmp_path / "run")
    path = min((tmp_path / "run").glob(damaged))
    data = path.read_bytes()
    changes = {"commits": (b'"episodes":', b'"episodes":1'), "shards": (b'"run_seed":7', b'"run_seed":8')}
    old, new = changes.get(damaged.partition("/")[0], (b'"seed":7', b'"seed":8'))
    assert old in data
    path.write_bytes(data.replace(old, new))
    done = read_alone(tmp_path / "run", tmp_path)
    assert done.returncode == 1
    assert said in done.stderr


def test_the_independent_reader_names_shards_that_were_dropped(tmp_path: Path):
    """Those of the first stages alone may be; another folder is no run."""
    shutil.copytree(GOLDEN / "run", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "shards" / "00000000")
    done = read_alone(tmp_path / "run", tmp_path)
    assert done.returncode == 1
    assert "is missing; if `penstock gc` has dropped it, begin at a later stage" in done.stderr
    assert "round 3, tile 0" in read_alone(tmp_path / "run", tmp_path, "1").stdout
    usage = "usage: python read_run.py RUN [FIRST_STAGE]"
    assert read_alone(tmp_path, tmp_path).stderr.startswith(usage)
    assert read_alone(tmp_path / "run", tmp_path, "x").stderr.startswith(usage)
    none = read_alone(tmp_path / "run", tmp_path, "9")
    assert (none.returncode, none.stderr) == (1, f"{tmp_path / 'run'} has no shards of stage 9 or later\n")


def read_alone(run: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the reader with an import system that refuses Penstock, and anything else but Arrow and BLAKE3."""
    program = (
        "import runpy, sys\n"
        "sys.modules.update(dict.fromkeys(('penstock', 'numpy', 'torch', 'pandas')))\n"
        f"sys.argv = {['read_run.py', str(run), *arguments]!r}\n"
        f"runpy.run_path({str(READER)!r}, run_name='__main__')\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-c", program], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )

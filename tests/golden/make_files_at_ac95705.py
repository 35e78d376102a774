"""Writes tests/golden/files with the code of commit ac95705, whose packages were `storage` and `tasks`.

    cd <checkout of ac95705> && .venv/bin/python <this file> <an empty folder>

Nothing in it is random, and no file depends on time or host.
"""
import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from storage.choices import Choice
from storage.commits import CommitLog, commit_name
from storage.episodes import Episodes
from storage.lease_record import Lease
from storage.readers import keep_shards_from
from storage.refs import CheckpointName, Ref, ShardRef, SnapshotRef, StateRef, checkpoint_name, shard_name, snapshot_name, state_name
from storage.digest import canonical_json, digest
from storage.run import RunFolder
from storage.shards import ShardColumns, ShardInfo, allocate, encode_shard
from storage.specs import Spec
from storage.store import open_store
from storage.tensors import save_tensors
from tasks.attempts import give_up
from tasks.checkpoints import write_checkpoint
from tasks.quantize import encode_params
from tasks.specs import ParameterGroup, State

FOLDER = Path(sys.argv[1])
STEPS, ENVS = 6, 2
SHARDS = {
    "plain": {"observation": Spec("float32", (3,)), "reward": Spec("float32"), "action": Spec("int64")},
    "bits": {"observation": Spec("float32", (3,)), "mask": Spec("bool", (5,)), "flag": Spec("bool")},
    "compressed": {"observation": Spec("uint8", (4, 4), compression="zstd"), "reward": Spec("float32")},
    "stacked": {"observation": Spec("uint8", (3, 4), stacked=True), "reward": Spec("float32")},
    "stacked_compressed": {"observation": Spec("uint8", (3, 4), compression="lz4", stacked=True)},
}


def fill(columns):
    arrays = allocate(columns, STEPS, ENVS)
    for number, (name, spec) in enumerate(columns.items()):
        array = arrays[name]
        values = np.arange(array.size).reshape(array.shape)
        if spec.stacked:
            for step in range(STEPS):
                for env in range(ENVS):
                    if step in (0, 4):
                        array[step, env] = np.arange(array[0, 0].size).reshape(array[0, 0].shape) + 40 * env + step
                    else:
                        array[step, env, :-1] = array[step - 1, env, 1:]
                        array[step, env, -1] = 10 * step + env
        elif spec.dtype == "bool":
            array[...] = values % 3 == number % 3
        else:
            array[...] = values / 4 if spec.dtype.startswith("float") else values % 200
    return arrays


def episodes():
    rows = np.array([5, 10])
    return Episodes.from_flags(
        row=rows, env_id=rows % ENVS + 4, episode_id=np.array([0, 3]), length=np.array([3, 30]),
        return_=np.array([1.5, -2.25]), terminated=np.array([1, 0], np.uint8), truncated=np.array([0, 1], np.uint8),
        first_policy_version=np.array([19, 15]), last_policy_version=np.array([20, 20]),
    )


def main():
    store = open_store(str(FOLDER))
    stated = {}
    for kind, columns in SHARDS.items():
        arrays = fill(columns)
        rows = np.array([5, 10, 11])
        observation = columns["observation"]
        bootstrap = np.arange(3 * int(np.prod(observation.shape))).reshape(3, *observation.shape).astype(observation.dtype)
        follows = 19 if kind == "bits" else None
        info = ShardInfo(7, 2, 21, 3, STEPS, ENVS, 19, 20, "CartPole-v1", {"gravity": 9.8}, episodes(), follows)
        shard = encode_shard(ShardColumns(columns, arrays), rows, bootstrap, info)
        store.write(f"shard-{kind}.arrow", shard.parts)
        stated[f"shard-{kind}.arrow"] = {
            "digest": shard.digest,
            "specs": {name: spec.to_json() for name, spec in columns.items()},
            "columns": {name: array.tolist() for name, array in arrays.items()},
            "bootstrap_rows": rows.tolist(),
            "bootstrap_observation": bootstrap.tolist(),
            "info": {name: getattr(info, name) for name in ("run_seed", "stage", "round", "tile", "steps", "envs", "min_policy_version", "max_policy_version", "environment", "environment_config", "follows_round")},
            "episodes": json.loads(info.episodes.to_json()),
        }

    weights = {"policy/weight": torch.arange(12, dtype=torch.float32).reshape(3, 4) / 7 - 0.8,
               "policy/bias": torch.tensor([0.5, -0.25, 1e-3])}
    for dtype in ("float32", "bfloat16", "int8"):
        data = encode_params(weights, dtype, {"version": 3})
        name = f"snapshot-{dtype}.safetensors"
        store.write(name, [memoryview(data)])
        stated[name] = {"digest": digest(data), "tensors": {key: value.tolist() for key, value in weights.items()}}

    arrays = {"generator": np.arange(10, dtype=np.uint64) * 2**59 + 1, "state.position": np.array([0.5, -1.0]),
              "elapsed_steps": np.array([3, 4], np.int64), "flags": np.array([True, False])}
    data = save_tensors(arrays, {"round": 5, "tile": 1})
    store.write("state.safetensors", [memoryview(data)])
    stated["state.safetensors"] = {"digest": digest(data), "tensors": {key: value.tolist() for key, value in arrays.items()},
                                   "facts": {"round": 5, "tile": 1}}

    state = State(
        params={"policy": ParameterGroup({"weight": torch.tensor([[1.0, 2.0]]), "bias": torch.tensor([0.5])})},
        optimizer={"policy": {"mean": torch.tensor([0.1, 0.2, 0.3]), "steps": torch.tensor(4)}},
        targets={"value": torch.tensor([3.0])},
    )
    reader = {"commit": 1, "epoch": 0, "seed": 7, "cursor": 6}
    window = {"priorities": np.array([0.5, 2.0]), "counters": np.array([1.0, 3.0, 2.0, 4.0])}
    ref = write_checkpoint(store, 2, state, reader, window)
    stated["checkpoint.safetensors"] = {
        "digest": ref.digest, "stage": 2, "reader": reader, "order": {"policy": ["weight", "bias"]},
        "params": {"policy": {"weight": [[1.0, 2.0]], "bias": [0.5]}},
        "optimizer": {"policy": {"mean": state.optimizer["policy"]["mean"].tolist(), "steps": 4}}, "targets": {"value": [3.0]},
        "window": {name: value.tolist() for name, value in window.items()},
    }
    (FOLDER / ref.name).rename(FOLDER / "checkpoint.safetensors")
    (FOLDER / "checkpoints").rmdir()

    lease = Lease("host/12 a", 3, 17, 30.0, "host", "boot/pid:[1]", 12, "4711", "0123456789abcdef", released=True)
    store.write("lease.json", [lease.encode()])
    stated["lease.json"] = asdict(lease)
    choice = Choice(21, {0: "a" * 32, 2: "b" * 32})
    store.write("choice.json", [choice.encode()])
    stated["choice.json"] = {"round": 21, "digests": {"0": "a" * 32, "2": "b" * 32}}
    keep_shards_from(store, 4)
    stated["retention.json"] = 4
    claims = store.at("claims/readers/replay-0123456789ab")
    claims.write("claim.json", [canonical_json({"first": 2, "last": 5, "shards": True})])
    claims.write("lease.json", [lease.encode()])
    stated["claims"] = [{"reader": "replay-0123456789ab", "first": 2, "last": 5, "shards": True}]
    run = RunFolder(store, "attempt")
    give_up(run, 3, 0, "shard of round 12 came out with another digest")
    stated["attempt"] = {"stage": 3, "attempt": 1}

    # A log of five commits with roll-ups of two and of four of them.
    log_store = store.at("log")
    log = CommitLog(log_store, rollup_interval=2)
    parent, commits = digest(canonical_json({"golden": True})), []
    for stage in range(5):
        refs = [ShardRef(shard_name(stage, int(stage == 3), stage, tile, d), d, 100 + stage, stage, tile, 12).to_json()
                for tile in range(2) for d in [digest(f"shard {stage} {tile}".encode())]]
        d = digest(f"state {stage}".encode())
        s = digest(f"snapshot {stage}".encode())
        c = digest(f"checkpoint {stage}".encode())
        commit = {
            "format": "penstock-commit/1", "stage": stage, "parent": parent, "rounds": [stage, stage], "version": stage + 1,
            "env_steps": 24 * (stage + 1), "episodes": stage, "shards": refs,
            "states": [StateRef(state_name(stage, 0, stage, tile, d), d, 50, stage, tile).to_json() for tile in range(2)],
            "snapshots": [SnapshotRef(snapshot_name(stage + 1, s), s, 60, stage + 1).to_json()],
            "checkpoint": Ref(checkpoint_name(stage, c), c, 70).to_json(),
            "metrics": {"loss": 0.5 / (stage + 1)},
            "evaluation": {"version": stage + 1, "episodes": 2, "mean_return": 9.5, "min_return": 9.0, "max_return": 10.0,
                           "mean_length": 9.5} if stage % 2 else None,
            "finished": "max_stages reached" if stage == 4 else None,
        }
        log.append(commit)
        commits.append(commit)
        parent = log.digest_of(stage)
    stated["log"] = {"genesis": commits[0]["parent"], "commits": commits, "files": log_store.list("")}
    (FOLDER / "values.json").write_text(json.dumps(stated, indent=1, sort_keys=True) + "\n")


main()

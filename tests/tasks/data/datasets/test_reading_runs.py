"""The examples of docs/reading.md run next to a stored run of a policy that can be cloned."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from penstock.storage.refs import ShardRef, shard_name
from penstock.storage.runs.run import RunFolder
from penstock.storage.shards.codec import ShardInfo, encode_shard
from penstock.storage.shards.episode_index import Episodes
from penstock.storage.stores.open import open_store
from penstock.tasks.roles.acting.tile import ActedRound, RoundBuffers, TileActor
from penstock.tasks.runtime.run_context import RunContext, _load
from penstock.tasks.setup.config.loading import build_config

from ....support.stored.synthetic_shards import commit_stage

DOCUMENT = Path(__file__).parents[4] / "docs" / "reading.md"
BLOCKS = re.findall(
    r"^## (.+?)\n.*?^```python\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
)
CONFIG = {
    "name": "cartpole-1",
    "environment": {"id": "CartPole-v1", "num_envs": 16, "envs_per_tile": 8},
    "algorithm": {"hidden": []},
    "schedule": {"round_steps": 128, "rounds_per_stage": 2, "max_stages": 1},
}
# Pushes towards where the pole falls, and a little back to the middle; so steep that noise hardly matters.
WEIGHTS = [5.0, 15.0, 200.0, 50.0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a run below `runs`, acted by a policy that balances the pole."""
    folder = tmp_path_factory.mktemp("reading")
    config = build_config(CONFIG)
    run = RunFolder(open_store(str(folder / "runs")), "cartpole-1")
    run.create({"config": config.model_dump(mode="json", exclude={"store", "cluster"})})
    context = _load(str(folder / "runs"), "cartpole-1", "", str(folder / "cache"))
    params = context.algorithm.init(0).params
    with torch.no_grad():
        params["policy"].flat.zero_()
        next(tensor for tensor in params["policy"].values() if tensor.dim() == 2)[1] = torch.tensor(WEIGHTS)
    actors = [TileActor(context, tile) for tile in range(2)]
    for actor in actors:
        actor.start()
    rounds = context.rounds_of(0)
    shards = [
        store(context, actor.act_round(0, params, RoundBuffers(context, actor.tile)))
        for _ in rounds
        for actor in actors
    ]
    commit_stage(run, 0, shards)
    return folder


def store(context: RunContext, acted: ActedRound) -> ShardRef:
    steps, envs = acted.buffers.columns.shape
    ended = acted.end.episodes
    episodes = Episodes.from_flags(
        ended["row"],
        ended["env"] + context.envs_of(acted.tile).start,
        ended["episode_id"],
        ended["length"],
        ended["return"],
        ended["terminated"],
        ended["truncated"],
        0 * ended["row"],
        0 * ended["row"],
    )
    info = ShardInfo(0, 0, acted.round, acted.tile, steps, envs, 0, 0, "CartPole-v1", {}, episodes)
    shard = encode_shard(acted.buffers.columns, acted.end.bootstrap_rows, acted.end.bootstrap_observation, info)
    name = shard_name(0, 0, acted.round, acted.tile, shard.digest)
    context.run.store.write(name, shard.parts)
    return ShardRef(name, shard.digest, shard.nbytes, acted.round, acted.tile, steps * envs)


@pytest.mark.parametrize("block", [pytest.param(code, id=heading) for heading, code in BLOCKS])
def test_documented_examples_run(block: str, folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Every block runs as it stands there, and what it asserts holds."""
    monkeypatch.chdir(folder)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    exec(compile(block, str(DOCUMENT), "exec"), {"__name__": "__main__"})
    torch.set_num_threads(before)

"""Macro placement through the pipeline is resumed to the same bytes, and its best placement is reproduced."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from penstock.storage.refs import ShardRef
from penstock.storage.shards.codec import decode_shard

from ...support.stored.stored_run import assert_same
from ..conftest import Bench, Settings

MACROS = 12


@dataclass(frozen=True)
class Block(Settings):
    """A synthetic block, an episode a round."""

    def toml(self) -> str:
        network = '[algorithm]\n            network = "floorplan"\n            features = 4'
        table = super().toml().replace("[environment]", '[environment]\n            id = "Floorplan-v0"')
        return table.replace("[algorithm]", network)


SETTINGS = Block(stages=2, rounds=2, tiles=2, act_tasks=1, round_steps=MACROS, envs_per_tile=2)


@pytest.mark.slow
def test_a_killed_run_places_the_same_macros(bench: Bench):
    """A killed and resumed run equals an undisturbed one; the best placement is reproduced at its cost."""
    bench.train("whole", SETTINGS).succeed()
    flow, run = bench.train("killed", SETTINGS), bench.run("killed")
    run.wait_for_round(1, flow)
    flow.kill()
    bench.resume("killed").succeed()
    whole = bench.run("whole")
    assert_same(run, whole.content())
    refs = [ShardRef.from_json(ref) for commit in whole.commits() for ref in commit["shards"]]
    assert sum(ref.nbytes for ref in refs) / sum(ref.rows for ref in refs) < 3000
    shards = [decode_shard(whole.store.view(ref.name), None, ref.name, ref.digest) for ref in refs]
    best = max(float(shard.columns["reward"].min(0).max()) for shard in shards)
    command = ("floorplan", "best", "whole", str(bench.folder / "best"), "--store", bench.store, "--json")
    (found,) = json.loads(bench.penstock(*command).succeed())
    assert abs(found["weighted_cost"] + best) < 1e-6 * abs(best)  # the column has float32
    greedy = whole.commits()[-1]["evaluation"]["mean_return"]
    (either,) = json.loads(bench.penstock(*command, "--greedy").succeed())
    assert abs(either["weighted_cost"] + max(greedy, best)) < 1e-6 * abs(best)
    assert (bench.folder / "best/best.plc").read_text().startswith("#")
    assert (bench.folder / "best/best.png").read_bytes().startswith(b"\x89PNG")
    bench.penstock("gc", "whole", "--drop-shards-before", "1", "--store", bench.store).succeed()
    (left,) = json.loads(bench.penstock(*command).succeed())
    assert left["stage"] == 1

"""Macro placement through the pipeline: killed and resumed to the same bytes; the best placement, placed again."""

from __future__ import annotations

import json
from dataclasses import dataclass

from storage.refs import ShardRef
from storage.shards import decode_shard

from .conftest import Bench, Settings
from .stored import assert_same

MACROS = 12


@dataclass(frozen=True)
class Block(Settings):
    """The block that is made up, an episode a round."""

    def toml(self) -> str:
        network = '[algorithm]\n            network = "floorplan"\n            features = 4'
        table = super().toml().replace("[environment]", '[environment]\n            id = "Floorplan-v0"')
        return table.replace("[algorithm]", network)


SETTINGS = Block(stages=2, rounds=2, tiles=2, act_tasks=1, round_steps=MACROS, envs_per_tile=2)


def test_a_killed_run_places_the_same_macros(bench: Bench):
    """Killed and resumed, it ends with the bytes of one that never was; the best is placed again at its own cost."""
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
    command = ("placement", "best", "whole", str(bench.folder / "best"), "--store", bench.store, "--json")
    (found,) = json.loads(bench.penstock(*command).succeed())
    assert abs(found["weighted_cost"] + best) < 1e-6 * abs(best)  # the column has float32
    greedy = whole.commits()[-1]["evaluation"]["mean_return"]
    (either,) = json.loads(bench.penstock(*command, "--greedy").succeed())
    assert abs(either["weighted_cost"] + max(greedy, best)) < 1e-6 * abs(best)
    assert (bench.folder / "best/best.plc").read_text().startswith("#")
    assert (bench.folder / "best/best.png").read_bytes().startswith(b"\x89PNG")

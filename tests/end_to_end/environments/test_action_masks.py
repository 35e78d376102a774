"""Action masks hold in a run whose observations and masks cross processes at every step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from penstock.storage.refs import ShardRef
from penstock.storage.shards.codec import decode_shard

from ..conftest import Bench, Settings


@dataclass(frozen=True)
class Game(Settings):
    """Settings with connect four, whose columns fill up within a round."""

    def toml(self) -> str:
        return super().toml().replace("[environment]", '[environment]\n            id = "ConnectFour-v0"')


@pytest.mark.slow
def test_no_committed_row_has_a_forbidden_action(bench: Bench):
    """Environments are stepped in other processes, and the shards have rows with forbidden actions to choose from."""
    settings = Game(stages=1, rounds=3, tiles=1, act_tasks=1, round_steps=64)
    bench.train("game", settings, "--policy", "environments").succeed()
    run = bench.run("game")
    refs = [ShardRef.from_json(ref) for commit in run.commits() for ref in commit["shards"]]
    shards = [decode_shard(run.store.view(ref.name), None, ref.name, ref.digest).columns for ref in refs]
    observation, action = (np.concatenate([shard[name] for shard in shards]) for name in ("observation", "action"))
    allowed = observation[..., :7]
    assert allowed.size == 7 * settings.rows
    assert np.take_along_axis(allowed, action[..., None], -1).all()
    assert not allowed.all()

"""What a run's newest snapshot places where it explores nothing: often better than any episode that it learned from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from gymnasium.vector import AutoresetMode

from storage.errors import ConfigError
from storage.refs import SnapshotRef
from tasks.environments import make_pool
from tasks.evaluations import looking_on
from tasks.floorplan_best import FoundPlacement, placing
from tasks.floorplan_blocks import blocks_of
from tasks.snapshots import load_snapshot

if TYPE_CHECKING:
    from storage.run import RunFolder


def greedy_placements(run: RunFolder) -> list[FoundPlacement]:
    """Of each block, what the newest snapshot's likeliest actions place.

    Raises:
        ConfigError: the run places no macros, or has committed nothing.
    """
    blocks, commit = len(blocks_of(placing(run))), run.log.newest()
    if commit is None:
        raise ConfigError(f"run '{run.name}' has committed nothing yet; `penstock resume {run.name}` goes on")
    torch.set_num_threads(1)
    context = looking_on(run, commit["stage"])
    snapshot = SnapshotRef.from_json(commit["snapshots"][-1])
    params = load_snapshot(context.cache.get_buffer(run.store, snapshot), snapshot)
    pool = make_pool(context.config, blocks, AutoresetMode.SAME_STEP)
    observation, _ = pool.reset(seed=0)
    noise = torch.zeros((blocks, *context.algorithm.noise.shape))
    carry = context.algorithm.initial_carry(blocks)
    cells: list[list[int]] = [[] for _ in range(blocks)]
    returns: dict[int, float] = {}
    with torch.inference_mode():
        while len(returns) < blocks:
            rows, carry = context.algorithm.act(params, carry, torch.from_numpy(observation), noise)
            observation, reward, terminated, *_ = pool.step(rows["action"].numpy())
            for block in set(range(blocks)) - set(returns):
                cells[block].append(int(rows["action"][block]))
                if terminated[block]:
                    returns[block] = float(reward[block])  # the only one of an episode that is not 0
    pool.close()
    return [FoundPlacement(commit["stage"], block, returns[block], tuple(cells[block])) for block in range(blocks)]

"""The best placements of a run: found in the episode indices of its shards, and placed again from the stored rows.

An episode's last row holds the cells of all macros but one; its action is the cell of the last one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from gymnasium.vector import AutoresetMode

from penstock.native.floorplan import PlacementCost, placing_order
from penstock.storage.errors import ConfigError, CorruptObjectError
from penstock.storage.runs.reader_claims import shards_kept_from
from penstock.storage.shards.reader import HEAD_BYTES, open_shard
from penstock.tasks.analysis.evaluation import last_snapshot, observer_context
from penstock.tasks.data.snapshots.exchange import load_snapshot
from penstock.tasks.environments.factory import make_pool
from penstock.tasks.environments.floorplan_blocks import blocks_of, open_blocks
from penstock.tasks.setup.config.environment import FLOORPLAN
from penstock.tasks.setup.config.replay import build_stored_config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.storage.refs import ShardRef
    from penstock.storage.runs.run import RunFolder
    from penstock.tasks.setup.config.environment import EnvironmentSettings


_HEAD = 3
_WEIGHTS = {"wirelength_weight": 1.0, "density_weight": 1.0, "congestion_weight": 0.5}
"""The environment's defaults."""


@dataclass(frozen=True, slots=True)
class FoundPlacement:
    """The placement of an episode."""

    stage: int
    block: int
    episode_return: float
    cells: tuple[int, ...]
    """The cell of each macro, in placing order."""


@dataclass(frozen=True, slots=True)
class _Episode:
    stage: int
    block: int
    shard: ShardRef
    index: int
    """The position in the shard's index of episodes."""
    episode_return: float


def best_placements(run: RunFolder, *, each_stage: bool = False) -> list[FoundPlacement]:
    """Return each block's best committed placement; with `each_stage`, one for each stage that improved on it.

    Ties go to the first. This reads the head of each shard that was not dropped, and one row of each best episode.

    Raises:
        ConfigError: the run places no macros, or has committed no whole episode of a block.
    """
    settings = placing(run)
    count = len(blocks_of(settings))
    best: dict[int, _Episode] = {}
    found: dict[tuple[int, int], _Episode] = {}
    for episode in _episodes(run, count):
        if episode.block not in best or episode.episode_return > best[episode.block].episode_return:
            best[episode.block] = found[episode.stage, episode.block] = episode
    if len(best) < count:
        raise ConfigError(
            f"run '{run.name}' has committed whole episodes of {len(best)} of {count} blocks; "
            f"`{run.command('resume')}` resumes it"
        )
    columns, rows = open_blocks(settings)[0].get_grid_num_columns_rows()
    chosen = found.values() if each_stage else (best[block] for block in sorted(best))
    return [FoundPlacement(one.stage, one.block, one.episode_return, _cells(run, one, columns, rows)) for one in chosen]


def _episodes(run: RunFolder, blocks: int) -> Iterator[_Episode]:
    """Yield the best episode of each shard and block, in the order of stages; dropped shards are left out."""
    newest = run.log.newest()
    head_bytes = HEAD_BYTES
    for stage in range(shards_kept_from(run.store), newest.stage + 1 if newest else 0):
        for ref in run.log.shard_refs(stage, stage):
            reader = open_shard(run.store, ref, head_bytes=head_bytes)
            head_bytes = reader.head_bytes
            episodes = reader.info.episodes
            for block in range(blocks):
                on_it = [i for i, env in enumerate(episodes.env_id.tolist()) if env % blocks == block]
                if on_it:
                    index = max(on_it, key=lambda i: float(episodes.return_[i]))
                    yield _Episode(stage, block, ref, index, float(episodes.return_[index]))


def _cells(run: RunFolder, episode: _Episode, columns: int, rows: int) -> tuple[int, ...]:
    """Return the cells from the episode's last row."""
    reader = open_shard(run.store, episode.shard)
    last = {name: values[-1] for name, values in reader.episode(episode.index, ("observation", "action")).items()}
    seen = last["observation"][columns * rows :]
    placed = int(seen[1]) + 256 * int(seen[2])
    at = seen[_HEAD : _HEAD + 2 * placed].reshape(placed, 2).astype(int)
    return (*(at[:, 1] * columns + at[:, 0]).tolist(), int(last["action"]))


def placed_again(run: RunFolder, found: FoundPlacement) -> PlacementCost:
    """Return the block's evaluator with the placement of the episode's end; its costs are the episode's.

    Raises:
        ConfigError: the block's files are not those of the run, or the episode ended where no cell was left.
        CorruptObjectError: the costs differ from those of the run.
    """
    settings = placing(run)
    plc = PlacementCost(open_blocks(settings)[found.block])
    macros = placing_order(plc)
    if netlist := blocks_of(settings)[found.block].netlist:
        # Episodes have the netlist's orientations, and the block's placement may have others.
        read = PlacementCost(netlist)
        for macro in macros:
            plc.update_macro_orientation(macro, read.get_macro_orientation(macro))
    if len(found.cells) < len(macros):
        raise ConfigError(
            f"run '{run.name}': the best episode placed {len(found.cells)} of {len(macros)} macros before no cell was "
            f"left; train longer"
        )
    plc.unplace_all_nodes()
    for macro, cell in zip(macros, found.cells, strict=True):
        plc.place_node(macro, cell)
    plc.place_soft_macros()
    cost = sum(weight * part for weight, part in zip(run_weights(run), plc.get_costs(), strict=True))
    if abs(cost + found.episode_return) > 1e-9 * max(1.0, cost):
        raise CorruptObjectError(
            f"run '{run.name}': an episode has the return {found.episode_return!r}, but its placement costs {cost!r}; "
            f"it was created by another version of Penstock, open it with that version"
        )
    return plc


def run_weights(run: RunFolder) -> tuple[float, float, float]:
    """Return the run's weights of wirelength, density and congestion."""
    given = dict[str, Any](placing(run).settings)
    wirelength, density, congestion = (float(given.get(name, default)) for name, default in _WEIGHTS.items())
    return wirelength, density, congestion


def placing(run: RunFolder) -> EnvironmentSettings:
    """Return the run's settings of macro placement.

    Raises:
        ConfigError: the run has another environment.
    """
    settings = build_stored_config(run.load("config")["config"]).environment
    if settings.id != FLOORPLAN:
        raise ConfigError(f"run '{run.name}' has the environment {settings.id}, expected {FLOORPLAN}")
    return settings


def greedy_placements(run: RunFolder) -> list[FoundPlacement]:
    """Return, for each block, the placement of the newest snapshot's most likely actions.

    Raises:
        ConfigError: the run places no macros, or has committed nothing.
    """
    blocks, commit = len(blocks_of(placing(run))), run.log.newest()
    if commit is None:
        raise ConfigError(f"run '{run.name}' has committed nothing yet; `{run.command('resume')}` resumes it")
    torch.set_num_threads(1)
    context = observer_context(run, commit.stage)
    snapshot = last_snapshot(run, commit)
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
                    returns[block] = float(reward[block])  # the only reward of an episode that is not 0
    pool.close()
    return [FoundPlacement(commit.stage, block, returns[block], tuple(cells[block])) for block in range(blocks)]

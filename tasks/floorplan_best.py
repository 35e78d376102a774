"""The best placements of a run: found by the episode indices of its shards, and placed again from what they store.

Imports no torch. An episode's last row shows where all macros but one were put, and its action is the last one's cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from native.floorplan import PlacementCost
from storage.errors import ConfigError, CorruptObjectError
from storage.shard_reader import HEAD_BYTES, open_shard
from tasks.floorplan_blocks import blocks_of, open_blocks
from tasks.floorplan_settings import FLOORPLAN
from tasks.replay_config import build_stored_config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from storage.refs import ShardRef
    from storage.run import RunFolder
    from tasks.config import EnvironmentSettings

_HEAD = 3
_WEIGHTS = {"wirelength_weight": 1.0, "density_weight": 1.0, "congestion_weight": 0.5}
"""The environment's own."""


@dataclass(frozen=True, slots=True)
class FoundPlacement:
    """What an episode placed, and where."""

    stage: int
    block: int
    episode_return: float
    cells: tuple[int, ...]
    """Of the macros in placing order."""


@dataclass(frozen=True, slots=True)
class _Episode:
    stage: int
    block: int
    shard: ShardRef
    index: int
    """In the shard's index of episodes."""
    episode_return: float


def best_placements(run: RunFolder, *, each_stage: bool = False) -> list[FoundPlacement]:
    """Of each block the best of all that is committed, or with `each_stage` the best until each stage that found one.

    Of several with the same return it is the first. A head is read of each shard, and a row of each episode that is
    the best.

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
            f"run '{run.name}' has committed whole episodes of {len(best)} of {count} blocks; `penstock resume "
            f"{run.name}` goes on with it"
        )
    columns, rows = open_blocks(settings)[0].get_grid_num_columns_rows()
    chosen = found.values() if each_stage else (best[block] for block in sorted(best))
    return [FoundPlacement(one.stage, one.block, one.episode_return, _cells(run, one, columns, rows)) for one in chosen]


def _episodes(run: RunFolder, blocks: int) -> Iterator[_Episode]:
    """The best of each shard and block, in the order of stages."""
    newest = run.log.newest()
    head_bytes = HEAD_BYTES
    for stage in range(newest["stage"] + 1 if newest else 0):
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
    """From the episode's last row."""
    reader = open_shard(run.store, episode.shard)
    last = {name: values[-1] for name, values in reader.episode(episode.index, ("observation", "action")).items()}
    seen = last["observation"][columns * rows :]
    placed = int(seen[1]) + 256 * int(seen[2])
    at = seen[_HEAD : _HEAD + 2 * placed].reshape(placed, 2).astype(int)
    return (*(at[:, 1] * columns + at[:, 0]).tolist(), int(last["action"]))


def placed_again(run: RunFolder, found: FoundPlacement) -> PlacementCost:
    """The evaluator of the block, with everything where it was at the episode's end; its costs are the episode's.

    Raises:
        ConfigError: the block's files are not those of the run, or the episode ended where no cell was left.
        CorruptObjectError: the costs are others than the run got.
    """
    settings = placing(run)
    plc = PlacementCost(open_blocks(settings)[found.block])
    macros = [m for m in plc.get_macro_indices() if not plc.is_node_soft_macro(m) and not plc.is_node_fixed(m)]
    macros.sort(key=lambda macro: -_area(plc, macro))
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
            f"it was made by another version of Penstock, look at it with that"
        )
    return plc


def run_weights(run: RunFolder) -> tuple[float, float, float]:
    """Of wirelength, density and congestion, as the run has them."""
    given = placing(run).settings
    wirelength, density, congestion = (float(given.get(name, own)) for name, own in _WEIGHTS.items())
    return wirelength, density, congestion


def placing(run: RunFolder) -> EnvironmentSettings:
    """The run's settings of macro placement.

    Raises:
        ConfigError: it is of something else.
    """
    settings = build_stored_config(run.load("config")["config"]).environment
    if settings.id != FLOORPLAN:
        raise ConfigError(f"run '{run.name}' is of {settings.id}, expected one of {FLOORPLAN}")
    return settings


def _area(plc: PlacementCost, macro: int) -> float:
    width, height = plc.get_node_width_height(macro)
    return width * height

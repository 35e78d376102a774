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
class BestEpisode:
    """The episode with the largest return of those on a block."""

    stage: int
    block: int
    shard: ShardRef
    index: int
    """In the shard's index of episodes."""
    episode_return: float


def best_episodes(run: RunFolder, *, each_stage: bool = False) -> list[BestEpisode]:
    """Of each block the best episode of all that is committed, or with `each_stage` the best until each stage.

    Of several with the same return it is the first. A head is read of each shard, and nothing else.

    Raises:
        ConfigError: the run places no macros, or has committed no episode that was finished.
    """
    settings = _settings(run)
    count = len(blocks_of(settings))
    best: dict[int, BestEpisode] = {}
    found: list[BestEpisode] = []
    for stage, episodes in _by_stage(run, count):
        for episode in episodes:
            if episode.block not in best or episode.episode_return > best[episode.block].episode_return:
                best[episode.block] = episode
                if each_stage:
                    found = [one for one in found if (one.stage, one.block) != (stage, episode.block)] + [episode]
    if not best:
        raise ConfigError(f"run '{run.name}' has committed no whole episode yet; `penstock resume {run.name}` goes on")
    return found if each_stage else [best[block] for block in sorted(best)]


def _by_stage(run: RunFolder, blocks: int) -> Iterator[tuple[int, Iterator[BestEpisode]]]:
    newest = run.log.newest()
    for stage in range(newest["stage"] + 1 if newest else 0):
        yield stage, _of_stage(run, stage, blocks)


def _of_stage(run: RunFolder, stage: int, blocks: int) -> Iterator[BestEpisode]:
    head_bytes = HEAD_BYTES
    for ref in run.log.shard_refs(stage, stage):
        reader = open_shard(run.store, ref, head_bytes=head_bytes)
        head_bytes = reader.head_bytes
        episodes = reader.info.episodes
        for block in range(blocks):
            on_it = [i for i, env in enumerate(episodes.env_id.tolist()) if env % blocks == block]
            if on_it:
                index = max(on_it, key=lambda i: float(episodes.return_[i]))
                yield BestEpisode(stage, block, ref, index, float(episodes.return_[index]))


def placed_again(run: RunFolder, best: BestEpisode) -> PlacementCost:
    """The evaluator of the block, with everything where it was at the episode's end; its costs are the episode's.

    Raises:
        ConfigError: the block's files are not those of the run, or the episode ended where no cell was left.
        CorruptObjectError: the costs are others than the run got.
    """
    settings = _settings(run)
    plc = PlacementCost(open_blocks(settings)[best.block])
    macros = [m for m in plc.get_macro_indices() if not plc.is_node_soft_macro(m) and not plc.is_node_fixed(m)]
    macros.sort(key=lambda macro: -_area(plc, macro))
    reader = open_shard(run.store, best.shard)
    last = {name: values[-1] for name, values in reader.episode(best.index, ("observation", "action")).items()}
    columns, rows = plc.get_grid_num_columns_rows()
    seen = last["observation"][columns * rows :]
    placed = int(seen[1]) + 256 * int(seen[2])
    if placed + 1 < len(macros):
        raise ConfigError(
            f"run '{run.name}': the best episode placed {placed + 1} of {len(macros)} macros before no cell was left; "
            f"train longer"
        )
    at = seen[_HEAD : _HEAD + 2 * placed].reshape(placed, 2).astype(int)
    cells = [*(at[:, 1] * columns + at[:, 0]).tolist(), int(last["action"])]
    plc.unplace_all_nodes()
    for macro, cell in zip(macros, cells, strict=True):
        plc.place_node(macro, cell)
    plc.place_soft_macros()
    cost = sum(weight * part for weight, part in zip(weights_of(settings), plc.get_costs(), strict=True))
    if abs(cost + best.episode_return) > 1e-9 * max(1.0, cost):
        raise CorruptObjectError(
            f"'{best.shard.name}': an episode has the return {best.episode_return!r}, but its placement costs "
            f"{cost!r}; it was made by another version of Penstock, look at it with that"
        )
    return plc


def weights_of(settings: EnvironmentSettings) -> tuple[float, float, float]:
    """Of wirelength, density and congestion, as the run has them."""
    wirelength, density, congestion = (float(settings.settings.get(name, own)) for name, own in _WEIGHTS.items())
    return wirelength, density, congestion


def run_weights(run: RunFolder) -> tuple[float, float, float]:
    """As `weights_of`."""
    return weights_of(_settings(run))


def _settings(run: RunFolder) -> EnvironmentSettings:
    settings = build_stored_config(run.load()["config"]).environment
    if settings.id != FLOORPLAN:
        raise ConfigError(f"run '{run.name}' is of {settings.id}, expected one of {FLOORPLAN}")
    return settings


def _area(plc: PlacementCost, macro: int) -> float:
    width, height = plc.get_node_width_height(macro)
    return width * height

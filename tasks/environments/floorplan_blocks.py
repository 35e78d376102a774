"""Loads the floorplan blocks that settings name, from files to an environment. Imports no torch."""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from penstock.native.floorplan import create_placement_cost, generate_block, load_environment, placing_order
from penstock.storage.digest import digest
from penstock.storage.errors import ConfigError
from penstock.tasks.setup.config.environment import FLOORPLAN, BlockSettings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.native.floorplan import PlacementCost
    from penstock.tasks.setup.config.environment import EnvironmentSettings
    from penstock.tasks.setup.config.run import RunConfig

    ConfigT = TypeVar("ConfigT", bound=RunConfig)


_MOST_BLOCKS = 255
"""A pool has no more, and each is opened several times while a run begins."""


def blocks_of(settings: EnvironmentSettings) -> tuple[BlockSettings, ...]:
    """Return the configured blocks, or a synthetic one if there are none."""
    return settings.blocks or (BlockSettings(),)


def open_blocks(settings: EnvironmentSettings) -> list[PlacementCost]:
    """Open an evaluator for each block, with the settings of episodes. Evaluators are shared: copy before changing one.

    Raises:
        ConfigError: a file is missing, malformed, or not the one that the run was created with.
    """
    return [_opened(block) for block in blocks_of(settings)]


def load_blocks(settings: EnvironmentSettings) -> str:
    """Register the blocks' environment in this process and return its id.

    Raises:
        ConfigError: as `open_blocks`; or blocks don't fit together, or have nothing to place.
    """
    if "block" in settings.settings:
        raise ConfigError(
            f"environment.settings.block: {FLOORPLAN} gives environment i block i modulo their number; leave it out"
        )
    try:
        return _load(tuple(open_blocks(settings)))
    except ValueError as error:
        raise ConfigError(f"environment.blocks: {error}") from None


def require_whole_episodes(settings: EnvironmentSettings) -> None:
    """Refuse a time limit at which no episode would have placed all macros; other environments are left alone.

    Raises:
        ConfigError: as `open_blocks`; or names the limit and the number of macros.
    """
    steps = settings.max_episode_steps
    if settings.id != FLOORPLAN or steps is None:
        return
    most = max(len(placing_order(plc)) for plc in open_blocks(settings))
    if steps < most:
        raise ConfigError(
            f"environment.max_episode_steps = {steps}: each step places one hard macro, and a block has {most}, so "
            f"that no episode would place all; leave it out"
        )


def with_digests(config: ConfigT) -> ConfigT:
    """Return the configuration with absolute paths and digests of its blocks' files; other environments' unchanged.

    Raises:
        ConfigError: as `open_blocks`.
    """
    settings = config.environment
    if settings.id != FLOORPLAN:
        return config
    open_blocks(settings)
    blocks = tuple(
        BlockSettings(
            netlist=",".join(str(Path(name.strip()).resolve()) for name in block.netlist.split(",") if block.netlist),
            placement=block.placement and str(Path(block.placement).resolve()),
            digest=_digest(block),
        )
        for block in blocks_of(settings)
    )
    return config.model_copy(update={"environment": settings.model_copy(update={"blocks": blocks})})


def _opened(block: BlockSettings) -> PlacementCost:
    found = _digest(block)
    if block.digest not in (None, found):
        what = ", ".join(map(str, _files(block))) if block.netlist else "the synthetic block"
        raise ConfigError(
            f"environment.blocks: {what}: found bytes with the digest {found}, expected {block.digest}, which the run "
            f"was created with; restore those files, or start another run"
        )
    try:
        return _evaluator(block.netlist, block.placement, found)
    except ValueError as error:
        raise ConfigError(f"environment.blocks: {error}") from None


def _files(block: BlockSettings) -> list[Path]:
    names = [part.strip() for part in block.netlist.split(",")]
    return [Path(name) for name in [*names, *([block.placement] if block.placement else [])]]


def _digest(block: BlockSettings) -> str:
    if not block.netlist:
        return _made_up()[1]
    try:
        return _digest_of(_files(block))
    except OSError as error:
        raise ConfigError(
            f"environment.blocks: {error.filename}: cannot be read ({error.strerror}), expected a file; check the "
            f"path, which must lead to it on every machine that acts"
        ) from None


def _digest_of(files: Iterable[Path]) -> str:
    contents = [file.read_bytes() for file in files]
    return digest(*(part for content in contents for part in (len(content).to_bytes(8, "little"), content)))


@lru_cache(maxsize=1)
def _made_up() -> tuple[PlacementCost, str]:
    with tempfile.TemporaryDirectory(prefix="penstock-block-") as folder:
        files = generate_block(folder)
        plc = create_placement_cost(*files)
        plc.source_filename = "the made-up block"
        return plc, _digest_of(files[:1])  # the placement is derived from the netlist, but its header names the folder


@lru_cache(maxsize=_MOST_BLOCKS)
def _evaluator(netlist: str, placement: str | None, _: str) -> PlacementCost:
    """Cache an evaluator while the files' bytes are the same."""
    return create_placement_cost(netlist, placement) if netlist else _made_up()[0]


@lru_cache(maxsize=16)
def _load(blocks: tuple[PlacementCost, ...]) -> str:
    return load_environment(blocks).environment_ids[0]

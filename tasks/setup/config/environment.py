"""Settings of the environment, and of the blocks of macro placement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, StrictBool, model_validator

from penstock.tasks.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

FLOORPLAN = "Floorplan-v0"
"""Id of the environment whose blocks the settings name."""


class BlockSettings(Settings):
    """The files of one block, by paths that are valid in every process that makes environments."""

    netlist: str = Field(
        "",
        description="Netlist (.pb.txt, also gzip); several are separated by commas; empty: a synthetic block.",
    )
    placement: str | None = Field(
        None,
        description="Placement (.plc) with canvas, grid, port positions and fixed macros.",
    )
    digest: str | None = Field(
        None,
        description="Digest of the files' bytes, stored when a run begins; files with another digest are refused.",
    )


class EnvironmentSettings(Settings):
    """The environment, its number of copies, and their split into tiles."""

    id: str = Field("CartPole-v1", description="Id of a pool environment.")
    num_envs: int = Field(64, ge=1, le=1 << 30, description="Copies that act at once, in the whole run.")
    envs_per_tile: int = Field(
        64,
        ge=1,
        le=1 << 20,
        description="Copies in a tile: the unit of inference, of a shard and of stored environment state.",
    )
    max_episode_steps: int | None = Field(None, ge=1, description="Time limit; empty: the environment's default.")
    settings: dict[str, StrictBool | float] = Field(
        default_factory=dict, description="Settings of the environment, such as gravity."
    )
    blocks: tuple[BlockSettings, ...] = Field(
        (),
        description=f"Blocks of {FLOORPLAN}, each with netlist and placement; environment i has block i modulo their "
        f"number. Empty: a synthetic block.",
    )

    @model_validator(mode="after")
    def _whole_tiles(self) -> EnvironmentSettings:
        if self.num_envs % self.envs_per_tile:
            raise ValueError(
                f"num_envs = {self.num_envs} is not a multiple of envs_per_tile = {self.envs_per_tile}; "
                f"choose a multiple"
            )
        if self.blocks and self.id != FLOORPLAN:
            raise ValueError(f"blocks: found {len(self.blocks)} for id = '{self.id}', expected id = '{FLOORPLAN}'")
        if self.blocks and self.envs_per_tile % len(self.blocks):
            raise ValueError(
                f"envs_per_tile = {self.envs_per_tile} is not a multiple of {len(self.blocks)} blocks; choose one, so "
                f"that every tile plays each block as often"
            )
        return self

    @property
    def tiles(self) -> int:
        """Return the number of tiles of the run."""
        return self.num_envs // self.envs_per_tile

    def identity(self) -> Mapping[str, object]:
        """Return the settings that are part of a run's identity; without blocks, `blocks` is omitted as in old runs."""
        return self.model_dump(mode="json", exclude=set() if self.blocks else {"blocks"})

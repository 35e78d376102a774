"""Settings of macro placement: which blocks are placed."""

from __future__ import annotations

from pydantic import Field

from tasks.settings import Settings, at

FLOORPLAN = "Floorplan-v0"
"""Id of the environment whose blocks the settings name."""


class BlockSettings(Settings):
    """One block, by its files, as every process that makes environments finds them."""

    netlist: str = Field(
        "",
        description="Netlist (.pb.txt, also gzip); several with commas between them; empty takes a made-up block.",
        json_schema_extra=at(0),
    )
    placement: str | None = Field(
        None,
        description="Placement (.plc) that gives canvas, grid, ports' positions, and macros that stay.",
        json_schema_extra=at(1),
    )
    digest: str | None = Field(
        None,
        description="Of the files' bytes; a run writes it down when it begins. Files with another are refused.",
        json_schema_extra=at(2),
    )

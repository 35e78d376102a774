"""Arguments that several commands about floorplans take, and the files that they open."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.storage.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.native.floorplan import PlacementCost

Netlist = Annotated[str, typer.Argument(help="Netlist (.pb.txt, also gzip); several with commas between them.")]
Placement = Annotated[Path, typer.Argument(help="Placement (.plc); its header gives canvas, grid, routes, smoothing.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Weights = Annotated[
    tuple[float, float, float],
    typer.Option("--weights", help="Weights of wirelength, density and congestion in the cost."),
]

WEIGHTS = (1.0, 1.0, 0.5)


@contextmanager
def file_errors() -> Iterator[None]:
    """Convert errors about files and values into the command's own."""
    try:
        yield
    except (ValueError, OSError, ModuleNotFoundError) as error:
        raise ConfigError(str(error)) from None


def opened(netlist: str, placement: Path) -> PlacementCost:
    """Open a finished placement with the settings of its header."""
    from penstock.native.floorplan import open_placement

    return open_placement(netlist, placement)

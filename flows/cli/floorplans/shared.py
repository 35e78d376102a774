"""Arguments that several commands about floorplans take, and the files that they open."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.storage.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


def check_output(out: Path, *inputs: str | Path) -> None:
    """Refuse to write over what is read, or where there is no folder, before anything is computed."""
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"{out}: there is no folder {out.absolute().parent}; make it first")
    for each in inputs:
        if out.absolute().resolve() == Path(each).absolute().resolve():
            raise ConfigError(f"{out}: the result would replace what it is made of; choose another file")


def refuse_another_block(folder: Path, make: Callable[[Path], object]) -> None:
    """Refuse a folder with another block than the one that is about to be made: runs name a block by its bytes."""
    there = folder / "netlist.pb.txt"
    if not there.exists():
        return
    with TemporaryDirectory() as made:
        make(Path(made))
        if (Path(made) / there.name).read_bytes() != there.read_bytes():
            raise ConfigError(
                f"{there} is another block's, and runs that name it could not go on; choose another folder, or remove "
                f"that block"
            )


def opened(netlist: str, placement: Path) -> PlacementCost:
    """Open a finished placement with the settings of its header."""
    from penstock.native.floorplan import open_placement

    return open_placement(netlist, placement)

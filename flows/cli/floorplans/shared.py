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

INITIAL = "initial.plc"
"""Name of the placement that `generate`, `import` and `group` write beside a netlist."""

Netlist = Annotated[str, typer.Argument(help="Netlist (.pb.txt, also gzip); several with commas between them.")]
_PLACEMENT = "Placement (.plc); its header gives canvas, grid, routes, smoothing."
Placement = Annotated[Path, typer.Argument(help=_PLACEMENT)]
PlacementOrBeside = Annotated[
    Path | None, typer.Argument(help=_PLACEMENT, show_default=f"{INITIAL}, beside the netlist")
]
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


def placement_beside(netlist: str, placement: Path | None) -> Path:
    """Return the placement that was given, or the one beside the netlist, which is refused where it is missing."""
    if placement is not None:
        return placement
    first = Path(netlist.split(",", maxsplit=1)[0])
    beside = first.parent / INITIAL
    with file_errors():
        missing = first.is_file() and not beside.is_file()  # of a missing netlist, its reader says so
    if missing:
        raise ConfigError(
            f"{beside}: there is no such file beside the netlist, where it is looked for unless a placement is named; "
            "give the block's placement (.plc) after the netlist"
        )
    return beside


def check_output(out: Path, *inputs: str | Path) -> None:
    """Refuse to write over what is read, or where there is no folder, before anything is computed."""
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"{out}: there is no folder {out.absolute().parent}; make it first")
    for each in inputs:
        if out.absolute().resolve() == Path(each).absolute().resolve():
            raise ConfigError(f"{out}: the result would replace what it is made of; choose another file")


def require_readable(*files: str | Path) -> None:
    """Refuse a file that can't be read, as its reader does later."""
    for each in files:
        try:
            with Path(each).open("rb"):
                pass
        except OSError as error:
            raise ConfigError(f"{each}: cannot be read ({error.strerror}), expected a file; check the path") from error


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

    plc = open_placement(netlist, placement)
    note_missing_rows(plc, placement)
    return plc


def note_missing_rows(plc: PlacementCost, placement: Path) -> None:
    """Print a note if a placement lacks rows, as one that was cut short does: nodes may be unplaced on purpose."""
    from penstock.native.floorplan.files import read_text

    found = sum(not line.startswith("#") for line in map(str.strip, read_text(placement).splitlines()) if line)
    nodes = plc.get_hard_macros_count() + plc.get_soft_macros_count() + plc.get_ports_count()
    if found < nodes:
        typer.echo(
            f"note: {placement} has the positions of {found} of {nodes} macros and ports; the others stay where the "
            "netlist has them",
            err=True,
        )

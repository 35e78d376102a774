"""`penstock floorplan place`: the placer, which is stopped and continued at will."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penstock.flows.cli.floorplans.shared import (
    WEIGHTS,
    AsJson,
    Netlist,
    PlacementOrBeside,
    Weights,
    file_errors,
    note_missing_rows,
    opened,
    placement_beside,
)

if TYPE_CHECKING:
    from penstock.native.floorplan import PlacementCost, PlaceProgress, PlaceResult


Settings = Annotated[
    Literal["episodes", "header"],
    typer.Option(help="Routes, smoothing and spacing: those of published episodes, or the placement's header's."),
]


def place(
    netlist: Netlist,
    placement: PlacementOrBeside = None,
    out: Annotated[
        Path, typer.Argument(help="Folder for the result, and for the state that a stopped search leaves.")
    ] = Path("placed"),
    minutes: Annotated[
        float | None, typer.Option(help="Wall time, about; moves are reckoned from it.", show_default="10")
    ] = None,
    moves: Annotated[
        int | None, typer.Option(help="Instead of a time: moves of each chain. The same moves, the same bytes.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Chains, each in a thread.", show_default="the CPUs that there are")
    ] = None,
    segments: Annotated[
        int | None, typer.Option(help="How often chains are compared and kept.", show_default="60, or fewer")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed, the same placement.")] = 0,
    settings: Settings = "episodes",
    weights: Weights = WEIGHTS,
    again: Annotated[bool, typer.Option("--again", help="Begin anew, whatever search the folder holds.")] = False,
    as_json: AsJson = False,
) -> None:
    """Place a block's macros within a time: as .plc and .def, with pictures, the curve and the costs.

    Ctrl-C stops it, and the same command continues it, to the same bytes as if it had never been stopped.
    """
    from penstock.flows.display.placing_panel import PlacingPanel

    placement = placement_beside(netlist, placement)
    panel = PlacingPanel(str(placement), quiet=as_json)
    finished_before: bool | None = None
    with ExitStack() as stack, file_errors():
        from penstock.native.floorplan import place as search

        def show(progress: PlaceProgress) -> None:
            nonlocal finished_before
            if finished_before is None:  # a mistake is an error before this is called
                stack.enter_context(panel)
                finished_before = 0 < progress.segments == progress.segments_done
            panel.update(progress)

        plc = _evaluator(netlist, placement, settings)
        found = search(
            plc,
            minutes=minutes,
            moves=moves,
            seed=seed,
            threads=threads,
            segments=segments,
            weights=weights,
            out=out,
            again=again,
            on_progress=show,
        )
    if finished_before:
        typer.echo(
            f"note: {out} has this search, finished, and its result is told again; --again begins anew", err=True
        )
    for note in _notes(found):
        typer.echo(f"note: {note}", err=True)
    if as_json:
        typer.echo(json.dumps({**asdict(found), "settings": settings}, indent=2))
        return
    for line in _lines(found, out):
        typer.echo(line)


def _evaluator(netlist: str, placement: Path, settings: str) -> PlacementCost:
    from penstock.native.floorplan import create_placement_cost

    if settings == "header":
        return opened(netlist, placement)
    note_missing_rows(plc := create_placement_cost(netlist, placement), placement)
    return plc


def _notes(found: PlaceResult) -> list[str]:
    notes = [f"not legal: {problem}" for problem in found.problems]
    if found.unplaced_ports:
        notes.append(f"{found.unplaced_ports} ports have no position; nets are measured and routed without them")
    if not found.judged:
        notes.append("no macro is free to move, or none has a legal move")
    return notes


def _lines(found: PlaceResult, out: Path) -> list[str]:
    costs = ", ".join(
        f"{name} {getattr(found, f'{name}_cost'):.6f}" for name in ("wirelength", "density", "congestion")
    )
    repeated = f"--moves {found.moves} --threads {found.threads} --segments {found.segments} --seed {found.seed}"
    return [
        f"weighted cost {found.start_cost:.6f} -> {found.cost:.6f}, {found.placement}",
        f"{costs}; hard macros are {'legal' if found.legal else 'NOT legal'}",
        f"{found.judged:,} legal moves in {found.seconds:,.0f} s; {repeated} gives the same placement again",
        f"also in {out}: best.def, before.png, after.png, curve.json, result.json",
    ]

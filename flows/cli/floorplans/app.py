"""`penstock floorplan`: evaluates, draws and anneals placements of macros; generates, imports and groups blocks."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path  # noqa: TC003  (typer reads annotations)
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penstock.flows.cli.floorplans.place import place
from penstock.flows.cli.floorplans.record import record
from penstock.flows.cli.floorplans.shared import (
    WEIGHTS,
    AsJson,
    Netlist,
    Placement,
    PlacementOrBeside,
    Weights,
    check_output,
    file_errors,
    opened,
    placement_beside,
    refuse_another_block,
    require_readable,
)
from penstock.storage.errors import ConfigError
from penstock.storage.runs.run import USUAL_STORE

if TYPE_CHECKING:
    from penstock.native.floorplan import PlacementCost

commands = typer.Typer(
    name="floorplan",
    help="Costs, pictures and annealing of macro placements.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
commands.command()(place)
commands.command()(record)


def add_to(app: typer.Typer) -> None:
    """Add the commands to `app`, under `floorplan`, and for one version under their old name, `placement`."""
    app.add_typer(commands)
    app.add_typer(commands, name="placement", hidden=True, callback=_renamed)


def _renamed() -> None:
    typer.echo("note: `penstock placement` was renamed to `penstock floorplan`; the next version drops it", err=True)


@commands.command()
def cost(
    netlist: Netlist, placement: PlacementOrBeside = None, weights: Weights = WEIGHTS, as_json: AsJson = False
) -> None:
    """Print the costs of a placement, with the settings that they were computed with."""
    placement = placement_beside(netlist, placement)
    with file_errors():
        plc = opened(netlist, placement)
        found = _costs(plc, weights)
        note = _unlike_header(plc, placement)
    if note:
        typer.echo(f"note: {note}", err=True)
    if as_json:
        typer.echo(json.dumps({**found, "settings": _settings(plc), "counts": _counts(plc)}, indent=2))
        return
    for name, value in found.items():
        typer.echo(f"{name:20} {value!r}" if isinstance(value, float) else f"{name:20} {value}")
    for name, fact in {**_settings(plc), **_counts(plc)}.items():
        typer.echo(f"  {name:18} {fact}")


@commands.command()
def draw(
    netlist: Netlist,
    placement: Placement,
    out: Annotated[Path, typer.Argument(help="Picture; its name ends in .svg or .png.")],
    width: Annotated[int, typer.Option(help="Width of the picture in pixels.")] = 900,
) -> None:
    """Draw a placement: congestion red, soft macros green, hard macros blue, ports black, heavy ties as lines."""
    from penstock.native.floorplan import draw as draw_to

    with file_errors():
        check_output(out, *netlist.split(","), placement)
        draw_to(opened(netlist, placement), out, width)


@commands.command()
def anneal(
    netlist: Netlist,
    placement: Placement,
    out: Annotated[Path, typer.Argument(help="The .plc file for the placement that is found.")],
    moves: Annotated[int, typer.Option(min=0, help="Moves to judge.")] = 1_000_000,
    proposals: Annotated[
        Literal["published", "uniform", "guided"],
        typer.Option(help="Moves of hard macros; of soft ones too; of both, their places drawn by what they cost."),
    ] = "published",
    first_temperature: Annotated[
        float | None, typer.Option(help="In units of the weighted cost; default: 0.0002, or by the number of macros.")
    ] = None,
    last_temperature: Annotated[
        float | None, typer.Option(help="Between the two temperatures are geometric; default: 1e-6, or likewise.")
    ] = None,
    soft_every: Annotated[
        int | None,
        typer.Option(min=0, help="Moves between placements of soft macros; default: a fiftieth; 0: at the end."),
    ] = None,
    legalise: Annotated[bool, typer.Option(help="Make the hard macros legal first, soft ones placed anew.")] = True,
    seed: Annotated[int, typer.Option(min=0, help="The same seed, the same placement.")] = 0,
    weights: Weights = WEIGHTS,
    as_json: AsJson = False,
) -> None:
    """Search for a better placement by simulated annealing."""
    from penstock.flows.display.working import Working

    with ExitStack() as stack, file_errors():
        from penstock.native.floorplan import anneal as search
        from penstock.native.floorplan import check_annealing, proposals_for

        check_output(out, *netlist.split(","), placement)
        plc = opened(netlist, placement)
        drawn = proposals_for(plc, proposals)
        check_annealing(plc, drawn, weights, first_temperature, last_temperature)
        working = stack.enter_context(Working(f"annealing {placement}", "moves", quiet=as_json))
        if legalise:
            if not plc.legalize(only_hard=True):
                raise ConfigError(f"{placement}: no legal placement was found near it; start from another")
            plc.place_soft_macros()
        before = _costs(plc, weights)
        found = search(
            plc,
            moves=moves,
            first_temperature=first_temperature,
            last_temperature=last_temperature,
            soft_every=soft_every,
            seed=seed,
            proposals=drawn,
            weights=weights,
            on_progress=working.update,
        )
        plc.save_placement(out, f"Annealed: {found.judged} moves, seed {seed}.")
    after = _costs(plc, weights)
    if as_json:
        curve = [{"moves": m, "temperature": t, "cost": c, "best": b} for m, t, c, b in found.curve]
        counts = {"proposed": found.proposed, "judged": found.judged, "accepted": found.accepted}
        typer.echo(json.dumps({"before": before, "after": after, **counts, "curve": curve}, indent=2))
        return
    typer.echo(f"weighted cost {before['weighted_cost']:.6f} -> {after['weighted_cost']:.6f}, {out}")
    typer.echo(f"{found.proposed:,} moves proposed, {found.judged:,} legal and judged, {found.accepted:,} accepted")


@commands.command()
def generate(
    folder: Annotated[Path, typer.Argument(help="Folder for netlist.pb.txt and initial.plc.")],
    hard_macros: Annotated[int, typer.Option(min=0, help="Hard macros.")] = 12,
    soft_macros: Annotated[int, typer.Option(min=0, help="Soft macros.")] = 40,
    ports: Annotated[int, typer.Option(min=0, help="Ports.")] = 24,
    columns: Annotated[int, typer.Option(min=1, help="Size of the grid.")] = 16,
    rows: Annotated[int, typer.Option(min=1, help="Size of the grid.")] = 16,
    seed: Annotated[int, typer.Option(min=0, help="The same seed, the same block.")] = 0,
) -> None:
    """Generate a small synthetic block."""
    from penstock.native.floorplan import BlockSpec, generate_block

    with file_errors():
        spec = BlockSpec(hard_macros, soft_macros, ports, columns, rows, seed=seed)
        refuse_another_block(folder, lambda made: generate_block(made, spec))
        for path in generate_block(folder, spec):
            typer.echo(str(path))


@commands.command("import")
def import_(
    bookshelf: Annotated[Path, typer.Argument(help="Path of .nodes, .nets, .pl and .scl without their endings.")],
    folder: Annotated[Path, typer.Argument(help="Folder for netlist.pb.txt and initial.plc.")],
) -> None:
    """Import a block from Bookshelf files."""
    from penstock.native.floorplan import import_bookshelf

    with file_errors():
        refuse_another_block(folder, lambda made: import_bookshelf(bookshelf, made))
        for path in import_bookshelf(bookshelf, folder):
            typer.echo(str(path))


@commands.command()
def group(
    netlist: Annotated[str, typer.Argument(help="Flat netlist (.pb.txt, also gzip), with standard cells.")],
    placement: Annotated[
        Path, typer.Argument(help="Placement (.plc) of it, or of one clustered from it; its header gives the settings.")
    ],
    folder: Annotated[Path, typer.Argument(help="Folder for netlist.pb.txt.gz and initial.plc.")],
    groups: Annotated[int, typer.Option(min=0, help="Groups beside those around macros and ports, at first.")] = 500,
    utilisation: Annotated[float, typer.Option(help="Share of a soft macro's area that its cells have.")] = 0.5,
    seed: Annotated[int, typer.Option(min=0, help="The same seed, the same groups.")] = 0,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads of the partitioning, one a core by default; the groups are the same."),
    ] = None,
) -> None:
    """Group a flat netlist's standard cells into soft macros (extra `floorplan`)."""
    from penstock.flows.display.working import Working
    from penstock.native.floorplan import group_netlist

    with file_errors():
        require_readable(netlist, placement)
    with Working(f"grouping {netlist}"), file_errors():
        paths = group_netlist(
            netlist, placement, folder, groups=groups, utilisation=utilisation, seed=seed, threads=threads
        )
    for path in paths:
        typer.echo(str(path))


@commands.command()
def best(
    run: Annotated[str, typer.Argument(help="Name of a run that places macros.")],
    out: Annotated[Path, typer.Argument(help="Folder for best.plc and best.png; created if it does not exist.")],
    each_stage: Annotated[
        bool, typer.Option("--each-stage", help="Write the best placement of each stage that improved it.")
    ] = False,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Include the greedy placements of the newest snapshot.")
    ] = False,
    width: Annotated[int, typer.Option(help="Width of a picture in pixels.")] = 900,
    store: Annotated[str | None, typer.Option(help="Folder or s3:// address that holds runs.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the best placement that a run has committed: placed again from its shards, with exact costs, and drawn."""
    from penstock.native.floorplan import draw as draw_to
    from penstock.storage.runs.reader_claims import shards_kept_from
    from penstock.storage.runs.run import RunFolder
    from penstock.storage.stores.open import open_store
    from penstock.tasks.analysis.best_placements import best_placements, placed_again, run_weights

    if greedy and each_stage:
        raise ConfigError("--greedy and --each-stage: only the newest snapshot is sure to exist; leave one out")
    folder = RunFolder(open_store(store or USUAL_STORE), run)
    if kept := shards_kept_from(folder.store):
        typer.echo(f"note: `penstock gc` has dropped the shards before stage {kept}, which are left out", err=True)
    placements = best_placements(folder, each_stage=each_stage)
    if greedy:
        from penstock.tasks.analysis.best_placements import greedy_placements

        both = zip(placements, greedy_placements(folder), strict=True)
        placements = [max(of_block, key=lambda one: one.episode_return) for of_block in both]
    several = len({placement.block for placement in placements}) > 1
    found = []
    with file_errors():
        out.mkdir(parents=True, exist_ok=True)
        for placement in placements:
            plc = placed_again(folder, placement)
            name = f"stage-{placement.stage:05}" if each_stage else "best"
            path = out / f"{name}{f'-{placement.block}' if several else ''}.plc"
            plc.save_placement(path, f"Best of run {run} until stage {placement.stage}.")
            draw_to(plc, path.with_suffix(".png"), width)
            costs = _costs(plc, run_weights(folder))
            found.append({"placement": str(path), "stage": placement.stage, "block": placement.block, **costs})
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    for one in found:
        typer.echo(f"stage {one['stage']}  weighted cost {one['weighted_cost']:.6f}  {one['placement']}")


def _costs(plc: PlacementCost, weights: tuple[float, float, float]) -> dict[str, float | list[float]]:
    found = plc.evaluate()
    parts = (found["wirelength_cost"], found["density_cost"], found["congestion_cost"])
    weighted = sum(weight * part for weight, part in zip(weights, parts, strict=True))
    return {**found, "weighted_cost": weighted, "weights": list(weights)}


def _unlike_header(plc: PlacementCost, placement: Path) -> str:
    """Return what to say where a placement's header has other costs than the evaluator; it has four digits of them."""
    found = plc.evaluate()
    unlike = [
        f"{name} cost {printed}, where it is {found[f'{name}_cost']:.4f}"
        for name, printed in plc.header_costs(placement).items()
        if abs(printed - found[f"{name}_cost"]) > 2e-4
    ]
    return (
        f"the header says {', '.join(unlike)} here: it was saved with settings that it does not have, such as soft "
        "macros of other sizes (placements of earlier versions), or for another netlist"
        if unlike
        else ""
    )


def _settings(plc: PlacementCost) -> dict[str, object]:
    return {
        "canvas": list(plc.get_canvas_width_height()),
        "grid": list(plc.get_grid_num_columns_rows()),
        "congestion_grid": list(plc.get_congestion_grid_num_columns_rows()),
        "routes_per_micron": list(plc.get_routes_per_micron()),
        "macro_routes": list(plc.get_macro_routing_allocation()),
        "smoothing": plc.get_congestion_smooth_range(),
        "overlap_threshold": plc.get_overlap_threshold(),
        "blockages": plc.get_blockages(),
    }


def _counts(plc: PlacementCost) -> dict[str, int | float]:
    return {
        "nodes": plc.get_node_count(),
        "ports": plc.get_ports_count(),
        "hard_macros": plc.get_hard_macros_count(),
        "soft_macros": plc.get_soft_macros_count(),
        "nets": plc.get_net_count(),
        "net_weight": plc.get_total_net_weight(),
        "area": plc.get_area(),
    }

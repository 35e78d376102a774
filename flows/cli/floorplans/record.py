"""`penstock floorplan record`: placements of blocks as the episodes of a run."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path  # noqa: TC003  (typer reads annotations)
from statistics import fmean
from typing import Annotated

import typer

from penstock.flows.cli.floorplans.shared import AsJson, file_errors, require_readable
from penstock.flows.display.amounts import amount
from penstock.storage.errors import ConfigError
from penstock.storage.runs.run import USUAL_STORE

_NETLISTS = ("netlist.pb.txt", "netlist.pb.txt.gz")
_PRESET = "floorplan"


def record(
    run: Annotated[str, typer.Argument(help="Name of the new run.")],
    folders: Annotated[
        list[Path], typer.Argument(help="A folder for each block, with netlist.pb.txt (or .gz) and its placements.")
    ],
    placement: Annotated[
        list[str] | None,
        typer.Option(help="Placement in each folder, an episode each; may be repeated.", show_default="best.plc"),
    ] = None,
    store: Annotated[str | None, typer.Option(help="Folder or s3:// address that holds runs.")] = None,
    as_json: AsJson = False,
) -> None:
    """Record placements as the episodes of a run, from which `penstock replay` learns.

    The hard macros take the cells of the environment, the largest first; where a cell is forbidden, or a macro stands
    off the cells, the nearest allowed one. Blocks need grids of the same size.
    """
    from penstock.flows.display.working import Working
    from penstock.storage.runs.run import RunFolder
    from penstock.storage.stores.open import open_store
    from penstock.tasks.data.datasets.placements import record_placements
    from penstock.tasks.driver.run import describe_run
    from penstock.tasks.environments.floorplan_blocks import with_digests
    from penstock.tasks.setup.config.loading import build_config, load_preset, merge

    names = placement or ["best.plc"]
    blocks = [{"netlist": str(_netlist(folder)), "placement": str(folder / names[0])} for folder in folders]
    environment = {"blocks": blocks, "num_envs": len(blocks), "envs_per_tile": len(blocks)}
    with file_errors():
        given = build_config(merge(load_preset(_PRESET), {"name": run, "environment": environment}))
        config = with_digests(given)
        require_readable(*(folder / name for folder in folders for name in names))
    with Working(f"recording {len(blocks)} blocks as run {run}", quiet=as_json), file_errors():
        promise = {"same_bytes": True, "because": "placements give the same episodes", "where": "everywhere"}
        found = record_placements(
            RunFolder(open_store(store or USUAL_STORE), run),
            config,
            {**describe_run(config), "promise": promise},
            [[folder / name for name in names] for folder in folders],
        )
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found], indent=2))
        return
    moved, macros = sum(one.moved for one in found), sum(one.macros for one in found)
    typer.echo(
        f"{amount(len(found), 'episodes')} of {amount(len(blocks), 'blocks')}, {amount(macros, 'steps')}, mean return "
        f"{fmean(one.episode_return for one in found):.4f}; {moved} macros stand elsewhere than in their placement, "
        f"at most {max(one.most_moved_um for one in found):.3g} um away"
    )


def _netlist(folder: Path) -> Path:
    for name in _NETLISTS:
        if (folder / name).exists():
            return folder / name
    raise ConfigError(f"{folder}: found no {' or '.join(_NETLISTS)}, expected the folder of a block")

"""`penstock scale`: predicts throughput, cost and the first bottleneck for more actors and learners."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from penstock.flows.display.console import print_table
from penstock.storage.errors import ConfigError


def scale(
    context: typer.Context,
    preset: Annotated[str, typer.Argument(help="Name of a preset, or path of a TOML file.")] = "cartpole",
    actors: Annotated[
        str, typer.Option(help="Numbers of actors, separated by commas; one row each.")
    ] = "1,8,64,512,4096",
    learners: Annotated[int | None, typer.Option(help="Learners that share the learning.", show_default="1")] = None,
    enough_learners: Annotated[
        bool, typer.Option("--enough-learners", help="As few learners in each row as keep up with its actors.")
    ] = False,
    actors_per_node: Annotated[int, typer.Option(help="Actors that share a node, and its cache.")] = 8,
    schedulers: Annotated[int, typer.Option(help="Dask schedulers that share the nodes of actors.")] = 1,
    hours: Annotated[
        float | None,
        typer.Option(help="Hours that a training takes in the first row; the others say what they become."),
    ] = None,
    assume: Annotated[list[str] | None, typer.Option(help="Replace a constant or a price: NAME=VALUE.")] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print every number that the prediction uses, and its source.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Predict rate, cost and bottleneck of more actors.

    Throughput, requests, bytes, cost and the first bottleneck, for so many actors and learners.
    Takes the settings that `penstock train` takes; each actor gets the environments that one act task has there.
    Only a trial of a few rounds is started. docs/capacity.md has the model, and its accuracy.
    """
    from penstock.flows.settings.options import configured
    from penstock.flows.support.capacity_table import scale as predicted

    if enough_learners and learners is not None:
        raise ConfigError(f"--learners {learners} and --enough-learners, which chooses their number: leave one out")
    config = configured(preset, context.args, {})
    found = predicted(
        config,
        actors,
        learners=None if enough_learners else 1 if learners is None else learners,
        actors_per_node=actors_per_node,
        schedulers=schedulers,
        hours=hours,
        assumed=assume or (),
        on_trial=lambda: typer.echo("running a trial of a few rounds in another process: some seconds", err=True),
    )
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    console = Console()
    shown = (
        "actors", "nodes", "learners", "env steps/s", "stage seconds", "first bottleneck", "requests/s",
        "written MB/s", "read MB/s", "scheduler messages/s", "Prefect calls/s", "money/hour", "money/1e6 steps",
        *(["hours"] if hours else []),
    )  # fmt: skip
    print_table([{name: _format_cell(row[name]) for name in shown} for row in found["rows"]], console)
    console.print("actors that saturate a part, were all others fast; nothing: a million do not", highlight=False)
    print_table([{name: _format_cell(value) for name, value in row.items()} for row in found["limits"]], console)
    for bottleneck in dict.fromkeys(row["first bottleneck"] for row in found["rows"]):
        remedy = next(row["remedy"] for row in found["rows"] if row["first bottleneck"] == bottleneck)
        console.print(f"{bottleneck}: {remedy}", highlight=False, markup=False)
    console.print("prices and limits are assumptions until you give yours: --explain, --assume", highlight=False)
    if explain:
        print_table([{**row, "value": _format_cell(row["value"])} for row in found["constants"]], console)
        print_table([{**row, "value": _format_cell(row["value"])} for row in found["measured"]], console)


def _format_cell(value: object) -> str:
    if not isinstance(value, int | float):
        return "" if value is None else str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"

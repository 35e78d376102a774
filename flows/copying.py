"""`penstock copy`: a run in another store."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer


def copy(
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    to: Annotated[str, typer.Argument(help="Folder or s3:// address that is to hold it as well.")],
    name: Annotated[str | None, typer.Option(help="Its name there.", show_default="the same")] = None,
    store: Annotated[
        str | None, typer.Option(help="Folder or s3:// address that holds runs.", show_default="runs")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Copy a run to another store, where `penstock resume RUN --store TO` goes on with it.

    Nobody may drive it meanwhile. A copy that was ended goes on when the same command is given again.
    """
    from storage.copying import copy_run
    from storage.run import RunFolder
    from storage.store import open_store

    report = copy_run(RunFolder(open_store(store or "runs"), run), RunFolder(open_store(to), name or run))
    if as_json:
        typer.echo(json.dumps({**asdict(report), "run": name or run, "store": to}, indent=2))
    else:
        typer.echo(f"copied {report.objects} objects, {report.nbytes / 1e6:.1f} MB, {report.commits} commits to {to}")

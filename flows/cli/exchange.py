"""`penstock copy`, `fork` and `import`: a run in another store, from an old commit, or from a dataset."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path  # noqa: TC003  (typer reads annotations)
from typing import Annotated

import typer
from rich.console import Console

from penstock.flows.cli.training import AsJson, Store  # noqa: TC001  (the same)
from penstock.flows.display.amounts import amount
from penstock.flows.display.working import Working
from penstock.storage.errors import ConfigError
from penstock.storage.runs.run import USUAL_STORE


def copy(
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    to: Annotated[str, typer.Argument(help="Folder or s3:// address of the copy.")],
    name: Annotated[str | None, typer.Option(help="Its name there.", show_default="the same")] = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Copy a run to another store, where it can be resumed.

    `penstock resume RUN --store TO` resumes the copy.
    No flow may drive the run meanwhile. An interrupted copy is resumed by giving the same command again;
    one that is whole stays as it is.
    """
    from penstock.storage.runs.copying import copy_run, made_copy
    from penstock.storage.runs.run import RunFolder
    from penstock.storage.stores.open import open_store
    from penstock.storage.stores.probe import require_writable

    source, target = RunFolder(open_store(store or USUAL_STORE), run), RunFolder(open_store(to), name or run)
    report = made_copy(source, target)
    if report is None:
        require_writable(target.root)
        with Working(f"copying run {run} to {to}", quiet=as_json) as working:
            report = copy_run(source, target, working.update)
    if as_json:
        typer.echo(json.dumps({**asdict(report), "run": name or run, "store": to}, indent=2))
    else:
        if not report.objects:
            typer.echo(f"nothing was copied: {to} has all {amount(report.commits, 'commits')} already")
            return
        left_out = f"; {report.left_out} damaged objects that no commit names were left out" if report.left_out else ""
        said = (
            f"copied {amount(report.objects, 'objects')}, {report.nbytes / 1e6:.1f} MB, "
            f"{amount(report.commits, 'commits')} to {to}"
        )
        typer.echo(f"{said}{left_out}")


def fork(
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    name: Annotated[str, typer.Argument(help="Name of the new run.")],
    from_stage: Annotated[int, typer.Option(min=0, help="Committed stage that the new run continues from.")],
    to: Annotated[
        str | None, typer.Option(help="Folder or s3:// address of the new run.", show_default="the same store")
    ] = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Start a new run from an old commit of a run.

    The run stays as it is; `penstock resume NAME` continues the new one.
    An interrupted fork is repeated by giving the same command again.
    """
    from penstock.flows.display.summary import steps_done
    from penstock.storage.runs.continuing.forking import fork_run, require_forkable
    from penstock.storage.runs.run import RunFolder
    from penstock.storage.stores.open import open_store
    from penstock.storage.stores.probe import require_writable
    from penstock.tasks.data.input.window_stages import require_shards

    where = store or USUAL_STORE
    source, target = RunFolder(open_store(where), run), RunFolder(open_store(to or where), name)
    require_forkable(source, target, from_stage)
    require_shards(source, from_stage + 1)
    require_writable(target.root)
    with Working(f"copying run {run} up to stage {from_stage}", quiet=as_json) as working:
        report = fork_run(source, target, from_stage, working.update)
    if as_json:
        typer.echo(
            json.dumps({**asdict(report), "run": name, "store": to or where, "from_stage": from_stage}, indent=2)
        )
        return
    steps = steps_done(report.env_steps, replay="source" in source.load("config")["config"])
    typer.echo(
        f"run {name} has {amount(from_stage + 1, 'stages')} of {run}, {steps} "
        f"({amount(report.objects, 'objects')}, {report.nbytes / 1e6:.1f} MB)\n  {target.command('resume')}"
    )


def import_(
    path: Annotated[Path, typer.Argument(help="Folder of the dataset, which contains `data`.")],
    name: Annotated[str, typer.Option(help="Name of the new run.")],
    of: Annotated[str, typer.Option("--from", help="Its format: minari.")] = "minari",
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Import a dataset as a run.

    It can be read as any other, and not replayed: a dataset does not name its environment.
    """
    from penstock.storage.runs.run import RunFolder
    from penstock.storage.stores.open import open_store
    from penstock.storage.stores.probe import require_writable
    from penstock.tasks.data.datasets.minari import check_import, import_dataset

    if of != "minari":
        raise ConfigError(f"the format {of!r} is not known, expected 'minari'")
    run = RunFolder(open_store(store or USUAL_STORE), name)
    check_import(run, path)
    require_writable(run.root)
    with Working(f"importing {path} as run {name}", quiet=as_json):
        counts = asdict(import_dataset(run, path))
    print_counts("imported", counts, as_json)


def print_counts(verb: str, counts: dict[str, int], as_json: bool) -> None:
    """Print the counts of an import or an export."""
    if as_json:
        typer.echo(json.dumps(counts, indent=2))
        return
    if "scalars" in counts:
        typer.echo(f"{verb} {amount(counts['scalars'], 'scalars')} of {amount(counts['stages'], 'stages')}")
        return
    Console().print(
        f"{verb} {amount(counts['episodes'], 'episodes')}, {amount(counts['steps'], 'steps')}; "
        f"{counts['cut_episodes']} of the episodes have no end and are marked as truncated",
        highlight=False,
    )

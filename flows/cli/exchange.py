"""`penstock copy`, `fork`, `export` and `import`: a run in another store, from an old commit, or in another format."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path  # noqa: TC003  (typer reads annotations)
from typing import Annotated

import typer
from rich.console import Console

from penstock.flows.cli.training import AsJson, Store  # noqa: TC001  (the same)
from penstock.storage.errors import ConfigError


def copy(
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    to: Annotated[str, typer.Argument(help="Folder or s3:// address of the copy.")],
    name: Annotated[str | None, typer.Option(help="Its name there.", show_default="the same")] = None,
    store: Annotated[
        str | None, typer.Option(help="Folder or s3:// address that holds runs.", show_default="runs")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Copy a run to another store, where `penstock resume RUN --store TO` resumes it.

    No flow may drive the run meanwhile. An interrupted copy is resumed by giving the same command again;
    one that is whole stays as it is.
    """
    from penstock.storage.runs.copying import copy_run
    from penstock.storage.runs.run import RunFolder
    from penstock.storage.stores.open import open_store

    report = copy_run(RunFolder(open_store(store or "runs"), run), RunFolder(open_store(to), name or run))
    if as_json:
        typer.echo(json.dumps({**asdict(report), "run": name or run, "store": to}, indent=2))
    else:
        if not report.objects:
            typer.echo(f"all {report.commits} commits are in {to} already: nothing was copied")
            return
        left_out = f"; {report.left_out} damaged objects that no commit names were left out" if report.left_out else ""
        said = f"copied {report.objects} objects, {report.nbytes / 1e6:.1f} MB, {report.commits} commits to {to}"
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
    """Start a new run from an old commit of a run, which stays as it is; `penstock resume NAME` continues it.

    An interrupted fork is repeated by giving the same command again.
    """
    from penstock.storage.runs.forking import fork_run
    from penstock.storage.runs.run import RunFolder
    from penstock.storage.stores.open import open_store

    where = store or "runs"
    report = fork_run(RunFolder(open_store(where), run), RunFolder(open_store(to or where), name), from_stage)
    if as_json:
        typer.echo(
            json.dumps({**asdict(report), "run": name, "store": to or where, "from_stage": from_stage}, indent=2)
        )
        return
    option = f" --store {to or where}" if (to or where) != "runs" else ""
    typer.echo(
        f"run {name} has {from_stage + 1} stages of {run}, {report.env_steps:,} environment steps "
        f"({report.objects} objects, {report.nbytes / 1e6:.1f} MB)\n  penstock resume {name}{option}"
    )


def export(
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    path: Annotated[
        Path, typer.Argument(help="For a dataset a folder that does not exist; for TensorBoard its logdir.")
    ],
    to: Annotated[str, typer.Option(help="Its format: minari or tensorboard.")] = "minari",
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Write a run's committed episodes, whole, as a dataset that other tools train from; or its curves for TensorBoard.

    TensorBoard gets FOLDER/RUN, over environment steps, and the settings as hparams. Exporting again replaces it.
    """
    _print_counts("exported", export_to(to, store or "runs", run, path), as_json)


def import_(
    path: Annotated[Path, typer.Argument(help="Folder of the dataset, which contains `data`.")],
    name: Annotated[str, typer.Option(help="Name of the new run.")],
    of: Annotated[str, typer.Option("--from", help="Its format: minari.")] = "minari",
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Import a dataset as a run, to be replayed and read as any other."""
    _print_counts("imported", import_from(of, store or "runs", name, path), as_json)


def export_to(kind: str, store: str, name: str, path: Path) -> dict[str, int]:
    """Write a run's episodes as a dataset, or its curves for TensorBoard; return counts of what was written.

    Raises:
        ConfigError: the format is unknown, the path exists, or a package is missing.
        RunNotFoundError: no run has that name.
    """
    from penstock.storage.runs.run import RunFolder
    from penstock.storage.stores.open import open_store

    run = RunFolder(open_store(store), name)
    if kind == "tensorboard":
        from penstock.flows.report.tensorboard import write_events
        from penstock.tasks.analysis.history import read_history

        return write_events(read_history(run), path)
    _check(kind, "'minari' or 'tensorboard'")
    from penstock.tasks.data.datasets.minari import export_run, spaces_of

    return asdict(export_run(run, path, *spaces_of(run)))


def import_from(kind: str, store: str, name: str, path: Path) -> dict[str, int]:
    """Write a dataset of a format as a run; return its numbers of episodes and steps.

    Raises:
        ConfigError: the format is not Minari's, or shards can't hold the dataset.
        RunExistsError: a run of that name exists.
    """
    from penstock.storage.runs.run import RunFolder
    from penstock.storage.stores.open import open_store
    from penstock.tasks.data.datasets.minari import import_dataset

    _check(kind, "'minari'")
    return asdict(import_dataset(RunFolder(open_store(store), name), path))


def _check(kind: str, expected: str) -> None:
    if kind != "minari":
        raise ConfigError(f"the format {kind!r} is not known, expected {expected}")


def _print_counts(verb: str, counts: dict[str, int], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(counts, indent=2))
        return
    if "scalars" in counts:
        typer.echo(f"{verb} {counts['scalars']:,} scalars of {counts['stages']:,} stages")
        return
    Console().print(
        f"{verb} {counts['episodes']} episodes, {counts['steps']:,} steps; {counts['cut_episodes']} of the episodes "
        f"have no end and are marked as truncated",
        highlight=False,
    )

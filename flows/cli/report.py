"""`penstock report`: writes one HTML file about runs. It reads storage alone, and starts no service."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from penstock.flows.display.working import Working
from penstock.storage.errors import ConfigError
from penstock.storage.runs.run import USUAL_STORE, RunFolder
from penstock.storage.transfer.replacing import replacing, require_file


def report(
    runs: Annotated[list[str], typer.Argument(help="Names of runs; several are drawn on the same axes.")],
    out: Annotated[
        Path | None, typer.Option(help="The file, .html.", show_default="RUN.html, or FIRST-and-N-more.html")
    ] = None,
    clip: Annotated[
        bool, typer.Option(help="Play an episode with each run's newest snapshot, where it can be drawn.")
    ] = True,
    store: Annotated[
        str | None, typer.Option(help="Folder or s3:// address that holds runs.", show_default=USUAL_STORE)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Write one HTML file about a run, or about several.

    It opens anywhere, without a network.
    Curves, a timeline, the slowest actors, which shards made which snapshots, an episode to watch, the settings. The
    run may be in progress, or may have been killed.
    """
    # Frames are drawn into memory: without this, SDL looks for a screen, and complains where there is none.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    path = write_report(store or USUAL_STORE, runs, out, clips=clip, quiet=as_json)
    if as_json:
        typer.echo(json.dumps({"report": str(path), "bytes": path.stat().st_size, "runs": runs}, indent=2))
    else:
        typer.echo(f"wrote {path}, {path.stat().st_size / 1e6:.1f} MB")


def write_report(
    store: str, names: list[str], out: Path | None = None, *, clips: bool = True, quiet: bool = True
) -> Path:
    """Write the report; return its path, or leave nothing there. Unless `quiet`, show the progress.

    Raises:
        ConfigError: a run is named twice, the file can't be written, or its name does not end in .html.
        RunNotFoundError: no run has one of the names.
        CorruptObjectError: a commit was altered.
    """
    path = _checked(names, out)
    from penstock.storage.stores.open import open_store

    root = open_store(store)
    folders = [RunFolder(root, name) for name in names]
    for folder in folders:
        folder.load()
    with Working(f"making a report of {', '.join(names)}", quiet=quiet) as working:
        html = _made(folders, working, clips=clips)
    try:
        with replacing(path) as part:
            # A folder that the page names may have a name that is no text.
            part.write_text(html, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise ConfigError(f"--out {path}: {error.strerror}; choose a folder that exists and is writable") from None
    return path


def _made(runs: list[RunFolder], working: Working, *, clips: bool) -> str:
    from penstock.tasks.analysis.history import read_history

    histories = []
    for run in runs:
        working.say(f"reading run {run.name}", "commits")
        histories.append(read_history(run, on_progress=working.update))
    from penstock.flows.report.page import render
    from penstock.flows.report.pictures import pictures_of

    pictures = []
    for history in histories:
        working.say(f"drawing run {history.run.name}")
        pictures.append(pictures_of(history, clips=clips))
    return render(histories, pictures)


def _checked(names: list[str], out: Path | None) -> Path:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"{', '.join(twice)} more than once; name each run once")
    path = out or Path(f"{names[0]}.html" if len(names) == 1 else f"{names[0]}-and-{len(names) - 1}-more.html")
    if path.suffix.lower() not in {".html", ".htm"}:
        raise ConfigError(f"--out {path}: expected a name that ends in .html")
    require_file(path)
    return path

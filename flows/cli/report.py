"""`penstock report`: writes one HTML file about runs. It reads storage alone, and starts no service."""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.storage.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from penstock.flows.report.page import Pictures
    from penstock.storage.runs.commit_schema import Commit
    from penstock.tasks.analysis.history import History

_MOST_PLACEMENTS = 6
_PICTURE_WIDTH_PIXELS = 420


def report(
    runs: Annotated[list[str], typer.Argument(help="Names of runs; several are drawn on the same axes.")],
    out: Annotated[
        Path | None, typer.Option(help="The file, .html.", show_default="RUN.html, or FIRST-and-N-more.html")
    ] = None,
    clip: Annotated[
        bool, typer.Option(help="Play an episode with each run's newest snapshot, where it can be drawn.")
    ] = True,
    store: Annotated[
        str | None, typer.Option(help="Folder or s3:// address that holds runs.", show_default="runs")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Write one HTML file about a run, or about several for comparison; it opens anywhere, without a network.

    Curves, a timeline, the slowest actors, which shards made which snapshots, an episode to watch, the settings. The
    run may be in progress, or may have been killed.
    """
    # Frames are drawn into memory: without this, SDL looks for a screen, and complains where there is none.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    path = write_report(store or "runs", runs, out, clips=clip)
    if as_json:
        typer.echo(json.dumps({"report": str(path), "bytes": path.stat().st_size, "runs": runs}, indent=2))
    else:
        typer.echo(f"wrote {path}, {path.stat().st_size / 1e6:.1f} MB")


def write_report(store: str, names: list[str], out: Path | None = None, *, clips: bool = True) -> Path:
    """Write the report; return its path.

    Raises:
        ConfigError: a run is named twice, the file can't be written, or its name does not end in .html.
        RunNotFoundError: no run has one of the names.
        CorruptObjectError: a commit was altered.
    """
    path = _checked(names, out)
    from penstock.storage.runs.run import RunFolder
    from penstock.storage.stores.open import open_store
    from penstock.tasks.analysis.history import read_history

    root = open_store(store)
    histories = [read_history(RunFolder(root, name)) for name in names]
    from penstock.flows.report.page import render

    html = render(histories, [_pictures(history, clips=clips) for history in histories])
    try:
        path.write_text(html, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out {path}: {error.strerror}; choose a folder that exists and is writable") from None
    return path


def _checked(names: list[str], out: Path | None) -> Path:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"{', '.join(twice)} more than once; name each run once")
    path = out or Path(f"{names[0]}.html" if len(names) == 1 else f"{names[0]}-and-{len(names) - 1}-more.html")
    if path.suffix.lower() not in {".html", ".htm"}:
        raise ConfigError(f"--out {path}: expected a name that ends in .html")
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigError(f"--out {path}: expected a file in a folder that exists")
    return path


def _pictures(history: History, *, clips: bool) -> Pictures:
    """Return pictures of a run; where it can't be drawn, the page shows the reason and is otherwise complete."""
    from penstock.flows.report.page import Pictures
    from penstock.tasks.setup.config.environment import FLOORPLAN

    newest = history.newest
    if not clips or newest is None or not newest.snapshots:
        return Pictures()
    try:
        if history.config["environment"]["id"] == FLOORPLAN:
            return Pictures(drawn=_placements(history))
        from penstock.tasks.analysis.recordings import play

        evaluated = [stage.commit for stage in history.stages if stage.commit.evaluation]
        kept = [commit for commit in (newest, *evaluated[-1:]) if _is_kept(history, commit)]
        if not kept:
            return Pictures(missing="No clip: the newest snapshot was removed.")
        return Pictures(clip=play(history.run, kept[-1]))
    except PenstockError as error:
        return Pictures(missing=str(error))


def _is_kept(history: History, commit: Commit) -> bool:
    return bool(commit.snapshots) and history.run.store.exists(commit.snapshots[-1].name)


def _placements(history: History) -> tuple[tuple[str, bytes], ...]:
    """Draw the best macro placement until each of the newest stages that found a better one."""
    from penstock.native.floorplan import draw
    from penstock.tasks.analysis.best_placements import best_placements, placed_again

    drawn = []
    with TemporaryDirectory() as folder:
        picture = Path(folder) / "placement.png"
        for found in best_placements(history.run, each_stage=True)[-_MOST_PLACEMENTS:]:
            draw(placed_again(history.run, found), picture, _PICTURE_WIDTH_PIXELS)
            caption = f"stage {found.stage}, block {found.block}: cost {-found.episode_return:.4f}, the best until then"
            drawn.append((caption, picture.read_bytes()))
    return tuple(drawn)

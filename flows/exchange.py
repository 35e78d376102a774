"""Runs and datasets of other tools, both ways."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from flows.tensorboard_events import write_events
from storage.errors import ConfigError
from storage.run import RunFolder
from storage.store import open_store
from tasks.history import read_history
from tasks.minari import export_run, import_dataset, spaces_of

if TYPE_CHECKING:
    from pathlib import Path


def export_to(kind: str, store: str, name: str, path: Path) -> dict[str, int]:
    """Write a run's episodes as a dataset, or its curves for TensorBoard; how much of what there is.

    Raises:
        ConfigError: another format than these, a path that is taken, or a package that is missing.
        RunNotFoundError: there is none of that name.
    """
    run = RunFolder(open_store(store), name)
    if kind == "tensorboard":
        return write_events(read_history(run), path)
    _check(kind, "'minari' or 'tensorboard'")
    return asdict(export_run(run, path, *spaces_of(run)))


def import_from(kind: str, store: str, name: str, path: Path) -> dict[str, int]:
    """Write a dataset of a format as a run; how many episodes and steps it has.

    Raises:
        ConfigError: another format than Minari's, or a dataset that shards can't hold.
        RunExistsError: there is a run of that name.
    """
    _check(kind, "'minari'")
    return asdict(import_dataset(RunFolder(open_store(store), name), path))


def _check(kind: str, expected: str) -> None:
    if kind != "minari":
        raise ConfigError(f"the format {kind!r} is not known, expected {expected}")

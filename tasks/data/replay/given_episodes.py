"""Runs that were given their episodes, imported or recorded, and have learned nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.storage.errors import ConfigError
from penstock.storage.runs.run import store_option

if TYPE_CHECKING:
    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.runs.run import RunFolder


def require_learned(run: RunFolder, commit: Commit) -> None:
    """Refuse a run whose episodes were imported or recorded.

    Raises:
        ConfigError: it has learned nothing; says how to learn from it.
    """
    if commit.snapshots:
        return
    learn = (
        f"learn from them with `penstock replay NAME --from {run.name}{store_option(run.root.url)}`, and name that run"
    )
    if run.was_imported():
        learn = "read them with `penstock.TrajectoryDataset` (docs/reading.md)"
    raise ConfigError(
        f"run '{run.name}' has episodes that it was given ({commit.finished}) and has learned nothing, so there is no "
        f"policy; {learn}"
    )

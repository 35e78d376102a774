"""Finds the run to resume, and its settings."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from penstock.storage.errors import LeaseHeldError
from penstock.storage.runs.lease import acquire
from penstock.storage.runs.run import RunFolder, list_runs
from penstock.storage.stores.open import open_store
from penstock.tasks.setup.config.loading import merge, stored_settings
from penstock.tasks.setup.config.replay import build_stored_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.tasks.setup.config.cluster import ClusterSettings
    from penstock.tasks.setup.config.run import RunConfig

logger = logging.getLogger(__name__)


def stored_config(store: str, run: str, overrides: Mapping[str, Any]) -> RunConfig:
    """Return the settings of a run to resume, with overrides of what may change.

    Raises:
        RunNotFoundError: no run has that name.
        ConfigError: the overrides are wrong.
    """
    described = RunFolder(open_store(store), run).load("config")["config"]
    return build_stored_config(merge({**stored_settings(described), "name": run, "store": store}, overrides))


def unfinished_config(store: str, run: str | None, cluster: ClusterSettings) -> RunConfig | None:
    """Return the settings of a named run, or of the newest in a store that is neither finished nor driven.

    Returns:
        None where the named run is finished, or where no run is left to resume.

    Raises:
        RunNotFoundError: no run has that name.
        StoreError: the store can't be read.
    """
    where = {"cluster": cluster.model_dump(mode="json", exclude_unset=True)}
    if run is not None:
        newest = RunFolder(open_store(store), run).log.newest()
        return None if newest and newest.finished else stored_config(store, run, where)
    root = open_store(store)
    found = [summary for summary in list_runs(root) if summary.finished is None and summary.problem is None]
    for summary in sorted(found, key=lambda summary: summary.created or "", reverse=True):
        try:
            # Found out by acquiring the lease: only it shows that another host drives the run.
            with acquire(RunFolder(root, summary.name).store, "looking for a run to resume", cluster.lease_seconds):
                pass
        except LeaseHeldError as error:
            logger.info("run=%s is skipped: %s", summary.name, error)
            continue
        return stored_config(store, summary.name, where)
    return None

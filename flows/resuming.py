"""Which run is to go on, and with which settings."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from storage.errors import LeaseHeldError
from storage.lease import acquire
from storage.run import RunFolder, list_runs
from storage.store import open_store
from tasks.config import RunConfig, merge
from tasks.replay_config import build_stored_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tasks.cluster_settings import ClusterSettings

logger = logging.getLogger(__name__)


def stored_config(store: str, run: str, overrides: Mapping[str, Any]) -> RunConfig:
    """The settings of a run that goes on, with what may change laid over them.

    Raises:
        RunNotFoundError: there is none of that name.
        ConfigError: the settings that are laid over are wrong.
    """
    described = RunFolder(open_store(store), run).load("config")["config"]
    return build_stored_config(merge({**described, "name": run, "store": store}, overrides))


def unfinished_config(store: str, run: str | None, cluster: ClusterSettings) -> RunConfig | None:
    """The settings of a named run, or of the newest in a store that is neither finished nor driven.

    Returns:
        None where that run is finished, or where there is no other.

    Raises:
        RunNotFoundError: there is none of that name.
        StoreError: the store can't be read.
    """
    where = {"cluster": cluster.model_dump(mode="json", exclude_unset=True)}
    if run is not None:
        newest = RunFolder(open_store(store), run).log.newest()
        return None if newest and newest["finished"] else stored_config(store, run, where)
    root = open_store(store)
    found = [summary for summary in list_runs(root) if summary.finished is None and summary.problem is None]
    for summary in sorted(found, key=lambda summary: summary.created or "", reverse=True):
        try:
            # Found out by taking it: who drives a run on another host is known only by its lease.
            with acquire(RunFolder(root, summary.name).store, "looking for a run to resume", cluster.lease_seconds):
                pass
        except LeaseHeldError as error:
            logger.info("run=%s is left out: %s", summary.name, error)
            continue
        return stored_config(store, summary.name, where)
    return None

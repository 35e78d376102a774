"""Finds the run to resume, and its settings."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.storage.digest import parse_json
from penstock.storage.errors import ConfigError, LeaseHeldError, StoreError
from penstock.storage.runs.lease import acquire
from penstock.storage.runs.run import SWEEPS, RunFolder, list_runs
from penstock.storage.stores.open import open_store
from penstock.storage.stores.reachable import require_endpoint
from penstock.tasks.setup.config.consent import record_consent, require_consent
from penstock.tasks.setup.config.loading import merge
from penstock.tasks.setup.config.replay import build_stored_config
from penstock.tasks.setup.config.run import MOVABLE

if TYPE_CHECKING:
    from penstock.storage.stores.protocol import Store
    from penstock.tasks.setup.config.cluster import ClusterSettings
    from penstock.tasks.setup.config.run import RunConfig

_NUMBERED = r"[0-9]{4,}|i[0-9]+-x[0-9]+"
"""The ends of the names of runs that searches and halvings number, and populations by individual and exchange."""
logger = logging.getLogger(__name__)


def stored_config(store: str, run: str, overrides: Mapping[str, Any], *, trust: bool = False) -> RunConfig:
    """Return the settings of a run to resume, with overrides of what may change.

    Args:
        store: folder or address that holds the run.
        run: its name.
        overrides: settings of `cluster` and `distribution`.
        trust: trust the code that the run names.

    Raises:
        RunNotFoundError: no run has that name.
        ConfigError: the overrides are wrong.
        ConsentError: the run names code in the working directory, and is not trusted.
    """
    require_endpoint(store)
    folder = RunFolder(open_store(store), run)
    if trust:
        record_consent(folder)
    described = require_consent(folder)["config"]
    return build_stored_config(described, merge({"name": run, "store": store}, overrides))


def require_movable(overrides: Mapping[str, Any]) -> None:
    """Refuse settings that can't change when a run is resumed.

    Raises:
        ConfigError: names them.
    """
    changed = {name: value for name, value in overrides.items() if name not in {"cluster", "distribution"}}
    fixed = sorted(f"{name}.{key}" for name, value in changed.items() if isinstance(value, Mapping) for key in value)
    fixed += sorted(name for name, value in changed.items() if not isinstance(value, Mapping))
    fixed += sorted(f"distribution.{key}" for key in set(overrides.get("distribution", {})) - {*MOVABLE})
    if fixed:
        raise ConfigError(
            f"{', '.join(fixed)}: can't change when a run is resumed; only cluster settings, the device and numbers of "
            f"act and env tasks can. `penstock extend` changes the limits of a run that has ended, and `penstock fork` "
            f"begins another run from one of its stages"
        )


def unfinished_config(
    store: str, run: str | None, cluster: ClusterSettings, *, trust: bool = False
) -> RunConfig | None:
    """Return the settings of a named run, or of the newest in a store that is neither finished nor driven.

    Runs of a search, a halving or a population are left out: these decide which of theirs go on, and resume them.

    Args:
        store: folder or address that holds runs.
        run: the run's name; None chooses one.
        cluster: where it is resumed.
        trust: trust the code that the run names.

    Returns:
        None where the named run is finished, or where no run is left to resume.

    Raises:
        RunNotFoundError: no run has that name.
        ConsentError: the run names code in the working directory, and is not trusted.
        StoreError: the store can't be read; or all that is left to resume may only be read.
    """
    where = {"cluster": cluster.model_dump(mode="json", exclude_unset=True)}
    if run is not None:
        newest = RunFolder(open_store(store), run).newest()
        return None if newest and newest.finished else stored_config(store, run, where, trust=trust)
    root = open_store(store)
    found = [summary for summary in list_runs(root) if summary.finished is None and summary.problem is None]
    if found and (sweeps := _deciding_sweeps(root)):
        theirs = re.compile(f"(?:{'|'.join(map(re.escape, sweeps))})-(?:{_NUMBERED})")
        found = [summary for summary in found if not theirs.fullmatch(summary.name)]
    failure: StoreError | None = None
    for summary in sorted(found, key=lambda summary: summary.created or "", reverse=True):
        try:
            # Found out by acquiring the lease: only it shows that another host drives the run.
            with acquire(RunFolder(root, summary.name).store, "looking for a run to resume", cluster.lease_seconds):
                pass
        except LeaseHeldError as error:
            logger.info("run=%s is skipped: %s", summary.name, error)
            continue
        except StoreError as error:  # in a folder that users share, others' runs may only be read
            failure = failure or error
            logger.warning("run=%s is skipped: %s", summary.name, error)
            continue
        return stored_config(store, summary.name, where, trust=trust)
    if failure:
        raise failure
    return None


def _deciding_sweeps(root: Store) -> list[str]:
    """Return the names of the sweeps that stop runs which are not finished: all but grids."""
    records = root.at(SWEEPS.rstrip("/"))
    named = [name for name in records.list() if name.endswith("/sweep.json")]
    return [name.partition("/")[0] for name in named if _method(records.read(name)) != "sweep"]


def _method(description: bytes) -> object:
    try:
        found = parse_json(description)
    except ValueError:
        return None
    return found.get("method") if isinstance(found, dict) else None

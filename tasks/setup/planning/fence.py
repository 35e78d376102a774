"""Refuses a store that lets two flows write one commit, for runs whose bytes may differ. Imports no torch.

Where the same stage gives the same bytes, two flows that commit it write the same commit, and any store will do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.storage.errors import ConfigError
from penstock.storage.runs.run import RUN
from penstock.storage.stores.probe import always_has_one_winner
from penstock.tasks.environments.header import header_compiler
from penstock.tasks.model.algorithms.custom_probe import custom_source
from penstock.tasks.runtime.fingerprint import differences, fingerprint, packages_again
from penstock.tasks.setup.config.replay import build_stored_config

if TYPE_CHECKING:
    from penstock.storage.runs.run import RunFolder
    from penstock.storage.stores.probe import StoreGuarantees
    from penstock.storage.stores.protocol import Store
    from penstock.tasks.setup.config.run import RunConfig


def check_fence(root: Store, guarantees: StoreGuarantees, config: RunConfig, run: RunFolder | None) -> bool:
    """Return whether a store lets one of several flows write a commit; a folder does.

    Args:
        root: the store.
        guarantees: found by `probe`; another probe, of more requests, follows where the run's bytes may differ.
        config: the run's settings.
        run: the run, if it exists.

    Raises:
        ConfigError: it lets several, the bytes may differ, and `cluster.allow_unfenced` is not set.
        StoreError: the store can't be reached or written.
    """
    if root.path(RUN) is not None:
        return True
    reason = _reason_to_differ(config) if run is None else _reason_to_differ_again(config, run)
    if not reason:
        return guarantees.exclusive_create
    is_fenced = guarantees.exclusive_create and always_has_one_winner(root)
    if not is_fenced and not config.cluster.allow_unfenced:
        raise ConfigError(
            f"the store '{root.url}' lets several writers create the same object, and this run needs one that lets "
            f"only the first: {reason}, so two flows that drive it could commit a stage with different bytes. Use "
            f"another store, or quorum 1 without max_staleness on the software and hardware that the run began with; "
            f"or accept it with --allow-unfenced (cluster.allow_unfenced): a conflict is then an error at the next "
            f"read, and both commits are kept"
        )
    return is_fenced


def _reason_to_differ(config: RunConfig) -> str:
    if config.promises_same_bytes:
        return ""
    if config.distribution.max_staleness is not None:
        return f"distribution.max_staleness = {config.distribution.max_staleness}"
    return f"distribution.quorum = {config.distribution.quorum:g}"


def _reason_to_differ_again(config: RunConfig, run: RunFolder) -> str:
    """Return the reason why an existing run's bytes may differ: its stored settings apply, and it may be elsewhere."""
    description = run.load("config", "made_with", "promise")
    if not description["promise"].get("same_bytes"):
        return "it was created with a quorum below 1, or with max_staleness"
    # The code that the user named, and no other, may be imported here.
    is_named = description["config"]["algorithm"].get("name") == config.algorithm.name
    given = custom_source(config) if is_named else {}
    stored = build_stored_config(description["config"])
    made_with = description["made_with"]
    changed = differences(made_with, {**fingerprint(), **given, **header_compiler(stored), **packages_again(made_with)})
    return f"it was created with other software or hardware ({'; '.join(changed)})" if changed else ""

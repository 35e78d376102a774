"""Finds the commit of a stored run that is evaluated in this process, without a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.storage.errors import ConfigError
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store
from penstock.tasks.data.replay.given_episodes import require_learned
from penstock.tasks.setup.config.consent import record_consent, require_consent

if TYPE_CHECKING:
    from penstock.storage.runs.commit_schema import Commit


def trust_run(store: str, name: str) -> None:
    """Trust the code that a run names, for this user on this machine; errors as `record_consent`."""
    record_consent(RunFolder(open_store(store), name))


def commit_to_evaluate(store: str, name: str, stage: int | None) -> tuple[RunFolder, Commit]:
    """Return a run and the commit of a stage, by default of the newest; needs no torch, to refuse mistakes at once.

    Raises:
        RunNotFoundError: there is no such run.
        ConfigError: no stage is committed yet, or not this one; or nothing was learned.
        ConsentError: the run names code in the working directory, and is not trusted.
    """
    run = RunFolder(open_store(store), name)
    require_consent(run)
    newest = run.log.newest()
    if newest is None or (stage is not None and stage > newest.stage):
        committed = "nothing yet" if newest is None else f"stages 0 to {newest.stage}"
        if newest is not None and newest.finished:
            raise ConfigError(
                f"run '{name}' has committed {committed}, and has ended ({newest.finished}); choose one of these, or "
                f"leave the stage out"
            )
        raise ConfigError(f"run '{name}' has committed {committed}; evaluate after `{run.command('resume')}`")
    commit = newest if stage is None else run.log.read(stage)
    require_learned(run, commit)
    return run, commit

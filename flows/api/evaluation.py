"""Evaluates a stored run in this process, without a cluster."""

from __future__ import annotations

from penstock.storage.errors import ConfigError
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store
from penstock.tasks.setup.config.consent import record_consent


def trust_run(store: str, name: str) -> None:
    """Trust the code that a run names, for this user on this machine; errors as `record_consent`."""
    record_consent(RunFolder(open_store(store), name))


def evaluate_run(store: str, name: str, episodes: int, stage: int | None, key: int) -> dict[str, float]:
    """Evaluate the last snapshot of a stage, in this process; the result is stored in the run's folder if possible.

    Raises:
        ConfigError: no stage is committed yet, or not this one.
    """
    run = RunFolder(open_store(store), name)
    run.load()
    newest = run.log.newest()
    if newest is None or (stage is not None and stage > newest.stage):
        committed = "nothing yet" if newest is None else f"stages 0 to {newest.stage}"
        if newest is not None and newest.finished:
            raise ConfigError(
                f"run '{name}' has committed {committed}, and has ended ({newest.finished}); choose one of these, or "
                f"leave --stage out"
            )
        raise ConfigError(f"run '{name}' has committed {committed}; evaluate after `{run.command('resume')}`")
    from penstock.tasks.analysis.evaluation import evaluate_commit

    commit = newest if stage is None else run.log.read(stage)
    return evaluate_commit(run, commit, episodes, key, keep_result=False)

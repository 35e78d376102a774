"""Extends a finished run: records other limits behind the commit that ended it. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.storage.errors import ConfigError, RunFinishedError
from penstock.storage.runs.commits import commit_ref
from penstock.storage.runs.continuing.extensions import (
    STOPPED,
    Extension,
    Limits,
    end_reason,
    limits_at,
    list_extensions,
    store_extension,
)
from penstock.storage.runs.lease import acquire
from penstock.storage.runs.run import store_option
from penstock.tasks.data.replay.given_episodes import require_learned
from penstock.tasks.setup.config.replay import build_stored_config

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.runs.run import RunFolder
    from penstock.tasks.setup.config.run import ConfigT

_LEASE_TTL_SECONDS = 30.0


def extend_run(run: RunFolder, change: Callable[[Limits], Limits]) -> Limits:
    """Let a finished run go on until other limits are reached; a resume continues it then.

    The extension is one record, created only if the commit that ended the run has none: a command that is stopped
    before it has changed nothing, and one that is stopped after it, or given again, finds the limits that it asked for.

    Args:
        run: a run that no flow drives.
        change: returns the wanted limits, given those that apply.

    Returns:
        The limits.

    Raises:
        RunNotFoundError: the run does not exist.
        RunFinishedError: it was extended to these limits before, and has reached them.
        ConfigError: the run is not finished, or has learned nothing; the limits are the same, or `max_stages` is
            smaller; or it would end with the same stage.
        LeaseHeldError: a flow drives the run.
        CommitConflictError: the run was extended otherwise at the same time.
    """
    schedule = build_stored_config(run.load("config")["config"]).schedule
    return extend_from(run, Limits(schedule.max_stages, schedule.target_return), change)


def extend_from(run: RunFolder, configured: Limits, change: Callable[[Limits], Limits]) -> Limits:
    """Extend a run that was begun with these limits; as `extend_run`."""
    with acquire(run.store, "extend", _LEASE_TTL_SECONDS) as keeper:
        newest, extensions = run.log.newest(), list_extensions(run.store)
        if newest is None or newest.finished is None or newest.stage in extensions:
            stage = newest.stage + 1 if newest else 0
            limits = limits_at(configured, extensions.values(), stage)
            if stage - 1 in extensions:
                before = limits_at(configured, extensions.values(), stage - 1)
                if change(before) == limits:
                    return limits
            elif extensions and change(limits) == limits:
                return limits
            raise ConfigError(
                f"run '{run.name}' is not finished: {stage} of {limits.max_stages} stages are committed; "
                f"`{run.command('resume')}` continues it, and it can be extended when it has ended"
            )
        current = limits_at(configured, extensions.values(), newest.stage)
        wanted = change(current)
        if wanted == current and extensions:
            raise RunFinishedError(f"run '{run.name}' was extended to these limits before: {newest.finished}")
        _check(run, newest, current, wanted)
        keeper.check()
        extension = Extension(newest.stage, commit_ref(newest).digest, wanted.max_stages, wanted.target_return)
        store_extension(run.store, extension)
    return wanted


def with_extensions(run: RunFolder, config: ConfigT, stage: int) -> ConfigT:
    """Return a run's settings with the limits that apply to a stage; errors as `list_extensions`."""
    schedule = config.schedule
    configured = Limits(schedule.max_stages, schedule.target_return)
    limits = limits_at(configured, list_extensions(run.store).values(), stage)
    if limits == configured:
        return config
    return config.model_copy(update={"schedule": schedule.model_copy(update=limits._asdict())})


def _check(run: RunFolder, newest: Commit, current: Limits, wanted: Limits) -> None:
    require_learned(run, newest)
    if wanted.max_stages < current.max_stages:
        raise ConfigError(
            f"--max-stages {wanted.max_stages}: run '{run.name}' has the limit {current.max_stages} and has committed "
            f"{newest.stage + 1} stages; expected more. "
            f"`{run.command('fork', 'NEW', '--from-stage N')}` starts another run from an earlier stage"
        )
    if str(newest.finished).startswith(STOPPED):
        raise ConfigError(
            f"run '{run.name}' ended because its evaluations did not improve ({newest.finished}), and so would a run "
            f"with other limits; `penstock train --init-from {run.name}{store_option(run.root.url)}` starts another "
            f"run from its parameters"
        )
    reason = end_reason(wanted, newest.stage, newest.evaluation)
    if reason is None:
        return
    if reason.startswith("target_return"):
        reached = _return_of(newest.evaluation)
        raise ConfigError(
            f"run '{run.name}' would end where it ended: its last evaluation has the mean return {reached:g}, and the "
            f"target is {wanted.target_return:g}; give a higher --target-return as well, or none"
        )
    raise ConfigError(
        f"run '{run.name}' would end where it ended ({reason}); give --max-stages of more than {newest.stage + 1}"
    )


def _return_of(evaluation: Mapping[str, float] | None) -> float:
    return (evaluation or {}).get("mean_return", float("nan"))

"""Stages whose shards a run still learns from: of a window of its earlier rounds, or of runs that a replay reads."""

from __future__ import annotations

from penstock.storage.errors import ConfigError
from penstock.storage.runs.reader_claims import shards_kept_from
from penstock.storage.runs.run import RunFolder
from penstock.tasks.setup.config.replay import build_stored_config


def first_window_stage(run: RunFolder, stage: int) -> int:
    """Return the first stage with rows in the window before a stage; that stage itself if there is no window.

    The window of a custom algorithm is not known without its code, and counts as none.

    Args:
        run: a run.
        stage: the stage that is learned next.
    """
    config = build_stored_config(run.load("config")["config"])
    window_rows = getattr(config.algorithm, "window_rows", 0)
    if not config.has_actors or not window_rows:
        return stage
    schedule = config.schedule
    begin = stage * schedule.rounds_per_stage
    held = min(begin, window_rows // (config.environment.num_envs * schedule.round_steps))
    return (begin - held) // schedule.rounds_per_stage


def require_shards(run: RunFolder, stage: int) -> None:
    """Refuse to go on with a stage that needs shards which garbage collection has removed: as `require_window`.

    Raises:
        ConfigError: it was the run's own, or those of a run that a replay reads; or that one is gone.
    """
    require_window(run, stage)
    for source in run.load().get("reads", {}).get("sources", []):
        other, (first, last) = RunFolder(run.root, str(source["run"])), source["stages"]
        if not other.exists():
            raise ConfigError(
                f"run '{run.name}' reads the shards of run '{other.name}', which is not in {run.root.url}: it can't go "
                f"on; copy that run there"
            )
        if (kept := shards_kept_from(other.store)) > first:
            raise ConfigError(
                f"run '{run.name}' reads the shards of stages {first} to {last} of run '{other.name}', and those "
                f"before stage {kept} were dropped by `penstock gc --drop-shards-before`: it can't go on"
            )


def require_window(run: RunFolder, stage: int, kept_from: int | None = None) -> None:
    """Refuse to go on with a stage whose window has stages without shards.

    Args:
        run: a run.
        stage: the stage that is learned next.
        kept_from: first stage with shards; None for the one that the run's store names.

    Raises:
        ConfigError: `penstock gc --drop-shards-before` removed them, or is asked to.
    """
    kept = shards_kept_from(run.store) if kept_from is None else kept_from
    if kept == 0 or (first := first_window_stage(run, stage)) >= min(kept, stage):
        return
    raise ConfigError(
        f"run '{run.name}' draws rows of stages {first} to {stage - 1} in stage {stage} (algorithm.window_rows), and "
        + (
            f"the shards before stage {kept} were dropped by `penstock gc --drop-shards-before`: it can't go on from "
            f"there"
            if kept_from is None
            else f"could not go on without the shards before stage {kept}; drop those before stage {first} at most, or "
            f"wait until the run has ended"
        )
    )

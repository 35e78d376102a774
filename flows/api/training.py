"""Trains, resumes and evaluates runs from Python: `penstock.train`, `penstock.resume` and `penstock.evaluate`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.flows.api.run import Run
from penstock.flows.settings.options import nested_settings
from penstock.storage.errors import ConfigError, RunFinishedError
from penstock.tasks.setup.config.loading import load_preset, validate, with_overrides
from penstock.tasks.setup.config.run import RunConfig, TrainConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.flows.display.console import Panel
    from penstock.flows.observers.callbacks.callback import Callback

Settings: TypeAlias = "RunConfig | Mapping[str, Any] | str | os.PathLike[str]"
"""Settings of a run, a table of them, the name of a preset, or the path of a TOML file."""
AnyRun: TypeAlias = "Run | str | os.PathLike[str]"
"""A run, its address, or its name."""

_NOTEBOOK_COLUMNS = 160


def train(
    config: Settings = "cartpole",
    /,
    *,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> Run:
    """Train from the beginning, as `penstock train` does: with Prefect, Dask and the store, to the same bytes.

    Prefect is the server at `PREFECT_API_URL`, or one that is started for the run. In a notebook and in a script alike;
    scripts need no `if __name__ == "__main__"`. An interrupt (Ctrl-C, or the notebook's stop button) raises
    KeyboardInterrupt; the last commit is kept, and `penstock.resume` continues from it.

    Args:
        config: a preset's name, the path of a TOML file, a table of settings, or a `TrainConfig`, such as another run's
            `Run.config`.
        progress: print a line per stage, as the command does.
        callbacks: objects that are called after each commit, without effect on the run.
        settings: settings on top, by full name or, where that is unique, by last part, with or without their table:
            `seed=3`, `lag=1`, `algorithm={"learning_rate": 1e-3}`, `**{"schedule.lag": 1}`. `penstock settings` lists
            them all; `name` and `store` are among them.

    Returns:
        The finished run.

    Raises:
        ConfigError: a setting or a callback is wrong, or this process drives another run.
        RunExistsError: the store has a run of this name.
        PenstockError: anything else that keeps the run from finishing.
    """
    from penstock.flows.observers.callbacks.loading import made_callbacks

    called = made_callbacks(callbacks)
    from penstock.flows.api.drive import run_here

    result = run_here(_configured(config, settings), "refuse", _panel(progress=progress), callbacks=called)
    return Run(result["run"], store=result["store"])


def resume(
    run: AnyRun,
    /,
    *,
    store: str | os.PathLike[str] | None = None,
    trust: bool = False,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
    **settings: Any,
) -> Run:
    """Resume a run from its last commit, to the same bytes as if it had never been stopped; a finished one stays so.

    Args:
        run: a run, its address, or its name.
        store: folder or s3:// address that holds the run, if `run` is its name; default `runs`.
        trust: import the code that the run names, also where Python finds it in the working directory.
        progress: print a line per stage.
        callbacks: objects that are called after each commit, without effect on the run.
        settings: settings of `cluster`, the device, and numbers of act and env tasks, which alone may change, such as
            `act_tasks=4`.

    Returns:
        The finished run.

    Raises:
        RunNotFoundError: there is no such run.
        ConfigError: another setting was given, a setting is wrong, or this process drives another run.
        ConsentError: the run names code in the working directory, and is not trusted.
        PenstockError: anything else that keeps the run from finishing.
    """
    from penstock.flows.observers.callbacks.loading import made_callbacks

    called = made_callbacks(callbacks)
    from penstock.flows.api.drive import run_here
    from penstock.flows.support.find_resumable import require_movable, stored_config

    found = _found(run, store)
    overrides = nested_settings(settings)
    require_movable(overrides)
    config = stored_config(found.store, found.name, overrides, trust=trust)
    # A success: whoever calls this until it succeeds may have been stopped after the last commit.
    with suppress(RunFinishedError):
        run_here(config, "resume", _panel(progress=progress), callbacks=called)
    return found


def evaluate(
    run: AnyRun,
    /,
    *,
    episodes: int = 100,
    stage: int | None = None,
    key: int = 1_000_000,
    store: str | os.PathLike[str] | None = None,
    trust: bool = False,
) -> dict[str, float]:
    """Evaluate a run's newest snapshot, greedily, on seeds that training does not use, in this process.

    The result is kept with the run, if its store can be written. Neither Prefect nor Dask is imported.

    Args:
        run: a run, its address, or its name.
        episodes: number of episodes, each on its own seed.
        stage: evaluate the last snapshot of this stage; None takes the newest.
        key: selects the set of seeds; the same key gives the same result.
        store: folder or s3:// address that holds the run, if `run` is its name; default `runs`.
        trust: import the code that the run names, also where Python finds it in the working directory.

    Returns:
        `version`, `episodes`, `mean_return`, `min_return`, `max_return`, `mean_length`, `seeds`, which is `key`, and
        `seconds`.

    Raises:
        RunNotFoundError: there is no such run.
        ConfigError: no stage is committed yet, or not this one; or a number is out of range.
        ConsentError: the run names code in the working directory, and is not trusted.
    """
    for name, value, least in (("episodes", episodes, 1), ("stage", stage, 0), ("key", key, 0)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise ConfigError(f"{name} = {value!r}: expected a whole number of at least {least}")
    if key >= 1 << 63:
        raise ConfigError(f"key = {key}: expected at most {(1 << 63) - 1}")
    from penstock.flows.api.evaluation import commit_to_evaluate, trust_run

    found = _found(run, store)
    if trust:
        trust_run(found.store, found.name)
    folder, commit = commit_to_evaluate(found.store, found.name, stage)
    import torch

    from penstock.tasks.analysis.evaluation import evaluate_commit

    threads = torch.get_num_threads()
    try:
        return evaluate_commit(folder, commit, episodes, key, keep_result=False)
    finally:
        torch.set_num_threads(threads)


def _found(run: AnyRun, store: str | os.PathLike[str] | None) -> Run:
    if not isinstance(run, Run):
        return Run(run, store)
    if store is not None:
        raise ConfigError(f"{run!r} has a store, and store = {os.fspath(store)!r} is given: leave one of them out")
    return run


def _configured(config: Settings, settings: Mapping[str, Any]) -> RunConfig:
    if isinstance(config, RunConfig):
        kind, values = type(config), config.model_dump(exclude_unset=True)
    else:
        kind = TrainConfig
        if isinstance(config, str | os.PathLike):
            values = load_preset(os.fspath(config))
        elif isinstance(config, Mapping):
            values = dict(config)
        else:
            raise ConfigError(
                f"the first argument is {config!r}, expected a preset's name, the path of a TOML file, a table of "
                f"settings, or a TrainConfig"
            )
    return validate(kind, with_overrides(values, nested_settings(settings, kind)))


def _panel(*, progress: bool) -> Panel:
    from rich.console import Console

    from penstock.flows.display.console import LivePanel, Panel, ProgressConsole

    if not progress:
        return Panel()
    if Console().is_jupyter:
        # Rich would write HTML line by line, and a kernel claims to be a terminal, but a cell moves no cursor.
        return LivePanel(Console(force_jupyter=False, force_terminal=False, width=_NOTEBOOK_COLUMNS))
    return LivePanel(ProgressConsole())

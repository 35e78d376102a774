"""`penstock extend`: continues a finished run until other limits are reached."""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated, Any

import typer

from penstock.flows.cli.training import (
    AllowUnfenced,
    AsJson,
    Callbacks,
    Scheduler,
    Store,
    Track,
    Trust,
    cluster_settings,
    print_result,
    progress_panel,
)
from penstock.storage.errors import ConfigError, RunFinishedError
from penstock.storage.runs.run import USUAL_STORE


def extend(
    run: Annotated[str, typer.Argument(help="Name of the run, which is finished.")],
    max_stages: Annotated[
        int | None, typer.Option(min=1, help="Stages after which it ends, counted from its beginning.")
    ] = None,
    target_return: Annotated[
        str | None, typer.Option(help="Mean evaluation return at which it ends before; none: no early end.")
    ] = None,
    trust: Trust = False,
    store: Store = None,
    scheduler: Scheduler = None,
    track: Track = None,
    callback: Callbacks = None,
    allow_unfenced: AllowUnfenced = False,
    as_json: AsJson = False,
) -> None:
    """Continue a finished run until other limits.

    From its last commit, to the parameters of a run that had these limits from the start.
    If the command is stopped, it is given again, or `penstock resume RUN` continues.
    """
    from penstock.flows.api.drive import run_here
    from penstock.flows.display.summary import flow_result
    from penstock.flows.support.find_resumable import stored_config
    from penstock.storage.runs.run import RunFolder
    from penstock.storage.stores.open import open_store
    from penstock.tasks.data.input.window_stages import require_shards
    from penstock.tasks.setup.planning.extending import extend_run

    if max_stages is None and target_return is None:
        raise ConfigError("extend needs --max-stages, --target-return or both: what ends the run from now on")
    given: dict[str, Any] = {} if max_stages is None else {"max_stages": max_stages}
    if target_return is not None:
        given["target_return"] = _parse_target(target_return)
    where, show = store or USUAL_STORE, partial(print_result, as_json=as_json)
    folder = RunFolder(open_store(where), run)
    config = stored_config(
        where,
        run,
        {"cluster": cluster_settings(scheduler, track, callback, allow_unfenced=allow_unfenced)},
        trust=trust,
    )
    if newest := folder.newest():
        require_shards(folder, newest.stage + 1)
    try:
        limits = extend_run(folder, lambda current: current._replace(**given))
        typer.echo(f"run {run} now ends after {limits.max_stages} stages at the latest", err=True)
        show(run_here(config, "resume", progress_panel(as_json=as_json), before_exit=show))
    except RunFinishedError:
        # A success, as in `resume`: whoever gives the command again may have been stopped after the last commit.
        typer.echo("it was extended and is finished already: nothing was done", err=True)
        show(flow_result(config, folder.log.newest(), 0.0))


def _parse_target(text: str) -> float | None:
    if text == "none":
        return None
    try:
        target = float(text)
    except ValueError:
        target = math.nan
    if not math.isfinite(target):
        raise ConfigError(f"--target-return {text}: expected a number, or none")
    return target

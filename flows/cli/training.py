"""`penstock train`, `replay` and `resume`: the commands that drive a run."""

from __future__ import annotations

import atexit
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from penstock.flows.display.plain import plain
from penstock.storage.errors import ConfigError, RunFinishedError
from penstock.storage.runs.run import USUAL_STORE
from penstock.tasks.roles.worker.fork_server import start_fork_server, stop_fork_server

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.flows.display.console import Panel
    from penstock.flows.display.summary import FlowResult
    from penstock.tasks.setup.config.run import RunConfig
    from penstock.tasks.setup.planning.resolve import IfExists

TRAIN_HELP = (
    "Every other setting can be given as an option as well, by its full name or, where that is unique, by its last "
    "part: --schedule.lag 1, --lag 1, --algorithm.learning-rate 1e-3. `penstock settings` lists them all."
)


Store = Annotated[str | None, typer.Option(help="Folder or s3:// address that holds runs.", show_default=USUAL_STORE)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Scheduler = Annotated[str | None, typer.Option(help="Address of a Dask scheduler; default: workers on this machine.")]
Trust = Annotated[
    bool, typer.Option("--trust", help="Import the code that the run names, also from the working directory.")
]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", help="Tracker, repeatable: tensorboard[:FOLDER], wandb[:PROJECT] or mlflow[:URI]."),
]
Callbacks = Annotated[
    list[str] | None,
    typer.Option("--callback", help="Callback to call after each commit, repeatable: module:Name."),
]
AllowUnfenced = Annotated[
    bool,
    typer.Option(
        "--allow-unfenced",
        help="Accept a store that lets two flows write one commit, where their bytes may differ.",
    ),
]


def train(
    context: typer.Context,
    preset: Annotated[str, typer.Argument(help="Name of a preset, or path of a TOML file.")] = "cartpole",
    name: Annotated[str | None, typer.Option(help="The run's name; default: generated.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    store: Store = None,
    init_from: Annotated[
        str | None, typer.Option(help="Start with another run's parameters: RUN, RUN@best or RUN@VERSION.")
    ] = None,
    scheduler: Scheduler = None,
    track: Track = None,
    callback: Callbacks = None,
    allow_unfenced: AllowUnfenced = False,
    as_json: AsJson = False,
) -> None:
    """Train from the beginning."""
    _start_workers_import(scheduler)
    from penstock.flows.settings.options import configured, notes_on_preset

    cluster = cluster_settings(scheduler, track, callback, allow_unfenced=allow_unfenced)
    given = {"name": name, "seed": seed, "store": store, "cluster": cluster or None}
    if init_from is not None:
        given["init_from"] = _initial(init_from)
    config = configured(preset, context.args, {key: value for key, value in given.items() if value is not None})
    notes = notes_on_preset(preset, context.args, config)
    _drive(config, "refuse", as_json=as_json, notes=notes)


def replay(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the replay, which is a new run.")],
    source: Annotated[list[str], typer.Option("--from", help="Runs whose shards are read: --from RUN [RUN ...].")],
    preset: Annotated[
        str | None, typer.Option(help="Name of a preset such as halfcheetah-iql, or path of a TOML file.")
    ] = None,
    stages: Annotated[str | None, typer.Option(help="Stages to read, both ends included: 3:9, 3: or :9.")] = None,
    versions: Annotated[str | None, typer.Option(help="Policy versions that acted, both ends included.")] = None,
    min_return: Annotated[float | None, typer.Option(help="Only whole episodes with at least this return.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    store: Store = None,
    scheduler: Scheduler = None,
    track: Track = None,
    callback: Callbacks = None,
    as_json: AsJson = False,
) -> None:
    """Train a policy from the shards of earlier runs.

    Nothing acts, except for evaluation.
    It learns by behaviour cloning, or by implicit Q-learning (--algorithm.name iql) or TD3+BC (td3_bc, for vectors of
    actions), which also use rewards.

    Every other setting can be given as an option as well: --shards-per-round 32, --algorithm.learning-rate 1e-3.
    `penstock settings --replay` lists them all.
    """
    _start_workers_import(scheduler)
    from penstock.flows.settings.options import parse_bounds, parse_overrides
    from penstock.tasks.setup.config.loading import REPLAY_PRESETS_FOLDER, load_preset, merge, table_of, with_overrides
    from penstock.tasks.setup.config.replay import ReplayConfig, build_replay_config

    base = load_preset(preset, REPLAY_PRESETS_FOLDER) if preset is not None else {}
    arguments = list(context.args)
    more = 0
    while more < len(arguments) and not arguments[more].startswith("-"):
        more += 1
    values: dict[str, Any] = {"name": name, "source": {"runs": [*source, *arguments[:more]]}}
    values |= {key: value for key, value in {"seed": seed, "store": store}.items() if value is not None}
    selection = {"stages": parse_bounds("--stages", stages), "versions": parse_bounds("--versions", versions)}
    values["source"] |= {key: value for key, value in selection.items() if value} | {"min_return": min_return}
    values["cluster"] = cluster_settings(scheduler, track, callback)
    algorithm = str(table_of(base, "algorithm").get("name", ""))
    overrides = parse_overrides(arguments[more:], ReplayConfig, algorithm, after="the runs of --from")
    fixed = sorted({*base, *overrides} & {"environment", "plan"})
    if fixed:
        raise ConfigError(f"{', '.join(fixed)}: determined by the runs that are read; leave it out")
    config = build_replay_config(with_overrides(merge(base, values), overrides))
    _drive(config, "refuse", as_json=as_json)


def resume(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    from_stage: Annotated[
        int | None, typer.Option(min=0, help="Give up the later commits, all of which must be damaged.")
    ] = None,
    trust: Trust = False,
    store: Store = None,
    scheduler: Scheduler = None,
    track: Track = None,
    callback: Callbacks = None,
    allow_unfenced: AllowUnfenced = False,
    as_json: AsJson = False,
) -> None:
    """Resume a run from its last commit.

    One that is finished stays as it is.
    Its cluster and numbers of tasks may change (--scheduler, --act-tasks, --cluster.lease-seconds ...); its result
    may not.
    """
    _start_workers_import(scheduler)
    from penstock.flows.display.summary import flow_result
    from penstock.flows.settings.options import parse_overrides
    from penstock.flows.support.find_resumable import require_movable, stored_config
    from penstock.storage.runs.continuing.forking import ABANDONED, abandon_after
    from penstock.storage.runs.run import RunFolder
    from penstock.storage.stores.open import open_store
    from penstock.tasks.setup.config.loading import merge

    overrides = parse_overrides(context.args, after="the run's name")
    require_movable(overrides)
    cluster = cluster_settings(scheduler, track, callback, allow_unfenced=allow_unfenced)
    overrides = merge(overrides, {"cluster": cluster})
    where = store or USUAL_STORE
    config = stored_config(where, run, overrides, trust=trust)
    if from_stage is not None:
        for name, problem in abandon_after(RunFolder(open_store(where), run), from_stage).items():
            typer.echo(plain(f"{name} was given up, and is now in {ABANDONED}: {problem}"), err=True)
    try:
        _drive(config, "resume", as_json=as_json)
    except RunFinishedError:
        # A success: whoever gives the command until it succeeds may have been stopped after the last commit.
        typer.echo("it is finished already: nothing was done", err=True)
        print_result(flow_result(config, RunFolder(open_store(where), run).log.newest(), 0.0), as_json=as_json)


def _start_workers_import(scheduler: str | None) -> None:
    """Let the process that workers are forked from import while this one reads settings; it ends with the command."""
    if scheduler is None:
        atexit.register(stop_fork_server)
        start_fork_server()


def _drive(config: RunConfig, if_exists: IfExists, *, as_json: bool, notes: Sequence[str] = ()) -> None:
    """Drive a run to its end, and print its result; notes are printed before it starts, if it is not refused."""
    if config.cluster.scheduler or config.cluster.schedulers:
        stop_fork_server()
    from penstock.flows.api.drive import run_here

    show = partial(print_result, as_json=as_json)

    def say_notes() -> None:
        for note in notes:
            typer.echo(plain(note), err=True)

    panel = progress_panel(as_json=as_json)
    show(run_here(config, if_exists, panel, before_exit=show, before_start=say_notes))


def progress_panel(*, as_json: bool) -> Panel:
    """Return the panel of a command that drives a run."""
    from penstock.flows.display.console import LivePanel, Panel, ProgressConsole

    return Panel() if as_json else LivePanel(ProgressConsole())


def _initial(text: str) -> dict[str, Any]:
    """Return the settings that `RUN` or `RUN@VERSION` stands for."""
    from penstock.tasks.inference.finding import parse_version

    run, at, version = text.rpartition("@")
    if not at or "/" in version:  # an address may have an @ as well
        return {"run": text}
    return {"run": run, "version": parse_version(version)}


def cluster_settings(
    scheduler: str | None, track: list[str] | None, callbacks: list[str] | None, *, allow_unfenced: bool = False
) -> dict[str, Any]:
    """Return the cluster settings that were given as separate options."""
    given = {
        "scheduler": scheduler,
        "track": track or None,
        "callbacks": callbacks or None,
        "allow_unfenced": allow_unfenced or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def print_result(result: FlowResult, *, as_json: bool) -> None:
    """Print a flow's result, where it is stored, and the next commands."""
    if as_json:
        typer.echo(json.dumps(result, indent=2))
        return
    from penstock.flows.display.summary import next_steps, outcome_line

    console = Console()
    console.print(f"run {result['run']}: {outcome_line(result)}", highlight=False, markup=False)
    where = result["store"] if "://" in result["store"] else str(Path(result["store"]).resolve())
    console.print(f"everything is in {where}/{result['run']}", highlight=False, markup=False, soft_wrap=True)
    for command in next_steps(result["run"], result["store"], result["finished"] is not None):
        console.print(f"  {command}", highlight=False, markup=False, soft_wrap=True)

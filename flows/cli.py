"""The command. Kept light: Prefect, Dask and torch are imported by the commands that need them, while servers start.

Workers on this machine import this module again when they are spawned, which is one more reason.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from flows.copying import copy
from flows.floorplans import commands as placement_commands
from flows.report import report
from flows.scale_command import scale
from flows.terminal_tables import print_table
from storage.errors import ConfigError, PenstockError

app = typer.Typer(
    name="penstock",
    help="Reinforcement learning as a durable, resumable data pipeline.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(placement_commands)
app.command()(copy)
app.command()(report)

# What typer makes of Ctrl-C.
_INTERRUPTED = 130

_OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": True}
app.command(context_settings=_OVERRIDES)(scale)
_TRAIN_HELP = (
    "Every other setting can be given as an option as well, by its full name or, where that is unique, by its last "
    "part: --schedule.lag 1, --lag 1, --algorithm.learning-rate 1e-3. `penstock settings` lists them all."
)

Store = Annotated[str | None, typer.Option(help="Folder or s3:// address that holds runs.", show_default="runs")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
Scheduler = Annotated[str | None, typer.Option(help="Address of a Dask scheduler; default: workers on this machine.")]


@app.command(context_settings=_OVERRIDES, epilog=_TRAIN_HELP)
def train(
    context: typer.Context,
    preset: Annotated[str, typer.Argument(help="Name of a preset, or path of a TOML file.")] = "cartpole",
    name: Annotated[str | None, typer.Option(help="The run's name; default: made up.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    store: Store = None,
    scheduler: Scheduler = None,
    as_json: AsJson = False,
) -> None:
    """Train from the beginning."""
    from flows.drive import drive
    from flows.overrides import configured

    given = {"name": name, "seed": seed, "store": store, "cluster": {"scheduler": scheduler} if scheduler else None}
    config = configured(preset, context.args, {key: value for key, value in given.items() if value is not None})
    _print_result(drive(config, "refuse", as_json=as_json), as_json)


@app.command(context_settings=_OVERRIDES)
def replay(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the replay, a run of its own.")],
    source: Annotated[list[str], typer.Option("--from", help="Runs whose shards are read: --from RUN [RUN ...].")],
    stages: Annotated[str | None, typer.Option(help="Their stages, both ends included: 3:9, 3: or :9.")] = None,
    versions: Annotated[str | None, typer.Option(help="Versions that acted, both ends included.")] = None,
    min_return: Annotated[float | None, typer.Option(help="Only whole episodes with at least this return.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    store: Store = None,
    scheduler: Scheduler = None,
    as_json: AsJson = False,
) -> None:
    """Train a policy from the shards of earlier runs; nothing acts but its evaluation.

    By behaviour cloning, or by implicit Q-learning (--algorithm.name iql), which also learns from their rewards.

    Every other setting can be given as an option as well: --shards-per-round 32, --algorithm.learning-rate 1e-3.
    `penstock settings --replay` lists them all.
    """
    from flows.drive import drive
    from flows.overrides import parse_bounds, parse_overrides
    from tasks.config import merge
    from tasks.replay_config import ReplayConfig, build_replay_config

    arguments = list(context.args)
    more = 0
    while more < len(arguments) and not arguments[more].startswith("-"):
        more += 1
    values: dict[str, Any] = {"name": name, "source": {"runs": [*source, *arguments[:more]]}}
    values |= {key: value for key, value in {"seed": seed, "store": store}.items() if value is not None}
    selection = {"stages": parse_bounds("--stages", stages), "versions": parse_bounds("--versions", versions)}
    values["source"] |= {key: value for key, value in selection.items() if value} | {"min_return": min_return}
    if scheduler is not None:
        values["cluster"] = {"scheduler": scheduler}
    overrides = parse_overrides(arguments[more:], ReplayConfig)
    fixed = sorted(set(overrides) & {"environment", "plan"})
    if fixed:
        raise ConfigError(f"{', '.join(fixed)}: follows from the runs that are read; leave it out")
    _print_result(drive(build_replay_config(merge(values, overrides)), "refuse", as_json=as_json), as_json)


@app.command(context_settings=_OVERRIDES)
def resume(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    store: Store = None,
    scheduler: Scheduler = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a run from its last commit.

    Where it runs may change (--scheduler, --act-tasks, --cluster.lease-seconds ...); what it computes may not.
    """
    from flows.drive import drive
    from flows.overrides import parse_overrides
    from flows.resuming import stored_config
    from tasks.config import MOVABLE

    overrides = parse_overrides(context.args)
    fixed = sorted(set(overrides) - {"cluster", "placement"})
    fixed += sorted(f"placement.{key}" for key in set(overrides.get("placement", {})) - {*MOVABLE})
    if fixed:
        raise ConfigError(f"{', '.join(fixed)}: can't change when a run goes on; only where it runs can")
    if scheduler is not None:
        overrides = {**overrides, "cluster": {**overrides.get("cluster", {}), "scheduler": scheduler}}
    config = stored_config(store or "runs", run, overrides)
    _print_result(drive(config, "resume", as_json=as_json), as_json)


@app.command()
def runs(store: Store = None, as_json: AsJson = False) -> None:
    """List the runs in a store."""
    from dataclasses import asdict

    from flows.summary import told_return
    from storage.run import list_runs
    from storage.store import open_store

    found = [asdict(summary) for summary in list_runs(open_store(store or "runs"))]
    if as_json:
        _print_json(found)
        return
    if not found:
        Console().print(f"no runs in {store or 'runs'}; start one with `penstock train cartpole`", highlight=False)
        return
    for row in found:
        if row["evaluation_return"] is not None:
            row["evaluation_return"] = told_return(row["evaluation_return"])
    print_table(found)


@app.command()
def show(
    run: Annotated[str, typer.Argument(help="Name of the run.")], store: Store = None, as_json: AsJson = False
) -> None:
    """Show what a run has committed."""
    from flows.inspection import describe_run

    description = describe_run(store or "runs", run)
    if as_json:
        _print_json(description)
        return
    console = Console()
    console.print(f"run {run} in {store or 'runs'}: {description['outcome']}", highlight=False)
    if description["stages"]:
        print_table(description["stages"])
    for command in description["next"]:
        console.print(f"  {command}", highlight=False)


@app.command()
def evaluate(
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    episodes: Annotated[int, typer.Option(min=1, help="Episodes, each on a seed of its own.")] = 100,
    stage: Annotated[int | None, typer.Option(min=0, help="Stage whose last snapshot is evaluated.")] = None,
    key: Annotated[int, typer.Option(min=0, help="Which set of seeds.")] = 1_000_000,
    follow: Annotated[
        bool, typer.Option("--follow", help="Every commit's, as they come, until the run is finished.")
    ] = False,
    idle_seconds: Annotated[
        float, typer.Option(min=0, help="With --follow: end where the run commits nothing for so long.")
    ] = 3600.0,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a run's newest snapshot, greedily, on fresh seeds; the result is kept in evaluations/.

    With --follow, evaluate beside training, in this process: nothing of it reaches the run. What was evaluated before
    with the same seeds is left out; --json prints a line an evaluation. At PREFECT_API_URL it is a flow run.
    """
    from flows.following import follow as follow_run
    from flows.inspection import evaluate_run

    if follow and stage is not None:
        raise ConfigError("--stage and --follow: one stage or all of them; leave one of the options out")
    if follow:
        show = json.dumps if as_json else _evaluation_line
        follow_run(store or "runs", run, episodes, key, idle_seconds, lambda result: typer.echo(show(result)))
        return
    result = evaluate_run(store or "runs", run, episodes, stage, key)
    if as_json:
        _print_json(result)
    else:
        typer.echo(_evaluation_line(result))


@app.command()
def gc(
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    keep_checkpoints: Annotated[int, typer.Option(min=1, help="Newest commits whose checkpoints stay.")] = 1,
    drop_shards_before: Annotated[
        int | None, typer.Option(min=0, help="Remove the shards of earlier stages too, for good.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and keep it.")] = False,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Remove what no commit names, and checkpoints that newer ones replace.

    Committed shards stay, unless --drop-shards-before is given; so does what somebody reads just now.
    """
    from storage.gc import collect
    from storage.run import RunFolder
    from storage.store import open_store

    report = collect(RunFolder(open_store(store or "runs"), run), keep_checkpoints, dry_run, drop_shards_before)
    if as_json:
        _print_json(
            {"objects": report.objects, "bytes": report.nbytes, "names": list(report.names), "dry_run": dry_run}
        )
        return
    verb = "would remove" if dry_run else "removed"
    Console().print(f"{verb} {report.objects} objects, {report.nbytes:,} bytes", highlight=False)


@app.command("export")
def export(
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    path: Annotated[
        Path, typer.Argument(help="Where it shall be: for a dataset a folder that is not there; TensorBoard's logdir.")
    ],
    to: Annotated[str, typer.Option(help="Its format: minari or tensorboard.")] = "minari",
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Write a run's committed episodes, whole, as a dataset that other tools train from; or its curves for TensorBoard.

    TensorBoard gets FOLDER/RUN, over environment steps, and the settings as hparams. Exporting again replaces it.
    """
    from flows.exchange import export_to

    _print_exchange("exported", export_to(to, store or "runs", run, path), as_json)


@app.command("import")
def import_(
    path: Annotated[Path, typer.Argument(help="Folder of the dataset; `data` is in it.")],
    name: Annotated[str, typer.Option(help="Name of the run that it becomes.")],
    of: Annotated[str, typer.Option("--from", help="Its format: minari.")] = "minari",
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Make a run of somebody else's dataset, to be replayed and read as any other."""
    from flows.exchange import import_from

    _print_exchange("imported", import_from(of, store or "runs", name, path), as_json)


@app.command()
def ui(port: Annotated[int, typer.Option(help="Port on loopback; 0 takes a free one.")] = 4200) -> None:
    """Serve Prefect's UI over what runs have reported, until Ctrl-C."""
    from flows.server import PrefectServer

    with PrefectServer(port) as server:
        server.wait_ready()
        Console().print(f"Prefect UI: {server.ui_url}  (Ctrl-C ends it)", highlight=False)
        server.wait()


@app.command()
def serve(
    store: Store = None,
    file: Annotated[
        Path | None, typer.Option(help="Describes the deployments.", show_default="deploy/prefect.yaml")
    ] = None,
    port: Annotated[int, typer.Option(help="Of a Prefect server of its own, without PREFECT_API_URL.")] = 4200,
) -> None:
    """Run schedules, event triggers and what people start in Prefect's UI, in one process, until Ctrl-C."""
    from flows.serving import PREFECT_FILE
    from flows.serving import serve as serve_deployments

    serve_deployments(store, file or PREFECT_FILE, port, lambda text: Console().print(text, highlight=False))


@app.command("check-env")
def check_env(
    target: Annotated[str, typer.Argument(help="A header with environments, or the id of one that is there.")],
    environment: Annotated[list[str] | None, typer.Option(help="C++ name, for a header that exports none.")] = None,
    flag: Annotated[list[str] | None, typer.Option(help="For the compiler; may be repeated: --flag=-O1.")] = None,
    include_dir: Annotated[list[Path] | None, typer.Option(help="Folder of other headers; may be repeated.")] = None,
    library: Annotated[list[str] | None, typer.Option(help="What to link; may be repeated.")] = None,
    resources: Annotated[str, typer.Option(help="Folder that the environments' library is loaded with.")] = "",
    sanitize: Annotated[bool, typer.Option(help="Run the header's environments under sanitizers too.")] = True,
    as_json: AsJson = False,
) -> None:
    """Check an environment: its contract, its spaces, its seeds, saving, threads, memory and speed."""
    from flows.checking import check, print_reports

    reports = check(
        target,
        environments=environment or (),
        flags=flag or (),
        include_dirs=include_dir or (),
        libraries=library or (),
        resources=resources,
        sanitize=sanitize,
    )
    if as_json:
        _print_json([report.as_json() for report in reports])
    else:
        print_reports(reports, Console())
    if not all(report.passed for report in reports):
        raise typer.Exit(1)


@app.command("check-algorithm", context_settings=_OVERRIDES)
def check_algorithm(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help="module:Class, a file, file.py:Class, or one that is there.")],
    env: Annotated[str, typer.Option(help="Environment whose rows it is checked on.")] = "CartPole-v1",
    as_json: AsJson = False,
) -> None:
    """Check an algorithm on rows that it acts itself: ratio, purity, statistics, parts, bootstraps, greedy actions.

    Its settings can be given as options: --algorithm.discount 0.9.
    """
    from flows.algorithm_checking import check_one_algorithm
    from flows.checking import print_reports

    report = check_one_algorithm(target, env, context.args)
    if as_json:
        _print_json(report.as_json())
    else:
        print_reports([report], Console())
    if not report.passed:
        raise typer.Exit(1)


@app.command(context_settings=_OVERRIDES)
def plan(
    context: typer.Context,
    preset: Annotated[str, typer.Argument(help="Name of a preset, or path of a TOML file.")] = "cartpole",
    as_json: AsJson = False,
) -> None:
    """Say who would do what, what would cross processes, and how much; nothing is started but a trial of two rounds.

    Takes the settings that `penstock train` takes.
    """
    from flows.overrides import configured
    from flows.planning import plan as made_plan

    config = configured(preset, context.args, {})
    # What takes longest is to import torch there, and everything takes longer on a machine that is busy.
    typer.echo("trying two rounds of it in another process: some seconds", err=True)
    found = made_plan(config)
    if as_json:
        _print_json(found)
        return
    console = Console()
    console.print(f"policy {found['policy']}", highlight=False)
    if "why" in found:
        console.print(found["why"], highlight=False)
    print_table(found["roles"])
    if found["edges"]:
        print_table(found["edges"])
    else:
        console.print("nothing crosses processes", highlight=False)
    console.print(f"stored under any policy: {found['stored_bytes_a_round']:,} bytes a round", highlight=False)
    if "note" in found:
        console.print(found["note"], highlight=False)


@app.command()
def settings(
    replay: Annotated[bool, typer.Option("--replay", help="Those of `penstock replay`.")] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print all of them as docs/settings.md has them.")
    ] = False,
) -> None:
    """List every setting, its default and what it means."""
    if markdown:
        from flows.setting_reference import reference

        typer.echo(reference(), nl=False)
        return
    from flows.overrides import describe_settings
    from tasks.config import TrainConfig
    from tasks.replay_config import ReplayConfig

    print_table(describe_settings(ReplayConfig if replay else TrainConfig))


def _print_exchange(verb: str, counts: dict[str, int], as_json: bool) -> None:
    if as_json:
        _print_json(counts)
        return
    if "scalars" in counts:
        typer.echo(f"{verb} {counts['scalars']:,} scalars of {counts['stages']:,} stages")
        return
    Console().print(
        f"{verb} {counts['episodes']} episodes, {counts['steps']:,} steps; {counts['cut_episodes']} of the episodes "
        f"have no end and are marked as truncated",
        highlight=False,
    )


def main() -> None:
    """Run the command; an error that Penstock raises on purpose is one message, never a traceback."""
    try:
        app()
    except PenstockError as error:
        for line in str(error).splitlines():
            typer.secho(f"error: {line}", err=True, fg=typer.colors.RED)
        sys.exit(1)
    except SystemExit as end:
        if end.code == _INTERRUPTED:
            typer.secho("stopped; the last commit stands, `penstock resume RUN` goes on from it", err=True)
        raise


def _print_result(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        _print_json(result)
        return
    from flows.summary import next_steps, outcome_line

    console = Console()
    console.print(f"run {result['run']}: {outcome_line(result)}", highlight=False)
    where = result["store"] if "://" in result["store"] else str(Path(result["store"]).resolve())
    console.print(f"everything lies in {where}/{result['run']}", highlight=False, soft_wrap=True)
    for command in next_steps(result["run"], result["store"], result["finished"] is not None):
        console.print(f"  {command}", highlight=False)


def _evaluation_line(result: dict[str, Any]) -> str:
    from flows.summary import told_return

    mean, least, most = (told_return(result[f"{kind}_return"]) for kind in ("mean", "min", "max"))
    return (
        f"version {result['version']}: mean return {mean} over {result['episodes']} episodes (from {least} to {most}) "
        f"in {result['seconds']:.2f} s"
    )


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2))

"""The `penstock` command. Imports are light: commands import Prefect, Dask and torch themselves, while servers start.

Local workers also import this module when they are spawned.
"""

from __future__ import annotations

import errno
import io
import json
import os
import sys
import warnings
from gc import set_threshold
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

import penstock
from penstock.flows.api.interrupts import INTERRUPTED_STATUS
from penstock.flows.cli import floorplans
from penstock.flows.cli.environments.check import check_algorithm, check_env
from penstock.flows.cli.environments.envs import envs, serve_env
from penstock.flows.cli.environments.new_env import new_env
from penstock.flows.cli.exchange import copy, fork, import_
from penstock.flows.cli.extend import extend
from penstock.flows.cli.policies.export import export
from penstock.flows.cli.policies.play import play
from penstock.flows.cli.policies.serve_policy import serve_policy
from penstock.flows.cli.report import report
from penstock.flows.cli.scale import scale
from penstock.flows.cli.simulate import simulate
from penstock.flows.cli.training import TRAIN_HELP, AsJson, Store, Trust, replay, resume, train
from penstock.flows.cli.verify import verify
from penstock.flows.display.after_stop import after_stop
from penstock.flows.display.amounts import amount
from penstock.flows.display.console import print_table
from penstock.flows.display.plain import plain, show_warning
from penstock.flows.display.working import Working
from penstock.storage.errors import ConfigError, PenstockError
from penstock.storage.runs.run import USUAL_STORE, RunFolder

if TYPE_CHECKING:
    from collections.abc import Mapping

app = typer.Typer(
    name="penstock",
    help="Reinforcement learning as a durable, resumable data pipeline.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
floorplans.add_to(app)
app.command()(copy)
app.command()(envs)
app.command()(fork)
app.command()(extend)
app.command("new-env")(new_env)
app.command()(report)
app.command()(verify)
app.command()(play)
app.command("serve-env")(serve_env)
app.command("serve-policy")(serve_policy)
app.command()(simulate)

_COLLECTED_AFTER = 50_000
"""Objects after which garbage is collected, at first: importing makes many, none of which is garbage."""
_SHOWN_STAGES = 100

_OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": True}
app.command(context_settings=_OVERRIDES)(scale)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"penstock {penstock.__version__}")
        raise typer.Exit


_Version = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
]


@app.callback()
def main_options(*, version: _Version = False) -> None:
    """Reinforcement learning as a durable, resumable data pipeline."""


app.command(context_settings=_OVERRIDES, epilog=TRAIN_HELP)(train)
app.command(context_settings=_OVERRIDES)(replay)
app.command(context_settings=_OVERRIDES)(resume)


@app.command()
def runs(store: Store = None, as_json: AsJson = False) -> None:
    """List the runs in a store."""
    from dataclasses import asdict

    from penstock.flows.cli.runs import shown_runs
    from penstock.storage.runs.run import list_runs
    from penstock.storage.stores.open import open_store

    where = store or USUAL_STORE
    root = open_store(where)
    if store is not None and (file := root.path("run.json")) is not None and not file.parent.is_dir():
        raise ConfigError(
            f"there is no folder {file.parent}; --store takes the folder or s3:// address that holds runs"
        )
    found = list_runs(root)
    if not found and root.exists("run.json"):
        raise ConfigError(f"{where} is a run itself, expected the folder or address that holds it: leave its name out")
    if as_json:
        _print_json([asdict(run) for run in found])
        return
    if not found:
        said = f"no runs in {where}; start one with `penstock train cartpole`"
        Console().print(said, highlight=False, markup=False)
        return
    # Of a run that can't be read, the other columns say nothing.
    if "problem" in print_table(shown_runs(found)):
        for run in found:
            if run.problem:
                Console(soft_wrap=True).print(plain(f"{run.name}: {run.problem}"), highlight=False, markup=False)


@app.command()
def show(
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    last: Annotated[
        int | None,
        typer.Option(min=1, help="Number of newest stages.", show_default=f"{_SHOWN_STAGES}; with --json all"),
    ] = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Show the newest committed stages of a run."""
    from penstock.flows.cli.runs import describe_run
    from penstock.flows.display.summary import shown_row

    description = describe_run(store or USUAL_STORE, run, last if as_json else last or _SHOWN_STAGES)
    if as_json:
        _print_json(description)
        return
    console = Console()
    said = f"run {run} in {store or USUAL_STORE}: {plain(description['outcome'])}"
    console.print(said, highlight=False, markup=False)
    if description["driver"]:
        console.print(plain(description["driver"]), highlight=False, markup=False)
    if stages := description["stages"]:
        print_table([shown_row(row, replay=description["replay"]) for row in stages])
        if earlier := stages[0]["stage"]:
            console.print(f"stages 0 to {earlier - 1:,} are not shown: --last N shows more", highlight=False)
    for command in description["next"]:
        console.print(f"  {command}", highlight=False, markup=False, soft_wrap=True)


@app.command()
def evaluate(
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    episodes: Annotated[int, typer.Option(min=1, help="Episodes, each on its own seed.")] = 100,
    stage: Annotated[int | None, typer.Option(min=0, help="Stage whose last snapshot is evaluated.")] = None,
    key: Annotated[int, typer.Option(min=0, max=(1 << 63) - 1, help="Selects the set of seeds.")] = 1_000_000,
    follow: Annotated[
        bool, typer.Option("--follow", help="Evaluate every commit as it appears, until the run is finished.")
    ] = False,
    idle_seconds: Annotated[
        float, typer.Option(min=0, help="With --follow: end when the run commits nothing for this long.")
    ] = 3600.0,
    trust: Trust = False,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a run's newest snapshot on fresh seeds.

    The policy acts greedily; the result is kept in evaluations/.
    With --follow, evaluate concurrently with training, in this process, without effect on the run. Commits evaluated
    before with the same seeds are skipped; --json prints one line per evaluation. With PREFECT_API_URL, it is a flow
    run.
    """
    from penstock.flows.api.evaluation import commit_to_evaluate, trust_run
    from penstock.flows.cli.runs import follow_run
    from penstock.storage.stores.open import open_store

    if follow and stage is not None:
        raise ConfigError("--stage and --follow: one stage or all of them; leave one of the options out")
    where = store or USUAL_STORE
    if trust:
        trust_run(where, run)
    if follow:
        RunFolder(open_store(where), run).load()
        if "PREFECT_API_URL" in os.environ:
            from penstock.flows.api.prefect_answers import require_prefect

            require_prefect(os.environ["PREFECT_API_URL"])
        show = json.dumps if as_json else _evaluation_line
        with Working(f"evaluating the commits of run {run} as they appear", quiet=as_json):
            follow_run(where, run, episodes, key, idle_seconds, lambda result: typer.echo(show(result)))
        return
    folder, commit = commit_to_evaluate(where, run, stage)
    with Working(f"evaluating run {run} over {amount(episodes, 'episodes')}", quiet=as_json):
        from penstock.tasks.analysis.evaluation import evaluate_commit

        result = evaluate_commit(folder, commit, episodes, key, keep_result=False)
    if as_json:
        _print_json(result)
    else:
        typer.echo(_evaluation_line(result))


@app.command()
def gc(
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    keep_checkpoints: Annotated[int, typer.Option(min=1, help="Newest commits whose checkpoints stay.")] = 1,
    drop_shards_before: Annotated[
        int | None, typer.Option(min=0, help="Remove the shards of earlier stages too, permanently.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be removed, and keep it.")] = False,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Remove what no commit of a run needs.

    That is what no commit names, and checkpoints that newer ones replace. Committed shards stay, unless
    --drop-shards-before is given; so do objects that are being read, and snapshot and checkpoint of the best
    evaluation.
    """
    from penstock.storage.runs.gc import collect, first_kept
    from penstock.storage.runs.lease import refuse_driven
    from penstock.storage.stores.open import open_store

    folder = RunFolder(open_store(store or USUAL_STORE), run)
    first_kept(folder, drop_shards_before)
    if not dry_run:
        refuse_driven(folder.store)
    if drop_shards_before and (newest := folder.newest()) and not folder.was_imported():
        from penstock.tasks.data.input.window_stages import require_window

        try:
            require_window(folder, newest.stage + 1, drop_shards_before)
        except ConfigError:
            if not newest.finished:
                raise
            typer.echo(f"run {run} draws rows of these stages: `penstock extend` and `fork` will refuse it", err=True)
    with Working(f"comparing what is stored of run {run} with its commits", quiet=as_json) as working:
        report = collect(folder, keep_checkpoints, dry_run, drop_shards_before, working.update)
    if as_json:
        _print_json(
            {"objects": report.objects, "bytes": report.nbytes, "names": list(report.names), "dry_run": dry_run}
        )
        return
    verb = "would remove" if dry_run else "removed"
    Console().print(f"{verb} {amount(report.objects, 'objects')}, {report.nbytes:,} bytes", highlight=False)


app.command("check-env", context_settings=_OVERRIDES)(check_env)
app.command("check-algorithm", context_settings=_OVERRIDES)(check_algorithm)
app.command("export")(export)
app.command("import")(import_)


@app.command()
def ui(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on loopback; 0 chooses a free one.")] = 4200,
) -> None:
    """Serve Prefect's UI with records of earlier runs.

    Until Ctrl-C.
    """
    from penstock.flows.api.prefect_server import PrefectServer

    with PrefectServer(port) as server:
        with Working("starting Prefect's server"):
            server.wait_ready()
        Console().print(
            f"Prefect's UI: {server.sign_in}; Ctrl-C ends it", highlight=False, markup=False, soft_wrap=True
        )
        server.wait()


@app.command()
def serve(
    store: Store = None,
    file: Annotated[
        Path | None, typer.Option(help="File that describes the deployments.", show_default="deploy/prefect.yaml")
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the embedded Prefect server, without PREFECT_API_URL.")
    ] = 4200,
) -> None:
    """Serve deployments: schedules, triggers, flow runs.

    In one process, until Ctrl-C.
    """
    from penstock.flows.cli.serve import PREFECT_FILE
    from penstock.flows.cli.serve import serve as serve_deployments

    serve_deployments(
        store, file or PREFECT_FILE, port, lambda text: Console().print(text, highlight=False, markup=False)
    )


@app.command(context_settings=_OVERRIDES)
def plan(
    context: typer.Context,
    preset: Annotated[str, typer.Argument(help="Name of a preset, or path of a TOML file.")] = "cartpole",
    as_json: AsJson = False,
) -> None:
    """Predict roles, and traffic between processes.

    Only a trial of two rounds is started.
    Takes the settings that `penstock train` takes.
    """
    from penstock.flows.settings.options import configured
    from penstock.flows.support.plan import plan as predict_traffic

    config = configured(preset, context.args, {})
    # Importing torch takes longest; on a busy machine everything takes longer.
    announce = "running a trial of two rounds in another process: some seconds"
    found = predict_traffic(config, lambda: typer.echo(announce, err=True))
    if as_json:
        _print_json(found)
        return
    console = Console()
    console.print(f"policy {found['policy']}", highlight=False, markup=False)
    if "why" in found:
        console.print(found["why"], highlight=False, markup=False)
    print_table(found["roles"])
    if found["edges"]:
        print_table(found["edges"])
    else:
        console.print("nothing crosses processes", highlight=False)
    console.print(f"stored under any policy: {found['stored_bytes_a_round']:,} bytes a round", highlight=False)
    if "difference_bytes_a_round" in found:
        nbytes = f"{found['difference_bytes_a_round']:,} bytes a round"
        console.print(f"on a remote store also the difference between versions: {nbytes}", highlight=False)
    if "note" in found:
        console.print(found["note"], highlight=False, markup=False)


@app.command()
def settings(
    search: Annotated[
        str | None, typer.Argument(help="List those whose name or meaning contains it.", show_default="all")
    ] = None,
    replay: Annotated[bool, typer.Option("--replay", help="List the settings of `penstock replay`.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print docs/settings.md.")] = False,
    as_json: AsJson = False,
) -> None:
    """List every setting, its default and its meaning."""
    if markdown:
        from penstock.flows.settings.listing import reference

        typer.echo(reference(), nl=False)
        return
    from penstock.flows.settings.options import describe_settings
    from penstock.tasks.setup.config.replay import ReplayConfig
    from penstock.tasks.setup.config.run import TrainConfig

    found = describe_settings(ReplayConfig if replay else TrainConfig, search or "")
    if as_json:
        _print_json(found)
    elif found:
        print_table(found)
    else:
        raise ConfigError(f"no setting's name or meaning contains '{search}'; `penstock settings` lists them all")


def main() -> None:
    """Run the command; an error that Penstock raises on purpose is one message, never a traceback."""
    set_threshold(_COLLECTED_AFTER)
    warnings.showwarning = show_warning
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a path or a name may have what the terminal's encoding has not
            stream.reconfigure(errors="backslashreplace")
    try:
        _check_working_directory()
        _check_kernels()
        app()
    except PenstockError as error:
        for line in str(error).splitlines():
            typer.secho(f"error: {plain(line)}", err=True, fg=typer.colors.RED)
        sys.exit(1)
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        typer.secho(f"error: what was to be printed can't be written ({error.strerror})", err=True, fg=typer.colors.RED)
        # Its rest is written at the process's end, and would fail once more.
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
        sys.exit(1)
    except KeyboardInterrupt:  # while the command's options are read; later ones end with a status
        typer.secho("stopped; nothing was changed", err=True)
        sys.exit(INTERRUPTED_STATUS)
    except SystemExit as end:
        if end.code == INTERRUPTED_STATUS:
            typer.secho(f"stopped{after_stop(sys.argv[1:], end)}", err=True)
        raise


def _check_working_directory() -> None:
    """Refuse a working directory that was removed: Python's processes can't start there, nor can torch be imported."""
    try:
        Path.cwd()
    except OSError as error:
        raise ConfigError(
            f"the working directory can't be found ({error.strerror}): it was removed or replaced. Change to one that "
            f"exists, and give the command again"
        ) from error


def _check_kernels() -> None:
    """Refuse an unknown level of kernels, which only a user who sets the variable can name, before any command."""
    if os.environ.get("PENSTOCK_KERNELS"):
        from penstock.native.kernel_level import UnknownLevelError, level

        try:
            level()
        except UnknownLevelError as error:
            raise ConfigError(str(error)) from error


def _evaluation_line(result: Mapping[str, float]) -> str:
    from penstock.flows.display.summary import round_return

    mean, least, most = (round_return(result[f"{kind}_return"]) for kind in ("mean", "min", "max"))
    return (
        f"version {result['version']}: mean return {mean} over {amount(int(result['episodes']), 'episodes')} "
        f"(from {least} to {most}) in {result['seconds']:.2f} s"
    )


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2))

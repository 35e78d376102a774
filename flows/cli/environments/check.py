"""`penstock check-env` and `check-algorithm`: the checks of an environment or an algorithm of one's own."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path  # noqa: TC003  (typer reads annotations)
from typing import Annotated

import typer
from rich.console import Console

from penstock.flows.cli.training import AsJson  # noqa: TC001  (the same)
from penstock.flows.display.working import Working


def check_env(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help="A header with environments, or an id.")],
    environment: Annotated[list[str] | None, typer.Option(help="C++ name, for a header that exports none.")] = None,
    flag: Annotated[list[str] | None, typer.Option(help="Compiler flag; may be repeated: --flag=-O1.")] = None,
    include_dir: Annotated[list[Path] | None, typer.Option(help="Folder of other headers; may be repeated.")] = None,
    library: Annotated[list[str] | None, typer.Option(help="Library to link; may be repeated.")] = None,
    resources: Annotated[str, typer.Option(help="Folder that the environments' library is loaded with.")] = "",
    sanitize: Annotated[bool, typer.Option(help="Run the header's environments under sanitizers too.")] = True,
    address: Annotated[
        str | None, typer.Option(help="Address of the server of a socket/NAME: host:port or unix:/path.")
    ] = None,
    tls_certificate: Annotated[str | None, typer.Option(help="PEM file of that server's certificate.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check an environment, or a header of one.

    Its contract, its spaces, its seeds, saving, threads, memory and speed.
    One of another library takes --environment.structured true, .action-mask info, .wrappers LIST, .settings.NAME VALUE.
    """
    from penstock.flows.cli.check import check, print_reports

    with ExitStack() as stack:
        working = Working(f"checking {target}", quiet=as_json)
        reports = check(
            target,
            announce=lambda: stack.enter_context(working),
            environments=environment or (),
            flags=flag or (),
            include_dirs=include_dir or (),
            libraries=library or (),
            resources=resources,
            sanitize=sanitize,
            address=address,
            tls_certificate=tls_certificate,
            settings=context.args,
        )
    if as_json:
        typer.echo(json.dumps([report.as_json() for report in reports], indent=2))
    else:
        print_reports(reports, Console())
    if not all(report.passed for report in reports):
        raise typer.Exit(1)


def check_algorithm(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help="module:Class, a file, file.py:Class, a built-in one, or a preset.")],
    env: Annotated[
        str | None,
        typer.Option(
            help="Environment that provides the rows.",
            show_default="the preset's, or one that fits",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check an algorithm on rows that it acts itself.

    Ratio, purity, statistics, parts, bootstraps, greedy actions.
    Its settings can be given as options: --algorithm.discount 0.9.
    """
    from penstock.flows.cli.check import check_one_algorithm, print_reports

    where = f" on {env}" if env else ""
    with ExitStack() as stack:
        working = Working(f"checking {target}{where} (torch is loaded first)", quiet=as_json)
        report = check_one_algorithm(target, env, context.args, announce=lambda: stack.enter_context(working))
    if as_json:
        typer.echo(json.dumps(report.as_json(), indent=2))
    else:
        print_reports([report], Console())
    if not report.passed:
        raise typer.Exit(1)

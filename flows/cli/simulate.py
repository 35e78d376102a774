"""`penstock simulate`: runs the storage protocol in a virtual world with faults, a schedule a seed."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from penstock.flows.cli.training import AsJson  # noqa: TC001  (typer reads annotations)
from penstock.flows.display.console import print_table
from penstock.flows.display.working import Working

if TYPE_CHECKING:
    from penstock.tasks.simulation.runner import SimulationReport

_VIOLATIONS_SHOWN = 20


def simulate(
    seeds: Annotated[int, typer.Option(min=1, help="Number of schedules.")] = 1000,
    first: Annotated[int, typer.Option(min=0, help="Seed of the first schedule.")] = 1,
    seed: Annotated[int | None, typer.Option(min=0, help="Run this one schedule, and print all its steps.")] = None,
    processes: Annotated[int, typer.Option(min=1, help="Processes that share the work.")] = 1,
    coverage: Annotated[bool, typer.Option("--coverage", help="Print the faults by kind and protocol step.")] = False,
    as_json: AsJson = False,
) -> None:
    """Simulate runs with faults, in virtual time.

    It runs the real code of the storage protocol, and exits with 1 if a run ends with other bytes.
    A seed decides when processes are killed, paused or lose power, which requests fail, are lost or land late, and
    which notifications arrive. Every schedule must end with the bytes of an undisturbed run.
    """
    with Working("simulating", "schedules", quiet=as_json) as working:
        from penstock.tasks.simulation import runner

        if seed is not None:
            _replay(seed, as_json=as_json)
            return
        report = runner.simulate(
            range(first, first + seeds), processes, lambda so_far: working.update(so_far.schedules, seeds)
        )
    if as_json:
        values = {**asdict(report), "coverage": dict(report.table())}
        typer.echo(json.dumps(values, indent=2))
    else:
        _print(report, coverage=coverage)
    if report.violations:
        raise typer.Exit(1)


def _replay(seed: int, *, as_json: bool) -> None:
    from penstock.tasks.simulation.schedule import run_schedule

    outcome = run_schedule(seed, traced=True)
    if as_json:
        values = {"seed": seed, "plan": str(outcome.plan), "trace": outcome.trace, "violation": outcome.violation}
        typer.echo(json.dumps(values, indent=2))
    else:
        typer.echo(f"seed {seed}: {outcome.plan}")
        for line in outcome.trace:
            typer.echo(line)
        typer.echo(f"seed {seed}: {outcome.violation or 'all that must hold did'}")
    if outcome.violation:
        raise typer.Exit(1)


def _print(report: SimulationReport, *, coverage: bool) -> None:
    console = Console(soft_wrap=True, highlight=False, markup=False)
    if coverage:
        kinds = sorted({kind for kind, _ in report.coverage})
        print_table(
            [{"step": step} | {kind: f"{counts.get(kind, 0):,}" for kind in kinds} for step, counts in report.table()]
        )
    console.print(
        f"{report.schedules:,} schedules, {report.steps:,} operations, {report.faults:,} faults at "
        f"{len(report.coverage):,} pairs of kind and step; "
        f"{report.schedules / max(report.processor_seconds, 1e-9):.0f} schedules per processor second; at most "
        f"{report.quiet_seconds:.0f} virtual seconds from the last fault to the next commit"
    )
    for seed, violation in list(report.violations.items())[:_VIOLATIONS_SHOWN]:
        console.print(f"seed {seed}: {violation}", markup=False)
    found = len(report.violations)
    console.print(
        f"{found:,} violations; `penstock simulate --seed {next(iter(report.violations))}` shows the first step by step"
        if found
        else "all that must hold did"
    )

"""`penstock check-env`: what is checked, and how it is shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from native.check import check_header, check_id
from native.compiler import CompilerNotFoundError
from storage.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from native.check import Report

_MARKS = {"pass": "[green]ok  [/]", "fail": "[red]FAIL[/]", "skip": "[yellow]skip[/]"}


def check(target: str, *, resources: str, sanitize: bool, **options: Any) -> list[Report]:
    """Check what a person names: a file if there is one of that name, otherwise an id.

    Raises:
        ConfigError: There is neither, or no compiler.
    """
    if Path(target).is_file():
        try:
            return check_header(Path(target), resources=resources, sanitize=sanitize, **options)
        except CompilerNotFoundError as error:
            raise ConfigError(str(error)) from error
    if Path(target).suffix in {".hpp", ".h", ".hh", ".hxx"}:
        raise ConfigError(f"there is no header {target!r}")
    try:
        return [check_id(target)]
    except ValueError as error:
        raise ConfigError(str(error)) from error


def print_reports(reports: list[Report], console: Console) -> None:
    """A line a check, what it says below it if it fails, and the verdict."""
    for report in reports:
        if report.id:
            console.print(report.id, style="bold", highlight=False)
        for line in report.checks:
            detail = f": {line.detail}" if line.detail else ""
            console.print(f"  {_MARKS[line.outcome]} ", end="")
            console.print(f"{line.name}{detail}", highlight=False, markup=False, soft_wrap=True)
        if report.speed:
            step, call = report.speed["ns_per_step"], report.speed["ns_per_call"]
            console.print(
                f"       {step:,.0f} ns a step; a call costs {call:,.0f} ns beside its steps, which is "
                f"{call / (call + 64 * step):.0%} of a call that steps 64 environments",
                highlight=False,
                soft_wrap=True,
            )
        failed = sum(line.outcome == "fail" for line in report.checks)
        console.print(f"{failed} failed" if failed else "all is well", style="red" if failed else "green")

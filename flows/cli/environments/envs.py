"""`penstock envs`: lists the ids of environments that can be made here, by the library that steps them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from penstock.flows.cli.training import AsJson  # noqa: TC001  (typer reads annotations)
from penstock.flows.display.console import print_table
from penstock.flows.display.working import Working
from penstock.storage.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.native.registry.families import Family

_SHOWN = 6
"""Ids of a family that are shown without --all."""
_MEANINGS = {
    "state": "restored by state: a run continues its episodes from the state that it saved",
    "replay": "restored by replay: a run starts new episodes in each stage, and repeats a stage's actions if it must",
}


def envs(
    pattern: Annotated[
        str | None,
        typer.Argument(help="Part of an id, or all of it with * and ?; capitals do not matter.", show_default="all"),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Print every id, not only the first ones.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the ids of environments that can be made here.

    By the library that steps them: whether it is installed, what installs it, and how a run restores its environments.
    """
    with Working("asking the libraries that are installed", quiet=as_json):
        from penstock.native.registry.families import families

        found = families(pattern or "")
    if as_json:
        typer.echo(json.dumps([family.as_json() for family in found], indent=2))
    elif not found:
        raise ConfigError(
            f"no id that can be made here matches '{pattern}'; `penstock envs` lists the families, and the "
            f"commands that install what is missing"
        )
    else:
        _print(found, every=every or pattern is not None)


def _print(found: Sequence[Family], *, every: bool) -> None:
    print_table(
        [
            {
                "family": family.name,
                "ids": len(family.ids),
                "installed": "yes" if family.installed else "no",
                "restored_by": family.restored,
            }
            for family in found
        ]
    )
    console = Console()
    for kind in sorted({family.restored for family in found}):
        console.print(f"  {_MEANINGS[kind]}", highlight=False, soft_wrap=True)
    for family in found:
        _print_ids(family, family.ids if every else family.ids[:_SHOWN], console)


def _print_ids(family: Family, shown: Sequence[str], console: Console) -> None:
    install = "" if family.install is None else f": {family.install}"
    lines = [f"  {name}" for name in shown]
    if len(shown) < len(family.ids):
        lines.append(f"  and {len(family.ids) - len(shown):,} more: --all")
    if family.note:
        lines.append(f"  ({family.note})")
    console.print(f"\n{family.name}{install}", style="bold", highlight=False, markup=False, soft_wrap=True)
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

"""`penstock new-env`: writes the files of a new environment, and says what to do with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from penstock.flows.cli.training import AsJson  # noqa: TC001  (typer reads annotations)
from penstock.storage.errors import ConfigError


def new_env(
    name: Annotated[str, typer.Argument(help="Of the package: lower-case words, as two-carts.")],
    folder: Annotated[Path, typer.Option(help="Where its folder is made.")] = Path(),
    as_json: AsJson = False,
) -> None:
    """Write a new environment: header, test, package.

    The header compiles as it is: a cart on a rail, with settings, a state and a picture.
    """
    from penstock.native.compile.new_package import write_package

    try:
        made = write_package(name, folder)
    except (ValueError, OSError) as error:
        raise ConfigError(str(error)) from error
    if as_json:
        made_of = {"folder": str(made.folder), "header": str(made.header), "id": made.id, "test": str(made.test)}
        typer.echo(json.dumps(made_of, indent=2))
        return
    typer.echo(f"{made.id} is in {made.folder}. Next:")
    for command, purpose in (
        (f"penstock check-env {made.header}", "check it"),
        (f"pytest {made.test}", "run its test (pip install pytest)"),
        (f"penstock train --environment.header {made.header}", "train on it"),
        (f"pip install --no-build-isolation {made.folder}", "install its package (scikit-build-core, cmake, ninja)"),
    ):
        typer.echo(f"  {command}  # {purpose}")

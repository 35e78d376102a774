"""`penstock envs` lists the ids of environments that can be made here; `serve-env` serves one over a socket."""

from __future__ import annotations

import contextlib
import json
import re
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


def serve_env(
    environment_id: Annotated[str, typer.Argument(metavar="ID", help="Id in Gymnasium's registry, or module:Id.")],
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than 127.0.0.1 need PENSTOCK_ENVIRONMENT_TOKEN.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 chooses a free one.")] = 7000,
    unix: Annotated[
        str | None, typer.Option(help="Path of a Unix socket, in place of host and port.", show_default=False)
    ] = None,
    seed_bits: Annotated[int, typer.Option(min=1, max=64, help="Bits of the largest seed that it takes.")] = 64,
    tls_certificate: Annotated[
        str | None, typer.Option(help="PEM file of a certificate: connections are encrypted.", show_default=False)
    ] = None,
    tls_key: Annotated[str | None, typer.Option(help="PEM file of the certificate's key.", show_default=False)] = None,
) -> None:
    """Serve an environment over a socket.

    Until Ctrl-C. A run connects with --environment.id socket/ID
    --environment.address HOST:PORT, and --environment.tls-certificate
    where there is one. docs/socket.md has the protocol.
    """
    if (tls_certificate is None) != (tls_key is None):
        given, missing = (
            ("--tls-key", "--tls-certificate") if tls_certificate is None else ("--tls-certificate", "--tls-key")
        )
        raise ConfigError(f"{given} is given without {missing}, expected both or neither")
    tls = None if tls_certificate is None or tls_key is None else (tls_certificate, tls_key)
    from penstock.native.adapters.gymnasium import gymnasium_types
    from penstock.tasks.environments.local_modules import search_working_directory

    if ":" in environment_id:  # module:Id
        search_working_directory()
    try:
        if re.search(r"-v\d+$", environment_id):  # Gymnasium takes the newest version where none is named
            gymnasium_types(environment_id)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    with contextlib.ExitStack() as stack:
        from penstock.native.sockets.server import serve_id, written

        address = written(host, port) if unix is None else f"unix:{unix}"
        try:
            working = Working("making the environment")
            server = serve_id(environment_id, address, seed_bits, tls, lambda: stack.enter_context(working))
        except ValueError as error:
            raise ConfigError(str(error)) from error
        except OSError as error:
            raise ConfigError(
                f"can't listen on {address}: {error.strerror or error}; choose another --port or --unix"
            ) from error
    typer.echo(f"socket/{server.name} at {server.address}; {'over TLS; ' if tls else ''}Ctrl-C ends it")
    with contextlib.suppress(KeyboardInterrupt):
        server.serve()
    server.close()


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

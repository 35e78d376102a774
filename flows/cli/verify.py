"""`penstock verify`: checks everything that a run has stored against its digests."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from penstock.flows.cli.training import AsJson, Store  # noqa: TC001  (typer reads annotations)
from penstock.flows.display.amounts import amount
from penstock.flows.display.plain import plain
from penstock.flows.display.working import Working
from penstock.storage.errors import CorruptObjectError
from penstock.storage.runs.run import USUAL_STORE


def verify(
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    repair: Annotated[bool, typer.Option("--repair", help="Remove damaged objects that a resume makes again.")] = False,
    since: Annotated[int, typer.Option(help="First stage whose commit and objects are verified.")] = 0,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Verify a run's commits and all its stored objects.

    The commits must be a chain, and each object must have the digest in its name.
    Exits with 1 if something that the run needs is damaged or missing, which --repair can't make again. The run may be
    driven meanwhile, but not with --repair.
    """
    from penstock.storage.runs.lease import refuse_driven
    from penstock.storage.runs.run import RUN, RunFolder
    from penstock.storage.runs.verification import last_to_verify, verify_run
    from penstock.storage.runs.verification import repair as remove_damaged
    from penstock.storage.stores.open import open_store

    folder = RunFolder(open_store(store or USUAL_STORE), run)
    last_to_verify(folder, since)
    has_description = folder.exists()
    if repair or not has_description:  # a copy and a fork make `run.json` last
        refuse_driven(folder.store)
    with Working(f"verifying run {run}", quiet=as_json) as working:
        found = verify_run(folder, since, working.update)
    removed, refusal = [], ""
    if repair:
        try:
            removed = remove_damaged(folder, found.faults)
        except CorruptObjectError as error:
            refusal = str(error)
    needed = [fault for fault in found.faults if fault.committed]
    left = len(found.faults) - len(needed) - len(removed)
    if as_json:
        not_repaired = [fault.name for fault in found.faults if fault.name not in removed] if repair else []
        more = {"removed": removed, "not_repaired": not_repaired, "refusal": refusal}
        typer.echo(json.dumps({**asdict(found), **more}, indent=2))
    else:
        console = Console(soft_wrap=True, highlight=False, markup=False)
        only_copy = "the run needs it, and --repair can't make it again" if repair else "the run needs it"
        for fault in found.faults:
            problem = "removed, a resume makes it again" if fault.name in removed else fault.problem
            remedy = f" ({only_copy}: restore it from a copy)" if fault.committed else " (no commit names it)"
            if fault.name == RUN and not has_description:
                remedy = ""  # the problem has one of its own
            console.print(plain(f"{fault.name}: {problem}{remedy}"), markup=False)
        console.print(
            f"verified {amount(found.commits, 'commits')} and {amount(found.objects, 'objects')} of run {run}: "
            f"{f'{len(needed)} damaged or missing' if needed else 'intact'}"
            f"{f', {len(removed)} removed' if removed else ''}"
            f"{f', {found.foreign} files of other programs' if found.foreign else ''}"
        )
        if refusal:
            console.print(plain(f"--repair removed nothing: {refusal}"), markup=False)
        elif left:
            console.print(
                f"{left} damaged objects are named by no commit, as a power cut leaves them, and not needed: "
                f"`{folder.command('verify', '--repair')}` removes them"
            )
    if needed or refusal:
        raise typer.Exit(1)

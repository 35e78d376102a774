"""`penstock export`: a run's policy, episodes or curves in another format."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path  # noqa: TC003  (typer reads annotations)
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from penstock.flows.cli.exchange import print_counts
from penstock.flows.cli.training import AsJson, Store, Trust  # noqa: TC001  (the same)
from penstock.flows.display.working import Working
from penstock.storage.errors import ConfigError
from penstock.storage.runs.run import USUAL_STORE

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.storage.runs.run import RunFolder

_POLICY_FORMATS = ("onnx", "torch")
_FORMATS = (*_POLICY_FORMATS, "minari", "tensorboard")
_BY_ENDING = {".onnx": "onnx", ".pt2": "torch", ".pt": "torch"}


def export(
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    path: Annotated[
        Path,
        typer.Argument(help="A policy's file, a new folder for a dataset, or TensorBoard's logdir."),
    ],
    to: Annotated[
        str | None,
        typer.Option(
            help="Its format: onnx, torch, minari or tensorboard.",
            show_default="onnx for a name in .onnx, torch for one in .pt2 or .pt, otherwise minari",
        ),
    ] = None,
    version: Annotated[
        str | None, typer.Option(help="Of a policy: newest, best, or a number.", show_default="newest")
    ] = None,
    from_stage: Annotated[
        int | None,
        typer.Option(
            min=0, help="Of episodes: the first stage. Those that began before are left out.", show_default="0"
        ),
    ] = None,
    trust: Trust = False,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Write a run's policy, episodes or curves as files.

    onnx and torch: the policy, with normalisers and the scaling of actions, for onnxruntime or torch.export.load; an
    existing file is replaced. minari: the committed episodes, whole, as a dataset that other tools train from.
    tensorboard: FOLDER/RUN, over environment steps, and the settings as hparams; exporting again replaces it.
    """
    from penstock.storage.runs.run import RunFolder
    from penstock.storage.stores.open import open_store
    from penstock.storage.transfer.replacing import require_file, require_folder
    from penstock.tasks.data.input.run_selection import exported_stages, require_committed
    from penstock.tasks.inference.finding import check_policy, parse_version
    from penstock.tasks.setup.config.consent import record_consent, require_consent

    where = store or USUAL_STORE
    to = to or _BY_ENDING.get(path.suffix.lower(), "minari")
    if to not in _FORMATS:
        raise ConfigError(f"the format {to!r} is not known, expected 'onnx', 'torch', 'minari' or 'tensorboard'")
    if from_stage is not None and to != "minari":
        raise ConfigError(
            f"--from-stage {from_stage}: only episodes are exported by stage, and --to is {to}; leave it out"
        )
    if to in _POLICY_FORMATS:
        wanted = parse_version(version or "newest")
        require_file(path)
        check_policy(run, wanted, where, trust=trust)
        with Working(f"exporting the policy of run {run} (torch is loaded first)", quiet=as_json):
            from penstock.tasks.inference.export import export_policy
            from penstock.tasks.inference.loading import load_policy

            about = export_policy(load_policy(run, wanted, store=where), path, to)
        if as_json:
            typer.echo(json.dumps(about, indent=2))
        else:
            _print_program(about, path)
        return
    if version is not None:
        raise ConfigError(f"--version {version}: only policies have versions, and --to is {to}; leave it out")
    folder = RunFolder(open_store(where), run)
    if trust:
        record_consent(folder)
    if to == "tensorboard":
        require_committed(folder)
        require_folder(path)
    else:
        exported_stages(folder, from_stage or 0)
        require_consent(folder)
        require_folder(path, empty=True)
    with Working(f"exporting run {run} to {path}", "steps", quiet=as_json) as working:
        counts = _export_to(to, folder, path, working.update, from_stage or 0)
    print_counts("exported", counts, as_json)


def _export_to(
    kind: str, run: RunFolder, path: Path, on_progress: Callable[[int, int], None], from_stage: int
) -> dict[str, int]:
    """Write a run's episodes as a dataset, or its curves for TensorBoard; return counts of what was written."""
    if kind == "tensorboard":
        from penstock.flows.report.tensorboard import write_events
        from penstock.tasks.analysis.history import read_history

        return write_events(read_history(run, most_stages=(run.log.newest_stage() or 0) + 1), path)
    from penstock.tasks.data.datasets.minari import export_run, spaces_of

    return asdict(export_run(run, path, *spaces_of(run), on_progress=on_progress, from_stage=from_stage))


def _print_program(about: dict[str, Any], path: Path) -> None:
    console = Console()
    origin = about["origin"]
    console.print(
        f"exported version {origin['version']} of run {origin['run']} to {path}", highlight=False, markup=False
    )
    for side in ("inputs", "outputs"):
        for each in about[side]:
            shape = ", ".join(map(str, each["shape"]))
            console.print(f"  {side[:-1]} {each['name']}: {each['dtype']} ({shape})", highlight=False, markup=False)
    console.print("zero noise gives the greedy action", highlight=False)

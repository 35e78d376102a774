"""Exports a run's curves as a TensorBoard event file: scalars over environment steps, and settings as hparams.

A tracker writes into the same folders, so both tell runs of one name apart by a file beside the events.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING

from penstock.flows.observers.callbacks.records import record_of, run_start
from penstock.flows.report.scalars import stage_scalars
from penstock.flows.settings.listing import flat_settings
from penstock.storage.errors import ConfigError
from penstock.storage.transfer.replacing import replacing

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.flows.observers.callbacks.records import RunStart
    from penstock.tasks.analysis.history import History

EVENTS = "events.out.tfevents.penstock"
_ABOUT = "penstock.json"
"""File beside the events with the id of the run that they are of."""
_OF_THE_SETTINGS = (bool, int, float, str)
HPARAM_METRICS = ("return/evaluation", "return/acting")


def write_events(history: History, folder: Path) -> dict[str, int]:
    """Write `<folder>/<run>/events.out.tfevents.penstock`, which replaces an earlier export.

    Where that folder is another run's of the same name, it is `<folder>/<run>-<id>/`.

    Wall times are the stages' ends, so the same commits and timings give the same events.

    Returns:
        The numbers of `scalars` and `stages` in the file.

    Raises:
        ConfigError: a package is missing, nothing is committed, or the folder can't be written.
    """
    try:
        from tensorboardX.proto.event_pb2 import Event  # noqa: PLC0415  (an extra)
        from tensorboardX.record_writer import RecordWriter  # noqa: PLC0415
        from tensorboardX.summary import hparams, scalar  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError("TensorBoard's files need a package: pip install 'penstock-rl[tensorboard]'") from error
    if not history.stages:
        raise ConfigError(f"run '{history.run.name}' has committed nothing yet; export after its first stage")
    wall = _created(history)
    events = [Event(wall_time=wall, file_version="brain.Event:2")]
    events += [
        Event(wall_time=wall, summary=one)
        for one in hparams(hparams_of(history.config), dict.fromkeys(HPARAM_METRICS, 0.0))
    ]
    scalars = 0
    evaluations: dict[int, Mapping[str, float]] = {one["version"]: one for one in history.evaluations}
    for stage in history.stages:
        if stage.timings:
            wall = stage.timings.started_at + stage.timings.stage_seconds
        record = record_of(history.run.name, stage)
        for tag, value in stage_scalars(record, evaluations.get(record.version)).items():
            summary = scalar(tag, value)
            events.append(Event(wall_time=wall, step=stage.commit.env_steps, summary=summary))
            scalars += 1
    try:
        target = folder_of(folder, run_start(history.run, None), or_unnamed=True) / EVENTS
        with replacing(target) as part:
            writer = RecordWriter(str(part))
            for event in events:
                writer.write(event.SerializeToString(deterministic=True))
            writer.close()
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}; choose a folder that is writable") from None
    return {"scalars": scalars, "stages": len(history.stages)}


def folder_of(root: Path, start: RunStart, *, or_unnamed: bool = False) -> Path:
    """Return the folder of a run's events below `root`, which is made if it is not there.

    Args:
        root: the folder of several runs' curves.
        start: says which run.
        or_unnamed: take one of the run's name that does not say whose it is, as an earlier version left it.

    Raises:
        OSError: it can't be made or written.
    """
    about = json.dumps({"id": start.id, "run": start.run, "store": start.store}) + "\n"
    own = {start.id, None} if or_unnamed else {start.id}
    folder = root / start.run
    if folder.exists() and _id_in(folder) not in own:
        folder = root / f"{start.run}-{start.id[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    if _id_in(folder) != start.id:
        with replacing(folder / _ABOUT) as part:
            part.write_text(about, encoding="utf-8")
    return folder


def _id_in(folder: Path) -> str | None:
    try:
        found = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return str(found.get("id")) if isinstance(found, dict) else None


def hparams_of(settings: Mapping[str, object]) -> dict[str, bool | int | float | str]:
    """Return stored settings by path, as hparams can have them."""
    return {
        path: value if isinstance(value, _OF_THE_SETTINGS) else json.dumps(value)
        for path, value in flat_settings(settings).items()
        if value is not None
    }


def _created(history: History) -> float:
    try:
        return datetime.fromisoformat(str(history.description.get("created"))).timestamp()
    except ValueError:
        return 0.0

"""Exports a run's curves as a TensorBoard event file: scalars over environment steps, and settings as hparams."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING

from penstock.flows.observers.callbacks.records import record_of
from penstock.flows.report.scalars import stage_scalars
from penstock.flows.settings.listing import flat_settings
from penstock.storage.errors import ConfigError
from penstock.storage.transfer.replacing import replacing

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from penstock.tasks.analysis.history import History

_OF_THE_SETTINGS = (bool, int, float, str)
HPARAM_METRICS = ("return/evaluation", "return/acting")


def write_events(history: History, folder: Path) -> dict[str, int]:
    """Write `<folder>/<run>/events.out.tfevents.penstock`, which replaces an earlier export.

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
    target = folder / history.run.name / "events.out.tfevents.penstock"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as part:
            writer = RecordWriter(str(part))
            for event in events:
                writer.write(event.SerializeToString(deterministic=True))
            writer.close()
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}; choose a folder that is writable") from None
    return {"scalars": scalars, "stages": len(history.stages)}


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

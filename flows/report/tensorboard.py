"""Exports a run's curves as a TensorBoard event file: scalars over environment steps, and settings as hparams."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING

from penstock.flows.settings.listing import flat_settings
from penstock.storage.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from penstock.tasks.analysis.history import History, Stage

_OF_THE_SETTINGS = (bool, int, float, str)
_HPARAM_METRICS = ("return/evaluation", "return/acting")


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
        Event(wall_time=wall, summary=one) for one in hparams(_hparams(history), dict.fromkeys(_HPARAM_METRICS, 0.0))
    ]
    scalars = 0
    evaluations: dict[int, Mapping[str, float]] = {one["version"]: one for one in history.evaluations}
    for stage in history.stages:
        if stage.timings:
            wall = stage.timings.started_at + stage.timings.stage_seconds
        for tag, value in _scalars(stage, evaluations.get(stage.commit.version)):
            summary = scalar(tag, value)
            events.append(Event(wall_time=wall, step=stage.commit.env_steps, summary=summary))
            scalars += 1
    target = folder / history.run.name / "events.out.tfevents.penstock"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(".part")
        writer = RecordWriter(str(part))
        for event in events:
            writer.write(event.SerializeToString(deterministic=True))
        writer.close()
        part.replace(target)
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}; choose a folder that is writable") from None
    return {"scalars": scalars, "stages": len(history.stages)}


def _scalars(stage: Stage, concurrent: Mapping[str, float] | None) -> Iterator[tuple[str, float]]:
    """Yield a stage's values by tag; TensorBoard stores them with 32 bits."""
    metrics = dict(stage.commit.metrics)
    found: dict[str, float | None] = {"return/acting": metrics.pop("episode_return", None)}
    found["episode/length"] = metrics.pop("episode_length", None)
    for name, evaluation in (("evaluation", stage.commit.evaluation), ("evaluated_beside", concurrent)):
        found[f"return/{name}"] = evaluation["mean_return"] if evaluation else None
        if evaluation:
            found[f"return/{name}_least"] = evaluation.get("min_return")
            found[f"return/{name}_greatest"] = evaluation.get("max_return")
    found |= {f"learning/{name}": value for name, value in metrics.items()}
    found["speed/env_steps_per_second"] = stage.steps_per_second
    found["speed/learner_wait_share"] = stage.wait_share
    found["speed/stage_seconds"] = stage.seconds
    found["stored/missed_shards"] = stage.timings.missed_shards if stage.timings else None
    found["stored/shard_bytes"] = sum(ref.nbytes for ref in stage.commit.shards) or None
    found["progress/version"] = stage.commit.version
    found["progress/stage"] = stage.index
    for tag, value in found.items():
        if value is not None:
            yield tag, float(value)


def _hparams(history: History) -> dict[str, bool | int | float | str]:
    return {
        path: value if isinstance(value, _OF_THE_SETTINGS) else json.dumps(value)
        for path, value in flat_settings(history.config).items()
        if value is not None
    }


def _created(history: History) -> float:
    try:
        return datetime.fromisoformat(str(history.description.get("created"))).timestamp()
    except ValueError:
        return 0.0

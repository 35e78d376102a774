"""Names the curves of a run: the values of a stage by tag, the same for every tracker and export."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from penstock.flows.observers.callbacks.records import StageRecord

STAGE_TAG = "progress/stage"
"""The last tag of each stage."""


def stage_scalars(record: StageRecord, concurrent: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return a stage's values by tag, without those that are not known.

    Args:
        record: the stage.
        concurrent: an evaluation that was made beside training.
    """
    return {tag: float(value) for tag, value in _values(record, concurrent) if value is not None}


def _values(record: StageRecord, concurrent: Mapping[str, float] | None) -> Iterator[tuple[str, float | None]]:
    metrics = dict(record.metrics)
    yield "return/acting", metrics.pop("episode_return", None)
    yield "episode/length", metrics.pop("episode_length", None)
    for name, evaluation in (("evaluation", record.evaluation), ("evaluated_beside", concurrent)):
        if evaluation:
            yield f"return/{name}", evaluation["mean_return"]
            yield f"return/{name}_least", evaluation.get("min_return")
            yield f"return/{name}_greatest", evaluation.get("max_return")
    for name, value in metrics.items():
        yield f"learning/{name}", value
    yield "speed/env_steps_per_second", record.env_steps_per_second
    yield "speed/learner_wait_share", record.learner_wait_share
    yield "speed/stage_seconds", record.seconds
    yield "stored/missed_shards", record.missed_shards
    yield "stored/shard_bytes", record.shard_bytes or None
    yield "progress/version", record.version
    yield STAGE_TAG, record.stage

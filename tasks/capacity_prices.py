"""What a predicted deployment costs at given prices. Prices are inputs; the defaults are round examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.capacity_counts import kept_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tasks.capacity import Prediction
    from tasks.cost import Sizes

_HOUR_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Money an hour of training, in the unit of the prices."""

    machines: float
    requests: float
    storage: float
    """Of what an hour writes and keeps, for `kept_months`."""
    million_steps: float
    """All of it, for a million environment steps."""

    @property
    def hour(self) -> float:
        """All of it."""
        return self.machines + self.requests + self.storage


def cost(prediction: Prediction, sizes: Sizes, constants: Mapping[str, float]) -> Cost:
    """Of a prediction, at the prices among the constants. Removals of objects are free, as with S3's."""
    d = prediction.deployment
    processors = d.nodes * constants["cores_per_node"] + d.learners * constants["learner_cores"]
    machines = (processors + constants["control_cores"]) * constants["vcpu_hour_price"]
    if d.gpu:
        machines += d.learners * constants["gpu_hour_price"]
    hourly = {kind: _HOUR_SECONDS * prediction.per_second(count) for kind, count in prediction.requests.items()}
    requests = (hourly["put"] + hourly["list"]) * constants["write_request_price"]
    requests += (hourly["get"] + hourly["head"]) * constants["read_request_price"]
    gigabytes = _HOUR_SECONDS * prediction.per_second(kept_bytes(d, sizes)) / 1e9
    storage = gigabytes * constants["gigabyte_month_price"] * constants["kept_months"]
    hour = machines + requests + storage
    million = hour / (_HOUR_SECONDS * prediction.steps_per_second) * 1e6
    return Cost(machines, requests, storage, million)

"""The constants of the capacity model, each with its source: measured once, or assumed.

Measured ones are those that need a cluster, a Prefect server or a store; the seconds of a configuration's rounds are
measured when they are needed (`penstock.tasks.setup.planning.run_calibration`). Imports no torch.
"""

from __future__ import annotations

import difflib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.storage.errors import ConfigError
from penstock.tasks.setup.planning.operation_counts import kept_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.tasks.setup.planning.capacity_model import Prediction
    from penstock.tasks.setup.planning.traffic import Sizes


FILE = Path(__file__).with_name("measured_constants.json")


@dataclass(frozen=True, slots=True)
class Constant:
    """A number that predictions depend on."""

    name: str
    value: float
    unit: str
    meaning: str
    source: str
    """Date, machine and command of its measurement; or that it is assumed, or given."""


def constants() -> dict[str, Constant]:
    """Return all constants by name."""
    read = json.loads(FILE.read_text(encoding="utf-8"))
    return {name: Constant(name=name, **facts) for name, facts in read.items()}


def with_assumptions(given: Iterable[str], tried: Iterable[Constant] = ()) -> dict[str, Constant]:
    """Return the constants, with some values replaced.

    Args:
        given: Replacements, each `NAME=VALUE` as typed.
        tried: Further constants, measured just now.

    Raises:
        ConfigError: there is no constant of that name, or the value is not a number above 0.
    """
    found = {constant.name: constant for constant in tried} | constants()
    for text in given:
        name, _, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if name not in found:
            close = difflib.get_close_matches(name, found, 1)
            hint = f"did you mean {close[0]}? There are: " if close else "there are: "
            raise ConfigError(f"--assume {text}: there is no '{name}'; {hint}{', '.join(found)}")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf:
            raise ConfigError(f"--assume {text}: found '{value}', expected a number above 0, as in {name}=0.5")
        constant = found[name]
        found[name] = Constant(name, number, constant.unit, constant.meaning, "given by --assume")
    return found


_HOUR_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of an hour of training, in the unit of the prices."""

    machines: float
    requests: float
    storage: float
    """Cost of keeping for `kept_months` the bytes that an hour writes and keeps."""
    million_steps: float
    """Total cost of a million environment steps."""

    @property
    def hour(self) -> float:
        """Return the total cost of an hour."""
        return self.machines + self.requests + self.storage


def cost(prediction: Prediction, sizes: Sizes, constants: Mapping[str, float]) -> Cost:
    """Return a prediction's cost at the prices among the constants. Deleting objects is free, as on S3."""
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

"""The checks of an environment that the pool steps: the promises of the contract that the compiler cannot verify."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.native.conformance.environment_under_test import CheckedEnvironment
from penstock.native.conformance.report import Check, outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHECKS = (
    ("spaces contain what is observed", CheckedEnvironment.check_spaces),
    ("every number is finite", CheckedEnvironment.check_finite),
    ("actions at and beyond the bounds", CheckedEnvironment.check_extremes),
    ("an episode allows at least one choice", CheckedEnvironment.check_mask),
    ("the same seed, the same episodes", CheckedEnvironment.check_same_seed),
    ("other seeds, other episodes", CheckedEnvironment.check_other_seeds),
    ("one thread equals three, bit for bit", CheckedEnvironment.check_threads),
    ("64 environments equal four times 16, bit for bit", CheckedEnvironment.check_groups),
    ("a restored state resumes, bit for bit", CheckedEnvironment.check_restore),
    ("the time limit: both flags and the final observation", CheckedEnvironment.check_time_limit),
    ("gymnasium.utils.env_checker", CheckedEnvironment.check_gymnasium),
)
NAMES = tuple(name for name, _ in _CHECKS)
"""Names of the checks in their order."""


def native_checks(environment_id: str) -> Iterator[Check]:
    """Yield each check when it was made; a single failed one if no environment can be made."""
    try:
        environment = CheckedEnvironment(environment_id)
    except Exception as error:  # noqa: BLE001  whatever its constructor throws, or its configuration's check says
        yield Check("can be made with its defaults", "fail", str(error))
        return
    for name, check in _CHECKS:
        yield outcome(name, lambda check=check: check(environment))  # type: ignore[misc]


def measured(environment_id: str) -> dict[str, float]:
    """Return what a step and a call cost; see `Report.speed`."""
    return CheckedEnvironment(environment_id).measure()

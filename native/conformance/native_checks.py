"""The checks of an environment that the pool steps: the promises of the contract that the compiler cannot verify."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.native.conformance.environment_under_test import CheckedEnvironment
from penstock.native.conformance.report import Check, outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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


def native_checks(environment_id: str) -> Iterator[tuple[str, Callable[[], Check]]]:
    """Yield each check with its name, to be made before the next one is asked for.

    The first one makes the environment, and is the only one if that fails.
    """
    made: list[CheckedEnvironment] = []

    def make() -> str:
        made.append(CheckedEnvironment(environment_id))
        return ""

    name = "can be made with its defaults"
    yield name, lambda: outcome(name, make, str)
    for each, check in _CHECKS if made else ():
        yield each, partial(outcome, each, partial(check, made[0]))


def measured(environment_id: str) -> dict[str, float]:
    """Return what a step and a call cost; see `Report.speed`."""
    return CheckedEnvironment(environment_id).measure()

"""Reports of checks: the checks of one environment or algorithm, and what a step costs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

Outcome = Literal["pass", "fail", "skip"]


class CheckFailedError(Exception):
    """Reports a violated guarantee; a check raises it."""


class SkippedError(Exception):
    """Reports why a check does not apply."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its name, outcome and remark."""

    name: str
    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All checks of one environment or algorithm."""

    id: str
    checks: tuple[Check, ...]
    speed: dict[str, float] = field(default_factory=dict)
    """ns_per_step; ns_per_call: the cost of a call of step_round without its steps, Python included. Where another
    library steps the environment, ns_per_step alone has both."""

    @property
    def passed(self) -> bool:
        """Return whether no check failed."""
        return all(check.outcome != "fail" for check in self.checks)

    def as_json(self) -> dict[str, object]:
        """Return the report as plain data."""
        return {**asdict(self), "passed": self.passed}


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def outcome(name: str, check: Callable[[], str], describe: Callable[[Exception], str] = _described) -> Check:
    """Make a check; its outcome is also what the environment or algorithm raises, in the words of `describe`."""
    try:
        return Check(name, "pass", check())
    except SkippedError as reason:
        return Check(name, "skip", str(reason))
    except CheckFailedError as failure:
        return Check(name, "fail", str(failure))
    except Exception as error:  # noqa: BLE001  (an author's code may raise anything)
        return Check(name, "fail", describe(error))

"""Checks of an environment: what the contract promises and the compiler cannot see.

`check_header` compiles it first, and once more under sanitizers. A check that fails says where; what an environment
throws fails the check that it was thrown in.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from native.compiler import CompileError
from native.load import load
from native.registry import make_own
from native.sanitize import run_sanitized
from native.subject import CheckFailedError, SkippedError, Subject

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

Outcome = Literal["pass", "fail", "skip"]


@dataclass(frozen=True, slots=True)
class Check:
    """One line: what was checked, how it went, and what there is to say."""

    name: str
    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All checks of one environment."""

    id: str
    checks: tuple[Check, ...]
    speed: dict[str, float] = field(default_factory=dict)
    """ns_per_step; ns_per_call: what a call of step_round costs beside its steps, Python included."""

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(check.outcome != "fail" for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "passed": self.passed}


def check_header(
    source: str | os.PathLike[str],
    *,
    environments: Sequence[str] = (),
    flags: Sequence[str] = (),
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    libraries: Sequence[str] = (),
    resources: str | os.PathLike[str] = "",
    sanitize: bool = True,
) -> list[Report]:
    """Compile a header as `load` does, and check every environment in it, under sanitizers too."""
    options: dict[str, Any] = {"environments": environments, "include_dirs": include_dirs, "libraries": libraries}
    try:
        library = load(source, flags=flags, resources=resources, **options)
    except (CompileError, ValueError) as error:
        return [Report("", (Check("compiles", "fail", str(error)),))]
    how = f"in {library.seconds:.1f} s" if library.compiled else "earlier; nothing has changed since"
    reports = []
    for environment_id in library.environment_ids:
        report = check_id(environment_id)
        checks = [Check("compiles", "pass", how), *report.checks]
        if sanitize:
            outcome, detail = run_sanitized(environment_id, source, flags, str(resources), options)
            checks.append(Check("address and undefined-behaviour sanitizers", outcome, detail))
        reports.append(Report(environment_id, tuple(checks), report.speed))
    return reports


def check_id(environment_id: str) -> Report:
    """Check an environment that this package steps.

    Raises:
        ValueError: There is none of that id.
    """
    make_own(environment_id, 1).close()
    subject = Subject(environment_id)
    checks: list[Check] = []
    for name, check in (
        ("spaces contain what is observed", subject.check_spaces),
        ("every number is finite", subject.check_finite),
        ("actions at and beyond the bounds", subject.check_extremes),
        ("the same seed, the same episodes", subject.check_same_seed),
        ("other seeds, other episodes", subject.check_other_seeds),
        ("one thread equals three, bit for bit", subject.check_threads),
        ("a restored state goes on, bit for bit", subject.check_restore),
        ("the time limit: both flags and the final observation", subject.check_time_limit),
        ("gymnasium.utils.env_checker", subject.check_gymnasium),
    ):
        checks.append(_outcome(name, check))
    broken = any(check.outcome == "fail" for check in checks)
    return Report(environment_id, tuple(checks), {} if broken else subject.measure())


def _outcome(name: str, check: Callable[[], str]) -> Check:
    try:
        return Check(name, "pass", check())
    except SkippedError as reason:
        return Check(name, "skip", str(reason))
    except CheckFailedError as failure:
        return Check(name, "fail", str(failure))
    except Exception as error:  # noqa: BLE001 whatever an environment throws, or Gymnasium's checker says
        return Check(name, "fail", f"{type(error).__name__}: {error}")

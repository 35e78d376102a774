"""Checks of an environment: the promises of the contract that the compiler cannot verify.

`check_header` compiles it first, and once more under sanitizers. A check that fails says where; what an environment
throws fails the check that it was thrown in.
"""

from __future__ import annotations

import warnings
from contextlib import closing
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from penstock.native.compile.compiler import CompileError
from penstock.native.compile.load import BuildOptions, load
from penstock.native.conformance.environment_under_test import CheckedEnvironment, CheckFailedError, SkippedError
from penstock.native.conformance.sanitizers import run_sanitized
from penstock.native.conformance.wrapped import CheckedWrapped
from penstock.native.registry.registry import is_native, make_native

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

Outcome = Literal["pass", "fail", "skip"]


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its name, outcome and remark."""

    name: str
    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All checks of one environment."""

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
    options = BuildOptions(environments=environments, include_dirs=include_dirs, libraries=libraries)
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


def check_id(environment_id: str, server: Mapping[str, str] = MappingProxyType({})) -> Report:
    """Check an environment by its id; one that another library steps has fewer checks.

    Args:
        environment_id: As `native.make` takes it.
        server: `address` and `tls_certificate` of the server of an id such as `socket/Name`, as `native.make` takes
            them.

    Raises:
        ValueError: There is none of that id, or it cannot be made.
    """
    if not is_native(environment_id):
        return _check_wrapped(environment_id, server)
    make_native(environment_id, 1).close()
    environment = CheckedEnvironment(environment_id)
    checks: list[Check] = []
    for name, check in (
        ("spaces contain what is observed", environment.check_spaces),
        ("every number is finite", environment.check_finite),
        ("actions at and beyond the bounds", environment.check_extremes),
        ("the same seed, the same episodes", environment.check_same_seed),
        ("other seeds, other episodes", environment.check_other_seeds),
        ("one thread equals three, bit for bit", environment.check_threads),
        ("a restored state resumes, bit for bit", environment.check_restore),
        ("the time limit: both flags and the final observation", environment.check_time_limit),
        ("gymnasium.utils.env_checker", environment.check_gymnasium),
    ):
        checks.append(_outcome(name, check))
    broken = any(check.outcome == "fail" for check in checks)
    return Report(environment_id, tuple(checks), {} if broken else environment.measure())


def _check_wrapped(environment_id: str, settings: Mapping[str, Any]) -> Report:
    """Check one that another library steps, as a run with these settings and those that it needs."""
    with closing(CheckedWrapped(environment_id, settings)) as wrapped, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium's, of what the checks report
        found = tuple(_outcome(name, check) for name, check in wrapped.checks())
        failed = any(check.outcome == "fail" for check in found)
        return Report(environment_id, found, {} if failed else wrapped.measure())


def _outcome(name: str, check: Callable[[], str]) -> Check:
    try:
        return Check(name, "pass", check())
    except SkippedError as reason:
        return Check(name, "skip", str(reason))
    except CheckFailedError as failure:
        return Check(name, "fail", str(failure))
    except Exception as error:  # noqa: BLE001 whatever an environment throws, or Gymnasium's checker says
        return Check(name, "fail", f"{type(error).__name__}: {error}")

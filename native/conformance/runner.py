"""Checks environments: by their id, or by the header that they are in.

`check_header` compiles it first, and once more under sanitizers. A check that fails says where; what an environment
throws fails the check that it was thrown in.
"""

from __future__ import annotations

import time
import warnings
from contextlib import ExitStack, closing
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from penstock.native.compile.compiler import CompileError, CompilerNotFoundError
from penstock.native.compile.load import BuildOptions, as_list, build_of
from penstock.native.conformance.native_checks import measured, native_checks
from penstock.native.conformance.report import Check, Report, outcome
from penstock.native.conformance.sanitizers import run_sanitized
from penstock.native.conformance.separate_process import check_library
from penstock.native.conformance.wrapped import CheckedWrapped
from penstock.native.registry.registry import is_native, make

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence


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
    """Compile a header as `load` does, and check every environment in it in another process, under sanitizers too.

    Raises:
        CompilerNotFoundError: There is no compiler.
    """
    options = BuildOptions(environments=environments, include_dirs=include_dirs, libraries=libraries)
    started = time.perf_counter()
    try:
        library, compiled = build_of(source, flags=["-O3", *as_list(flags, "flags")], **options).result()
    except CompilerNotFoundError:
        raise
    except (CompileError, RuntimeError, ValueError) as error:
        return [Report("", (Check("compiles", "fail", str(error)),))]
    how = f"in {time.perf_counter() - started:.1f} s" if compiled else "earlier; nothing has changed since"
    reports = []
    for report in check_library(library, str(resources)):
        checks = [Check("compiles", "pass", how), *report.checks]
        if sanitize and report.id:
            found, detail = run_sanitized(report.id, source, flags, str(resources), options)
            checks.append(Check("address and undefined-behaviour sanitizers", found, detail))
        reports.append(Report(report.id, tuple(checks), report.speed))
    return reports


def check_id(
    environment_id: str,
    settings: Mapping[str, Any] = MappingProxyType({}),
    announce: Callable[[], object] = lambda: None,
) -> Report:
    """Check an environment by its id; one that another library steps has fewer checks.

    Args:
        environment_id: As `native.make` takes it.
        settings: Of one that another library steps, as `native.make` takes them: `structured` and `action_mask`, which
            are found out of Gymnasium's and a server's where they are left out, `wrappers`, `address` and so on.
        announce: Called before the checks, when the environment could be made.

    Raises:
        ValueError: There is none of that id, or it cannot be made with these settings.
    """
    if not is_native(environment_id):
        return _check_wrapped(environment_id, settings, announce)
    make(environment_id, 1, one_array=True, **settings).close()
    if settings:
        raise ValueError(
            f"{environment_id} is checked with its own settings, and {', '.join(settings)} is given: leave it out"
        )
    announce()
    checks = tuple(check() for _, check in native_checks(environment_id))
    broken = any(check.outcome == "fail" for check in checks)
    return Report(environment_id, checks, {} if broken else measured(environment_id))


def _check_wrapped(environment_id: str, settings: Mapping[str, Any], announce: Callable[[], object]) -> Report:
    """Check one that another library steps, as a run with these settings and those that it needs."""
    with warnings.catch_warnings(), ExitStack() as stack:
        warnings.simplefilter("ignore")  # Gymnasium's, of what the checks report
        wrapped = stack.enter_context(closing(CheckedWrapped(environment_id, settings)))
        announce()
        found = tuple(outcome(name, check) for name, check in wrapped.checks())
        failed = any(check.outcome == "fail" for check in found)
        return Report(environment_id, found, {} if failed else wrapped.measure())

"""Finds what `penstock check-env` and `check-algorithm` check, runs the checks, and prints their reports."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.flows.settings.options import configured, parse_overrides
from penstock.native.compile.compiler import CompilerNotFoundError
from penstock.native.conformance.runner import check_header, check_id
from penstock.native.sockets.client import ADDRESS_VARIABLE
from penstock.native.sockets.source import PREFIX as SOCKET
from penstock.storage.errors import ConfigError
from penstock.tasks.conformance.small_run import small_run
from penstock.tasks.environments.local_modules import search_working_directory
from penstock.tasks.environments.typed_settings import arguments_of
from penstock.tasks.environments.wrappers import wrappers_of
from penstock.tasks.setup.config.custom_algorithm import CUSTOM
from penstock.tasks.setup.config.loading import (
    REPLAY_PRESETS_FOLDER,
    build_config,
    choices_of,
    load_preset,
    presets,
    with_overrides,
)
from penstock.tasks.setup.config.replay import ReplayConfig, build_replay_config
from penstock.tasks.setup.config.run import TrainConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import Console

    from penstock.native.conformance.report import Report
    from penstock.tasks.setup.config.environment import EnvironmentSettings
    from penstock.tasks.setup.config.run import RunConfig


_ENVIRONMENT = "CartPole-v1"
"""The environment in which an algorithm is checked unless the user names one."""
_ENVIRONMENTS = {
    **dict.fromkeys(("sac", "td3", "td3_bc"), "Pendulum-v1"),
    **dict.fromkeys(("mappo", "ippo"), "simple_spread_v3"),
}
"""The same by algorithm, of those that can't act in that one."""

_CHECKED_SETTINGS = ("structured", "action_mask", "wrappers", "settings")
"""Settings of a run's environment with which `check-env` checks one of another library."""
_SHOWN_HEADERS = 5
_MARKS = {"pass": "[green]ok  [/]", "fail": "[red]FAIL[/]", "skip": "[yellow]skip[/]"}


def check(
    target: str,
    *,
    resources: str,
    sanitize: bool,
    address: str | None = None,
    tls_certificate: str | None = None,
    settings: Sequence[str] = (),
    announce: Callable[[], object] = lambda: None,
    **options: Any,
) -> list[Report]:
    """Check the environment that the user names: a file if there is one of that name, otherwise an id.

    Args:
        target: a path or an id.
        resources: folder that a header's library is loaded with.
        sanitize: whether a header's environments run under sanitizers too.
        address: of a server.
        tls_certificate: of that server.
        settings: those of a run's environment, as typed: of one that another library steps.
        announce: called before the checks, which take a while, when no mistake was found.
        options: of a header.

    Raises:
        ConfigError: There is neither, or no compiler; or a server's address or certificate is given of what is behind
            no socket, or an address that the environment variable would replace; or a setting is none that is checked.
    """
    server = {"address": address, "tls_certificate": tls_certificate}
    given = {name: value for name, value in server.items() if value is not None}
    if given and not target.startswith(SOCKET):
        name, value = next(iter(given.items()))
        raise ConfigError(
            f"--{name.replace('_', '-')} {value} is given, and {target} is behind no socket: leave it out, or name a "
            f"server's environment as {SOCKET}NAME"
        )
    replaced_by = os.environ.get(ADDRESS_VARIABLE)
    if address is not None and replaced_by and replaced_by != address:
        raise ConfigError(
            f"--address {address} is given, and {ADDRESS_VARIABLE}={replaced_by} would replace it: unset the variable, "
            "or leave --address out"
        )
    if Path(target).is_file():
        if settings:
            raise ConfigError(f"{settings[0]} is given, and {target} is a header: leave it out")
        announce()
        try:
            return check_header(Path(target), resources=resources, sanitize=sanitize, **options)
        except CompilerNotFoundError as error:
            raise ConfigError(str(error)) from error
    if Path(target).suffix in {".hpp", ".h", ".hh", ".hxx"}:
        raise ConfigError(f"there is no header {target!r}")
    if ":" in target:  # module:Id
        search_working_directory()
    try:
        return [check_id(target, given | _arguments(target, settings), announce)]
    except ValueError as error:
        if Path(target).is_dir():
            below = (path for pattern in ("*.hpp", "*/*.hpp", "*/*/*.hpp") for path in Path(target).glob(pattern))
            headers = ", ".join(map(str, islice(below, _SHOWN_HEADERS))) or "none"
            raise ConfigError(f"'{target}' is a folder, expected a header; its headers: {headers}") from None
        raise ConfigError(str(error)) from error


def _arguments(environment_id: str, options: Sequence[str]) -> dict[str, Any]:
    """Return the settings of an environment that another library steps, as `native.make` takes them.

    Raises:
        ConfigError: one is not such a setting, or has no such value; or a wrapper can't be found.
    """
    overrides = parse_overrides(options, TrainConfig, after="the environment's id")
    given = overrides.pop("environment", {})
    if overrides or not set(given) <= {*_CHECKED_SETTINGS}:
        raise ConfigError(
            f"{' '.join(options)}: found a setting that check-env does not take, expected --environment.structured "
            f"true, --environment.action-mask info, --environment.wrappers LIST or --environment.settings.NAME VALUE; "
            f"leave it out"
        )
    config = build_config({"environment": {**given, "id": environment_id}}).environment
    wrappers = wrappers_of(config, environment_id)
    found: dict[str, Any] = {name: getattr(config, name) for name in ("structured", "action_mask") if name in given}
    return found | arguments_of(config, environment_id, 1) | ({"wrappers": wrappers} if wrappers else {})


def print_reports(reports: list[Report], console: Console) -> None:
    """Print one line per check, with its detail, and the verdict."""
    for report in reports:
        if report.id:
            console.print(report.id, style="bold", highlight=False, markup=False)
        for line in report.checks:
            detail = f": {line.detail}" if line.detail else ""
            console.print(f"  {_MARKS[line.outcome]} ", end="")
            console.print(f"{line.name}{detail}", highlight=False, markup=False, soft_wrap=True)
        if report.speed and "ns_per_call" not in report.speed:
            console.print(f"       {report.speed['ns_per_step']:,.0f} ns a step, call included", highlight=False)
        elif report.speed:
            step, call = report.speed["ns_per_step"], report.speed["ns_per_call"]
            console.print(
                f"       {step:,.0f} ns a step; a call costs {call:,.0f} ns on top of its steps, which is "
                f"{call / (call + 64 * step):.0%} of a call that steps 64 environments",
                highlight=False,
                soft_wrap=True,
            )
        failed = sum(line.outcome == "fail" for line in report.checks)
        console.print(f"{failed} failed" if failed else "all is well", style="red" if failed else "green")


def check_one_algorithm(
    target: str,
    environment_id: str | None,
    options: Sequence[str],
    *,
    announce: Callable[[], object] = lambda: None,
) -> Report:
    """Check the algorithm that the user names: a file, `file.py:Class`, `module:Class`, a built-in one, or a preset.

    Args:
        target: as typed.
        environment_id: provides the rows; None for the preset's own, and for one that the algorithm can act in where it
            has none.
        options: settings of the algorithm, and those of the environment; of a preset, any.
        announce: called before torch is imported and the checks begin, when no mistake was found.

    Raises:
        ConfigError: it does not exist, its settings are wrong, or it can't be constructed.
    """
    config, environment = _algorithm_and_environment(target, environment_id, options)
    small_run(config, environment)
    announce()
    from penstock.tasks.conformance.runner import check_algorithm

    return check_algorithm(config, environment)


def _algorithm_and_environment(
    target: str, environment_id: str | None, options: Sequence[str]
) -> tuple[RunConfig, EnvironmentSettings]:
    """Return settings with the algorithm, and the environment that it is checked in; as `check_one_algorithm`."""
    trained, replayed = (choices_of(kind.model_fields["algorithm"].annotation) for kind in (TrainConfig, ReplayConfig))
    if target in presets() and target not in trained | replayed:
        config = configured(target, options, {})
        given = parse_overrides(options, TrainConfig).get("environment", {})
        if environment_id:
            return (config, _environment(given, environment_id, config.algorithm.name))
        return (config, config.environment)
    if target in presets(REPLAY_PRESETS_FOLDER):
        base = load_preset(target, REPLAY_PRESETS_FOLDER) | {"source": {"runs": ["any"]}}
        overrides = parse_overrides(options, ReplayConfig)
        replay = build_replay_config(with_overrides(base, overrides))
        return (replay, _environment({}, environment_id, replay.algorithm.name))
    file, _, class_name = target.partition(":")
    name = target
    if Path(file).suffix == ".py":
        from penstock.tasks.model.algorithms.custom import name_in_file  # imports torch, as the file does

        name = name_in_file(Path(file), class_name)
    if ":" not in name and name not in trained | replayed:
        known = ", ".join(known for known in trained | replayed if known != CUSTOM)
        raise ConfigError(
            f"there is no algorithm '{name}'; expected one of {known}, a preset "
            f"({', '.join([*presets(), *presets(REPLAY_PRESETS_FOLDER)])}), a file with a custom algorithm "
            f"(my_file.py), or module:Class"
        )
    is_replayed = name in replayed and name not in trained
    kind = ReplayConfig if is_replayed else TrainConfig
    overrides = parse_overrides(options, kind, name, after="the algorithm")
    environment = _environment(overrides.get("environment", {}), environment_id, name)
    values = {"algorithm": {**overrides.get("algorithm", {}), "name": name}}
    if is_replayed:
        return (build_replay_config({"source": {"runs": ["any"]}, **values}), environment)
    return (build_config(values), environment)


def _environment(given: Mapping[str, Any], environment_id: str | None, algorithm: str) -> EnvironmentSettings:
    """Return the settings of the environment that provides the rows, of those that the user gives."""
    usual = {} if {"id", "header"} & set(given) else {"id": _ENVIRONMENTS.get(algorithm, _ENVIRONMENT)}
    return build_config({"environment": {**given, **({"id": environment_id} if environment_id else usual)}}).environment

"""Parses settings from the command line: any field of the configuration, by its full name or a unique last part."""

from __future__ import annotations

import difflib
import json
import tomllib
from itertools import pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, get_origin

from penstock.flows.settings.listing import settings_of
from penstock.flows.settings.other_names import OTHER_NAMES
from penstock.storage.errors import ConfigError
from penstock.tasks.setup.config.loading import (
    build_config,
    load_preset,
    merge,
    presets,
    table_of,
    with_overrides,
)
from penstock.tasks.setup.config.run import TrainConfig

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.tasks.setup.config.run import RunConfig

_NAME = "algorithm.name"


def parse_overrides(
    arguments: Sequence[str], kind: type[RunConfig] = TrainConfig, algorithm: str = "", after: str = "the preset"
) -> dict[str, Any]:
    """Turn `--schedule.lag 1 --act-tasks=2` into nested settings.

    Args:
        arguments: as typed.
        kind: kind of run.
        algorithm: the preset's; of a custom one any `--algorithm.` is accepted, and checked when it is constructed.
        after: the command's argument that settings follow, for messages.

    Raises:
        ConfigError: an option is not a setting, is ambiguous, or lacks a value.
    """
    values: dict[str, Any] = {}
    waiting = list(arguments)
    named = [after for before, after in pairwise(waiting) if before == f"--{_NAME}"]
    named += [text.partition("=")[2] for text in waiting if text.startswith(f"--{_NAME}=")]
    is_custom = ":" in (named[-1] if named else algorithm)
    while waiting:
        option = waiting.pop(0)
        if not option.startswith("--"):
            raise ConfigError(f"'{option}' is not an option; settings are given as --name value, after {after}")
        name, equals, text = option[2:].partition("=")
        path = name.replace("-", "_")
        if not (is_custom and path.startswith("algorithm.")):
            path = resolve_setting(path, kind)
        if not equals:
            if not waiting:
                raise ConfigError(f"--{name} needs a value")
            text = waiting.pop(0)
        nested: Any = _parse(text)
        for part in reversed(path.split(".")):
            nested = {part: nested}
        values = merge(values, nested)
    return values


def configured(preset: str, arguments: Sequence[str], given: Mapping[str, Any]) -> TrainConfig:
    """Return a preset's configuration with options on top; a setting in the preset's place counts as an option.

    Raises:
        ConfigError: there is no such preset, or the settings are wrong.
    """
    if preset.startswith("-"):
        arguments, preset = [preset, *arguments], "cartpole"
    values = merge(load_preset(preset), given)
    overrides = parse_overrides(arguments, algorithm=str(table_of(values, "algorithm").get("name", "")))
    return build_config(with_overrides(values, overrides))


def notes_on_preset(preset: str, arguments: Sequence[str], config: TrainConfig) -> list[str]:
    """Return notes where a preset is changed so that its other settings may not fit.

    One is said where another environment's run ends at the preset's target, one where there is a preset of the chosen
    algorithm.

    Args:
        preset: of the run; an option in its place, as for `configured`.
        arguments: its options.
        config: that follows from both.
    """
    if preset.startswith("-"):
        arguments, preset = [preset, *arguments], "cartpole"
    values, algorithm = load_preset(preset), config.algorithm.name
    overrides = parse_overrides(arguments, algorithm=algorithm)
    notes = []
    own, given = (str(table_of(each, "environment").get("id", "")) for each in (values, overrides))
    is_same = given.rpartition("/")[2] in {"", own.rpartition("/")[2]}  # perhaps that of another library
    is_other = "header" in table_of(overrides, "environment") or not is_same
    target = config.schedule.target_return  # the preset's, where no option gives one
    if own and is_other and target is not None and "target_return" not in table_of(overrides, "schedule"):
        notes.append(
            f"note: the run ends at a mean return of {target:g}, the target of the preset '{preset}' for {own}; "
            f"--target-return gives another, or none"
        )
    better = f"{preset}-{algorithm.replace('_', '')}"
    if algorithm != table_of(values, "algorithm").get("name", "ppo") and better in presets():
        notes.append(f"note: the preset '{better}' has settings for {algorithm}: penstock train {better}")
    return notes


def nested_settings(settings: Mapping[str, Any], kind: type[RunConfig] = TrainConfig) -> dict[str, Any]:
    """Turn settings by name, as Python's keywords give them, into tables: `{"lag": 1}` into `{"schedule": {"lag": 1}}`.

    Args:
        settings: by full name, by last part where that is unique, or a table of them by the table's name.
        kind: kind of run.

    Raises:
        ConfigError: a name is not a setting, or is ambiguous; or a table is none.
    """
    values: dict[str, Any] = {}
    tables = {setting.path.partition(".")[0] for setting in settings_of(kind) if "." in setting.path}
    for name, value in settings.items():
        is_table = name in tables
        if is_table and not isinstance(value, dict):
            raise ConfigError(f"{name} = {value!r}: expected a table of its settings, such as {{'name': value}}")
        nested: Any = str(value) if isinstance(value, PurePath) else value
        path = name if is_table else resolve_setting(name, kind, option="")
        for part in reversed(path.split(".")):
            nested = {part: nested}
        if merge(values, nested) != merge(nested, values):
            raise ConfigError(f"{path} = {value!r}: it is given twice, with other values; leave one out")
        values = merge(values, nested)
    return values


def parse_bounds(option: str, text: str | None) -> dict[str, int]:
    """Turn `3:9`, `3:`, `:9` or `3` into the first and last of a range, as far as they are given.

    Raises:
        ConfigError: it is none of these.
    """
    if text is None:
        return {}
    first, colon, last = text.partition(":")
    if not colon:
        last = first
    if not all(part == "" or part.isdecimal() for part in (first, last)) or text in {"", ":"}:
        raise ConfigError(f"{option} {text}: expected FIRST:LAST, both included, such as 3:9, 3: or :9")
    return {name: int(part) for name, part in (("first", first), ("last", last)) if part}


def describe_settings(kind: type[RunConfig] = TrainConfig, search: str = "") -> list[dict[str, str]]:
    """Return the settings of a kind of run whose name or meaning contains a text, with default and meaning."""
    described = [
        {
            "setting": setting.path,
            "default": setting.default_text,
            "meaning": f"{setting.algorithm}: {setting.meaning}" if setting.algorithm else setting.meaning,
        }
        for setting in settings_of(kind)
    ]
    wanted = search.lower().replace("-", "_")
    ours = OTHER_NAMES.get(wanted, "").split()
    return [
        row
        for row in described
        if wanted in row["setting"].lower()
        or search.lower() in row["meaning"].lower()
        or row["setting"] in ours
        or not search
    ]


def resolve_setting(name: str, kind: type[RunConfig] = TrainConfig, *, option: str = "--") -> str:
    """Return the full name of a setting, given that name or its last part where that is unique.

    Args:
        name: as given, with underscores.
        kind: kind of run.
        option: begins a setting in messages: an option's two dashes, or nothing for a keyword in Python.

    Raises:
        ConfigError: there is none, or several.
    """
    fields = {setting.path: setting.field for setting in settings_of(kind)}
    paths = list(fields)
    if name in paths:
        return name
    owner = fields.get(name.rpartition(".")[0])
    if owner is not None and get_origin(owner.annotation) is dict:  # an entry of a table of values
        return name
    matches = [path for path in paths if path.rpartition(".")[2] == name]
    if len(matches) == 1:
        return matches[0]
    if matches:
        found = " or ".join(f"{option}{path}" for path in matches)
        raise ConfigError(f"{option}{name} could be {found}; use the full name")
    if name.partition(".")[0] == "placement":
        new = name.replace("placement", "distribution", 1)
        raise ConfigError(_spelled(f"{option}{name} was renamed to {option}{new}", option))
    known = dict.fromkeys([*paths, *(path.rpartition(".")[2] for path in paths)])
    others = [path for path in OTHER_NAMES.get(name.rpartition(".")[2], "").split() if path in paths]
    close = others or difflib.get_close_matches(name, known, n=3)
    hint = f"; did you mean {' or '.join(f'{option}{path}' for path in close)}?" if close else ";"
    raise ConfigError(f"{_spelled(option + name, option)}: no such setting{hint} `penstock settings` lists them all")


def _spelled(text: str, option: str) -> str:
    return text.replace("_", "-") if option else text


def _parse(text: str) -> Any:
    """Parse a TOML value, or a list or table of JSON; other text is returned as it is, and empty text is no value."""
    if text in {"", "none"}:
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        pass
    try:
        return json.loads(text) if text.startswith(("[", "{")) else text
    except (ValueError, RecursionError):
        return text

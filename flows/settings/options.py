"""Parses settings from the command line: any field of the configuration, by its full name or a unique last part."""

from __future__ import annotations

import difflib
import tomllib
from itertools import pairwise
from typing import TYPE_CHECKING, Any, get_origin

from penstock.flows.settings.listing import settings_of
from penstock.storage.errors import ConfigError
from penstock.tasks.setup.config.loading import build_config, load_preset, merge, with_overrides
from penstock.tasks.setup.config.run import TrainConfig

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.tasks.setup.config.run import RunConfig

_NAME = "algorithm.name"


def parse_overrides(
    arguments: Sequence[str], kind: type[RunConfig] = TrainConfig, algorithm: str = ""
) -> dict[str, Any]:
    """Turn `--schedule.lag 1 --act-tasks=2` into nested settings.

    Args:
        arguments: as typed.
        kind: kind of run.
        algorithm: the preset's; of a custom one any `--algorithm.` is accepted, and checked when it is constructed.

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
            raise ConfigError(f"'{option}' is not an option; settings are given as --name value, after the preset")
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
    overrides = parse_overrides(arguments, algorithm=str(values.get("algorithm", {}).get("name", "")))
    return build_config(with_overrides(values, overrides))


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


def describe_settings(kind: type[RunConfig] = TrainConfig) -> list[dict[str, str]]:
    """Return every setting of a kind of run with its default and description."""
    return [
        {
            "setting": setting.path,
            "default": setting.default_text,
            "meaning": f"{setting.algorithm}: {setting.meaning}" if setting.algorithm else setting.meaning,
        }
        for setting in settings_of(kind)
    ]


def resolve_setting(name: str, kind: type[RunConfig] = TrainConfig) -> str:
    """Return the full name of a setting, given that name or its last part where that is unique.

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
        raise ConfigError(f"--{name} could be {' or '.join(f'--{path}' for path in matches)}; use the full name")
    if name.partition(".")[0] == "placement":
        new = name.replace("placement", "distribution", 1)
        raise ConfigError(f"--{name} was renamed to --{new}".replace("_", "-"))
    close = difflib.get_close_matches(name, [*paths, *(path.rpartition(".")[2] for path in paths)], n=3)
    hint = f"; did you mean {' or '.join(f'--{path}' for path in close)}?" if close else ""
    raise ConfigError(f"--{name.replace('_', '-')}: no such setting{hint} `penstock settings` lists them all")


def _parse(text: str) -> Any:
    """Parse a TOML value; other text is returned as it is, and empty text means no value."""
    if text in {"", "none"}:
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text

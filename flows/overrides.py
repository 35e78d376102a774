"""Settings as command-line options: any field of the configuration, by its full name or by an unambiguous last part."""

from __future__ import annotations

import difflib
import tomllib
from itertools import pairwise
from typing import TYPE_CHECKING, Any, get_origin

from flows.setting_list import settings_of
from storage.errors import ConfigError
from tasks.config import TrainConfig, build_config, laid_over, load_preset, merge

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tasks.config import RunConfig

_NAME = "algorithm.name"


def parse_overrides(
    arguments: Sequence[str], kind: type[RunConfig] = TrainConfig, algorithm: str = ""
) -> dict[str, Any]:
    """Turn `--schedule.lag 1 --act-tasks=2` into nested settings.

    Args:
        arguments: as typed.
        kind: of run.
        algorithm: what the preset names; of one's own, any `--algorithm.` is taken here, and checked when it is made.

    Raises:
        ConfigError: an option is no setting, is ambiguous, or lacks a value.
    """
    values: dict[str, Any] = {}
    waiting = list(arguments)
    named = [after for before, after in pairwise(waiting) if before == f"--{_NAME}"]
    named += [text.partition("=")[2] for text in waiting if text.startswith(f"--{_NAME}=")]
    is_own = ":" in (named[-1] if named else algorithm)
    while waiting:
        option = waiting.pop(0)
        if not option.startswith("--"):
            raise ConfigError(f"'{option}' is no option; settings are given as --name value, after the preset")
        name, equals, text = option[2:].partition("=")
        path = name.replace("-", "_")
        if not (is_own and path.startswith("algorithm.")):
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
    """A preset, with what was given as options laid over it; a first setting where the preset should be is one.

    Raises:
        ConfigError: the preset is none, or the settings are wrong.
    """
    if preset.startswith("-"):
        arguments, preset = [preset, *arguments], "cartpole"
    values = merge(load_preset(preset), given)
    overrides = parse_overrides(arguments, algorithm=str(values.get("algorithm", {}).get("name", "")))
    return build_config(laid_over(values, overrides))


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


def describe_settings(kind: type[RunConfig] = TrainConfig) -> list[dict[str, Any]]:
    """Every setting of a kind of run with its default and description."""
    return [
        {
            "setting": setting.path,
            "default": setting.told_default,
            "meaning": f"{setting.algorithm}: {setting.meaning}" if setting.algorithm else setting.meaning,
        }
        for setting in settings_of(kind)
    ]


def resolve_setting(name: str, kind: type[RunConfig] = TrainConfig) -> str:
    """The full name of a setting that is named by it or, where that is unique, by its last part.

    Raises:
        ConfigError: there is none, or several.
    """
    fields = {setting.path: setting.field for setting in settings_of(kind)}
    paths = list(fields)
    if name in paths:
        return name
    owner = fields.get(name.rpartition(".")[0])
    if owner is not None and get_origin(owner.annotation) is dict:  # an entry of a table, such as one of settings
        return name
    matches = [path for path in paths if path.rpartition(".")[2] == name]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ConfigError(f"--{name} could be {' or '.join(f'--{path}' for path in matches)}; use the full name")
    close = difflib.get_close_matches(name, [*paths, *(path.rpartition(".")[2] for path in paths)], n=3)
    hint = f"; did you mean {' or '.join(f'--{path}' for path in close)}?" if close else ""
    raise ConfigError(f"--{name.replace('_', '-')}: no such setting{hint} `penstock settings` lists them all")


def _parse(text: str) -> Any:
    """A TOML value where it is one, otherwise the text itself; empty means no value."""
    if text in {"", "none"}:
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text

"""Settings as command-line options: any field of the configuration, by its full name or by an unambiguous last part."""

from __future__ import annotations

import difflib
import tomllib
from itertools import pairwise
from typing import TYPE_CHECKING, Any, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from storage.errors import ConfigError
from tasks.config import RunConfig, TrainConfig, choices_of, merge

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic.fields import FieldInfo


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
            path = _resolve(path, kind)
        if not equals:
            if not waiting:
                raise ConfigError(f"--{name} needs a value")
            text = waiting.pop(0)
        nested: Any = _parse(text)
        for part in reversed(path.split(".")):
            nested = {part: nested}
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


def describe_settings(kind: type[RunConfig] = TrainConfig) -> list[dict[str, Any]]:
    """Every setting of a kind of run with its default and description."""
    return [
        {
            "setting": path,
            "default": "" if field.default in (None, PydanticUndefined) else field.default,
            "meaning": f"{choice}: {field.description}" if choice else field.description or "",
        }
        for path, field, choice in _leaves(kind)
    ]


def _leaves(model: type[BaseModel], prefix: str = "", choice: str = "") -> Iterator[tuple[str, FieldInfo, str]]:
    """Path and field of every setting, and to which of several algorithms it belongs."""
    for name, field in model.model_fields.items():
        choices = choices_of(field.annotation)
        for chosen, member in choices.items():
            yield from _leaves(member, f"{prefix}{name}.", chosen)
        if choices:
            continue
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _leaves(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field, choice


def _resolve(name: str, kind: type[RunConfig]) -> str:
    fields = {path: field for path, field, _ in _leaves(kind)}
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

"""Lists every setting of the typed configuration, for the command, the reference and reports."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined, to_jsonable_python

from penstock.storage.digest import digest
from penstock.tasks.setup.config.loading import choices_of
from penstock.tasks.setup.config.replay import ReplayConfig
from penstock.tasks.setup.config.run import TrainConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pydantic.fields import FieldInfo

    from penstock.tasks.setup.config.run import RunConfig


_HEADER_TEXT = "environment.header_text"
_WORDS = {bool: "true or false", int: "whole number", float: "number", str: "text"}
_BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting."""

    path: str
    """Full name, as `--path` takes it."""
    algorithm: str
    """Algorithm that has the setting; empty where all have it."""
    field: FieldInfo
    default: Any
    """Default as JSON has it; None where there is none."""

    @property
    def meaning(self) -> str:
        """Return its description."""
        return self.field.description or ""

    @property
    def kind(self) -> str:
        """Describe the values that it takes."""
        bounds = [
            f"{words} {getattr(limit, name):,}"
            for limit in self.field.metadata
            for name, words in _BOUNDS.items()
            if hasattr(limit, name)
        ]
        return ", ".join([_kind(self.field.annotation), *bounds])

    @property
    def default_text(self) -> str:
        """Return the default as typed on the command line; empty where there is none."""
        return format_setting(self.default)


def settings_of(kind: type[RunConfig]) -> list[Setting]:
    """Return every setting of a kind of run, in the order of the form."""
    return list(_leaves(kind, "", "", None))


def kind_of(config: Mapping[str, object]) -> type[RunConfig]:
    """Return the kind of run that stored settings describe."""
    return ReplayConfig if "source" in config else TrainConfig


def flat_settings(config: Mapping[str, object]) -> dict[str, object]:
    """Return stored settings by path; tables that are values themselves stay whole, a header's text is its digest."""
    whole = {setting.path for setting in settings_of(kind_of(config))}

    def walk(values: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
        for name, value in values.items():
            if isinstance(value, dict) and f"{prefix}{name}" not in whole:
                yield from walk(value, f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}", value

    found = dict(walk(config, ""))
    if isinstance(text := found.get(_HEADER_TEXT), str):
        found[_HEADER_TEXT] = digest(text.encode())
    return found


def default_settings(config: Mapping[str, Any]) -> dict[str, object]:
    """Return the defaults for the kind of run and algorithm of stored settings, by path."""
    algorithm = str(config.get("algorithm", {}).get("name"))
    return {
        setting.path: setting.default
        for setting in settings_of(kind_of(config))
        if setting.algorithm in {"", algorithm} and not setting.field.is_required()
    }


def format_setting(value: object) -> str:
    """Format a value as typed on the command line; None is empty."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _leaves(model: type[BaseModel], prefix: str, algorithm: str, defaults: BaseModel | None) -> Iterator[Setting]:
    """Yield the settings of a table; `defaults` has their defaults where a field overrides the table's."""
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True) if defaults is None else getattr(defaults, name)
        choices = choices_of(field.annotation)
        for chosen, member in choices.items():
            yield from _leaves(member, f"{prefix}{name}.", chosen, None)
        if choices:
            continue
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            inner = default if isinstance(default, BaseModel) else None
            yield from _leaves(field.annotation, f"{prefix}{name}.", algorithm, inner)
        else:
            value = None if default is PydanticUndefined else to_jsonable_python(default)
            yield Setting(f"{prefix}{name}", algorithm, field, value)


def _kind(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(arguments[0])
    if origin in {Union, UnionType}:
        words = " or ".join(dict.fromkeys(_kind(one) for one in arguments if one is not NoneType))
        return f"{words}, or empty" if NoneType in arguments else words
    if origin is Literal:
        return " | ".join(map(str, arguments))
    if origin in {tuple, list}:
        return "list"
    if origin is dict:
        return "table"
    return _WORDS.get(annotation, str(getattr(annotation, "__name__", annotation)))


_HEAD = """\
# Settings

Every setting of a run, as `penstock settings --markdown` prints them; that command makes this page. A setting is an
option by its full name, or by its last part where that is unique (`--schedule.lag 1`, `--lag 1`), a line of a preset
in TOML, and a field of the form in Prefect's UI. An empty default means that there is no value.

A run stores its settings in `run.json`. When a run is resumed, only `cluster` may change, and in
`distribution` the device and the numbers of act and env tasks.
"""
_REPLAY = """\
## Replays

A replay (`penstock replay`) has the settings above but for `shards`, and the algorithms below in place of those above.
It does not act, so `schedule.round_steps` and `schedule.lag` must be left out. Where its defaults are others, and what
it has besides:
"""


def reference() -> str:
    """Return the reference page, docs/settings.md."""
    train, replay = settings_of(TrainConfig), settings_of(ReplayConfig)
    known = {(setting.path, setting.algorithm): setting.default for setting in train}
    differing = [
        one for one in replay if known.get((one.path, one.algorithm), one) != one.default and one.path != "plan"
    ]
    parts = [_HEAD, *_tables(train, _tables_of(TrainConfig)), _REPLAY]
    parts += [text.replace("## ", "### ") for text in _tables(differing, _tables_of(ReplayConfig))]
    return "\n".join(parts)


def _tables_of(kind: type[RunConfig]) -> dict[str, str]:
    """Return the first docstring line of each table of settings, by its path."""
    found: dict[str, str] = {}
    for name, field in kind.model_fields.items():
        for algorithm, member in choices_of(field.annotation).items():
            found[f"{name} {algorithm}"] = _first_line(member)
        if isinstance(field.annotation, type) and hasattr(field.annotation, "model_fields"):
            found[name] = _first_line(field.annotation)
    return found


def _first_line(model: Any) -> str:
    return str(model.__doc__ or "").strip().partition("\n")[0]


def _tables(settings: Iterable[Setting], about: dict[str, str]) -> Iterator[str]:
    groups: dict[str, list[Setting]] = {}
    for setting in settings:
        table = setting.path.partition(".")[0] if "." in setting.path else ""
        groups.setdefault(f"{table} {setting.algorithm}".strip(), []).append(setting)
    for group, found in groups.items():
        table, _, algorithm = group.partition(" ")
        title = f"{table}: {algorithm}" if algorithm else table or "The run"
        lines = [f"## {title}", ""]
        if about.get(group):
            lines += [about[group], ""]
        lines += ["| setting | takes | default | meaning |", "|---|---|---|---|"]
        for one in found:
            default = f"`{_cell(one.default_text)}`" if one.default_text else ""
            lines.append(f"| `{one.path}` | {_cell(one.kind)} | {default} | {_cell(one.meaning)} |")
        yield "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")

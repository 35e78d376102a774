"""Every setting there is, from the typed configuration: for the command, the reference and reports."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined, to_jsonable_python

from tasks.config import TrainConfig, choices_of
from tasks.replay_config import ReplayConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo

    from tasks.config import RunConfig

_WORDS = {bool: "true or false", int: "whole number", float: "number", str: "text"}
_BOUNDS = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting."""

    path: str
    """As `--path` takes it."""
    algorithm: str
    """That has it; empty where every one does."""
    field: FieldInfo
    default: Any
    """As JSON has it; None where there is none."""

    @property
    def meaning(self) -> str:
        """What it is."""
        return self.field.description or ""

    @property
    def kind(self) -> str:
        """Which values it takes, in words."""
        bounds = [
            f"{words} {getattr(limit, name):,}"
            for limit in self.field.metadata
            for name, words in _BOUNDS.items()
            if hasattr(limit, name)
        ]
        return ", ".join([_kind(self.field.annotation), *bounds])

    @property
    def told_default(self) -> str:
        """The default as one would type it; empty where there is none."""
        return told_setting(self.default)


def settings_of(kind: type[RunConfig]) -> list[Setting]:
    """Every setting of a kind of run, in the order of the form."""
    return list(_leaves(kind, "", "", None))


def kind_of(config: dict[str, Any]) -> type[RunConfig]:
    """The kind of run that stored settings are of."""
    return ReplayConfig if "source" in config else TrainConfig


def flat_settings(config: dict[str, Any]) -> dict[str, Any]:
    """Stored settings by path; tables that are values themselves stay whole."""
    whole = {setting.path for setting in settings_of(kind_of(config))}

    def walk(values: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for name, value in values.items():
            if isinstance(value, dict) and f"{prefix}{name}" not in whole:
                yield from walk(value, f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}", value

    return dict(walk(config, ""))


def default_settings(config: dict[str, Any]) -> dict[str, Any]:
    """The defaults of the kind of run and the algorithm of stored settings, by path."""
    algorithm = str(config.get("algorithm", {}).get("name"))
    return {
        setting.path: setting.default
        for setting in settings_of(kind_of(config))
        if setting.algorithm in {"", algorithm} and not setting.field.is_required()
    }


def told_setting(value: Any) -> str:
    """A value as one would type it; empty for none."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _leaves(model: type[BaseModel], prefix: str, algorithm: str, defaults: BaseModel | None) -> Iterator[Setting]:
    """Of a table of settings, with the values that they have by default where others than the table's own."""
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

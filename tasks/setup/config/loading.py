"""Builds a run's configuration from presets, TOML files and overrides, and explains its mistakes."""

from __future__ import annotations

import os
import re
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

from pydantic import Tag, ValidationError

from penstock.storage.errors import ConfigError
from penstock.storage.runs.run import NAME_RULE
from penstock.tasks.setup.config.custom_algorithm import CUSTOM
from penstock.tasks.setup.config.run import ConfigT, RunConfig, TrainConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.tasks.setup.config.algorithm_base import AlgorithmSettings


PRESETS_FOLDER = Path(__file__).resolve().parent / "presets"
REPLAY_PRESETS_FOLDER = PRESETS_FOLDER / "replays"
_LIKE_AN_ENVIRONMENT = re.compile(r"-v\d+$|^[a-z_]+/[^/.]+$")
"""The id of an environment: `CartPole-v1`, or a family and a name."""
_COMMANDS = {PRESETS_FOLDER: "penstock train {}", REPLAY_PRESETS_FOLDER: "penstock replay NAME --from RUN --preset {}"}


def presets(folder: Path = PRESETS_FOLDER) -> dict[str, Path]:
    """Return the preset files of training runs, or of another folder, by name."""
    return {path.stem: path for path in sorted(folder.glob("*.toml"), key=lambda path: path.stem)}


def load_preset(name: str, folder: Path = PRESETS_FOLDER) -> dict[str, Any]:
    """Read a preset of training runs, or of another folder, by name, or a user's TOML file by path.

    Raises:
        ConfigError: there is no such preset or file, or it is not TOML.
    """
    path = presets(folder).get(name) or Path(name)
    if not os.path.isfile(path):  # noqa: PTH113  (Path.is_file raises an error for a name that is too long)
        if path.suffix == ".toml":
            raise ConfigError(
                f"there is no file '{path.absolute()}'; presets, which are no files of yours, are: "
                f"{', '.join(presets(folder))}"
            )
        elsewhere = [command for other, command in _COMMANDS.items() if other != folder and name in presets(other)]
        hint = f" '{name}' is one of another command: {elsewhere[0].format(name)}." if elsewhere else ""
        if close := get_close_matches(name, presets(folder), n=3):
            hint += f" Did you mean {' or '.join(close)}?"
        if folder == PRESETS_FOLDER and _LIKE_AN_ENVIRONMENT.search(name):
            hint += (
                f" An environment's id goes with a preset that suits it: penstock train PRESET --environment.id {name}."
            )
        raise ConfigError(
            f"no preset '{name}'; there are: {', '.join(presets(folder))}.{hint} The path of a .toml file works as well"
        )
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        is_python = path.suffix == ".py"
        hint = "; an environment in Python is given as environment.id, such as my_module:MyEnv-v0" if is_python else ""
        raise ConfigError(f"preset '{path}' is not valid TOML: {error}{hint}") from error
    if not text.strip():
        raise ConfigError(f"preset '{path}' is empty, expected tables such as [environment]; write them into it")
    return values


def merge(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the values of `override` in place of its own, table by table.

    Raises:
        ConfigError: the base has a value where the override has a table.
    """
    merged = dict(base)
    for key, value in override.items():
        below = merged.get(key)
        if isinstance(value, dict) and below is not None:
            table_of(base, key)
        merged[key] = merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def table_of(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a table of settings, an empty one if there is none.

    Raises:
        ConfigError: there is a value instead: what is merged with it would be lost.
    """
    table = values.get(name)
    if table is None:
        return {}
    if not isinstance(table, dict):
        raise ConfigError(f"{name} = {table!r}: expected a table of its settings, such as [{name}] in TOML")
    return table


def with_overrides(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """Merge settings of a run; what the override replaces is dropped.

    Another algorithm's name replaces the algorithm's settings, and a header without an id the environment's id.
    """
    named = table_of(override, "algorithm").get("name")
    if named is not None and named != table_of(base, "algorithm").get("name", "ppo"):
        base = {key: value for key, value in base.items() if key != "algorithm"}
    given = table_of(override, "environment")
    if given.get("header") is not None and "id" not in given:
        environment = {key: value for key, value in table_of(base, "environment").items() if key != "id"}
        base = {**base, "environment": environment}
    return merge(base, override)


def build_config(values: Mapping[str, Any]) -> TrainConfig:
    """Validate the settings of a training run; errors as `validate`."""
    return validate(TrainConfig, values)


def validate(kind: type[ConfigT], values: Mapping[str, Any]) -> ConfigT:
    """Validate the settings of a kind of run.

    Raises:
        ConfigError: one line per mistake, with the field, the value and the expectation; or they are those of a run
            whose episodes were imported.
    """
    if isinstance(values.get("imported"), dict):
        raise ConfigError(
            f"run '{values.get('name')}' was imported from a dataset, which says nothing of an environment or an "
            f"algorithm, so it can't be trained, resumed or extended; read it with `penstock.TrajectoryDataset` "
            f"(docs/reading.md)"
        )
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        explained: dict[str, None] = {}
        for item in error.errors():
            if item["loc"][-1:] != ("bool",):
                explained[_explain(kind, item)] = None
        raise ConfigError("\n".join(explained)) from None


def choices_of(annotation: Any) -> dict[str, type[AlgorithmSettings]]:
    """Return the models by name of a field that takes one of several algorithms; of any other field none."""
    members = [get_args(member) for member in get_args(annotation)]
    return {kind[1].tag: kind[0] for kind in members if len(kind) == 2 and isinstance(kind[1], Tag)}


def _explain(kind: type[RunConfig], item: Any) -> str:
    path, owner = _locate(kind, item["loc"])
    field = ".".join(path) or "configuration"
    if item["type"] == "extra_forbidden" and path[0] == "placement":
        return "placement: was renamed to distribution; rename the table, its settings are the same"
    if item["type"] == "extra_forbidden":
        known = ", ".join(getattr(owner, "model_fields", ()))
        return f"{field}: no such setting{f'; there are: {known}' if known else ''}"
    if item["type"] == "value_error":
        return f"{field}: {item['ctx']['error']}"
    if item["type"] == "union_tag_invalid":
        choices = choices_of(kind.model_fields["algorithm"].annotation)
        expected = " or ".join(repr(name) for name in choices if name != CUSTOM)
        return f"{field}.name = {item['input']['name']!r}: input should be {expected}, or a custom 'module:Class'"
    said = f"{item['msg'][0].lower()}{item['msg'][1:]}"
    if path == ["init_from", "version"]:  # of a union, whose members have an error each
        said = "expected 'newest', 'best' or the number of a version"
    if item["type"] == "string_pattern_mismatch" and path == ["name"]:
        said = f"expected {NAME_RULE}"
    elif item["type"] == "tuple_type" and isinstance(item["input"], str | int | float):
        said += ", such as '[64, 64]'" if field == "algorithm.hidden" else ", a list in brackets"
    elif item["type"] in {"int_parsing", "float_parsing"} and path[-1].endswith(("_seconds", "_bytes")):
        said += f"; give a number of {path[-1].rpartition('_')[2]}, without a unit"
    return f"{field} = {item['input']!r}: {said}"


def _locate(kind: type[RunConfig], location: tuple[int | str, ...]) -> tuple[list[str], Any]:
    """Return a setting's path, and the model that has or lacks it. Locations also name the member of a union."""
    path: list[str] = []
    owner: Any = None
    inside: Any = kind
    for part in location:
        if part in (choices := choices_of(inside)):
            inside = choices[str(part)]
            continue
        if not hasattr(inside, "model_fields") and (part in {"float", "int"} or str(part).startswith("literal[")):
            continue
        path.append(str(part))
        owner, fields = inside, getattr(inside, "model_fields", {})
        if get_origin(inside) is dict:
            inside = get_args(inside)[1]
        elif isinstance(part, int):
            inside = next(iter(get_args(inside)), None)
        else:
            inside = fields[part].annotation if part in fields else None
    return path, owner

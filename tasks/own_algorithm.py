"""Algorithms from outside the repository: found by `module:Class`, with settings that their own fields declare.

This imports the module, and so torch: it is for workers, and for the process that `tasks.own_probe` asks.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from storage.errors import ConfigError
from storage.specs import Spec
from tasks.algorithm import DEFAULTED, Algorithm, Loss
from tasks.own_source import INSTALLED, note_import
from tasks.specs import NoiseSpec, State

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from tasks.algorithm_settings.own import OwnSettings
    from tasks.specs import EnvironmentSpec

MEMBERS = tuple(name for name in vars(Algorithm) if not name.startswith("_"))
"""What an algorithm must have."""

_ENVIRONMENT = "environment"


def load_class(name: str) -> type[Any]:
    """The class that `module:Class` names; imports the module.

    It is looked for where Python looks, and last in the working directory.

    Raises:
        ConfigError: one line that says what is missing or went wrong, and where.
    """
    module_name, _, class_name = name.partition(":")
    module = _import(name, module_name)
    note_import(name)
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        classes = [key for key, value in vars(module).items() if is_algorithm(value)]
        there = f"its algorithms are: {', '.join(classes)}" if classes else "no class in it has what an algorithm needs"
        what = "there is no" if found is None else "it is no class, expected one:"
        raise ConfigError(f"algorithm.name = '{name}': {what} {class_name} in {module.__file__}; {there}")
    lacking = missing(found)
    if lacking:
        raise ConfigError(
            f"algorithm.name = '{name}': the class lacks {', '.join(lacking)}, so it is no algorithm; "
            f"docs/algorithm.md says what each is"
        )
    return found


def name_in_file(file: Path, class_name: str = "") -> str:
    """`module:Class` of a file, whose folder is then looked in first; without a class, the only algorithm in it.

    Raises:
        ConfigError: there is no such file, or there are several algorithms in it, or none.
    """
    if not file.is_file():
        raise ConfigError(f"there is no file '{file}'; expected one with an algorithm, or module:Class")
    sys.path.insert(0, str(file.resolve().parent))
    if class_name:
        return f"{file.stem}:{class_name}"
    module = _import(f"{file.stem}:", file.stem)
    own = [key for key, value in vars(module).items() if is_algorithm(value) and value.__module__ == module.__name__]
    if len(own) != 1:
        raise ConfigError(f"{file} has {', '.join(own) or 'no algorithm'}, expected one; say which: {file}:Class")
    return f"{file.stem}:{own[0]}"


def missing(kind: type[Any]) -> list[str]:
    """What an algorithm has and a class lacks; what it merely inherits from the contract, without a body, lacks too."""
    return [
        name
        for name in MEMBERS
        if not hasattr(kind, name) or (name not in DEFAULTED and getattr(kind, name) is getattr(Algorithm, name))
    ]


def is_algorithm(value: object) -> bool:
    """Whether it is a class that has all that an algorithm has, and is not the contract itself."""
    return isinstance(value, type) and value is not Algorithm and not missing(value)


def typed_settings(kind: type[Any], settings: OwnSettings) -> dict[str, Any]:
    """Settings as the class's fields declare them, defaults included; plain data that JSON can hold.

    Raises:
        ConfigError: one line a mistake, each naming the setting, its value and what would be right.
    """
    model = _settings_model(kind, settings.name)
    try:
        return model.model_validate(settings.model_dump(exclude={"name"})).model_dump(mode="json")
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(model, item) for item in error.errors())) from error
    except Exception as error:
        raise ConfigError(f"algorithm: a field of {settings.name} can't be stored as JSON: {said(error)}") from error


def make_own(settings: OwnSettings, environment: EnvironmentSpec) -> Algorithm:
    """The algorithm with these settings, for an environment's spaces.

    Raises:
        ConfigError: as `load_class` and `typed_settings`, or it can't be made, or declares what nobody can use.
    """
    kind = load_class(settings.name)
    typed_settings(kind, settings)
    model = _settings_model(kind, settings.name)
    values = dict(model.model_validate(settings.model_dump(exclude={"name"})))
    try:
        algorithm: Algorithm = kind(environment=environment, **values)
        _check_declared(algorithm, settings.name)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"algorithm.name = '{settings.name}': it can't be made for {environment.name}: {said(error)}"
        ) from error
    return algorithm


def _import(name: str, module_name: str) -> ModuleType:
    folder = str(Path.cwd())
    if not {"", folder} & set(sys.path):
        sys.path.append(folder)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"algorithm.name = '{name}': there is no module '{error.name}' on this process's path, nor in "
                f"{folder}; install it, or name its folder in PYTHONPATH, here and where the workers start"
            ) from error
        raise ConfigError(f"algorithm.name = '{name}': importing {module_name} failed: {said(error)}") from error
    except Exception as error:
        raise ConfigError(f"algorithm.name = '{name}': importing {module_name} failed: {said(error)}") from error


def _settings_model(kind: type[Any], name: str) -> type[BaseModel]:
    try:
        fields = dict(_declared_fields(kind))
    except NameError as error:
        raise ConfigError(
            f"algorithm.name = '{name}': the type of a field can't be read: {error}; import it outside TYPE_CHECKING"
        ) from error
    if _ENVIRONMENT not in fields:
        raise ConfigError(
            f"algorithm.name = '{name}': found no field '{_ENVIRONMENT}'; expected a dataclass (or a pydantic model) "
            f"with `environment: EnvironmentSpec` and a field for each setting"
        )
    del fields[_ENVIRONMENT]
    config = ConfigDict(extra="forbid", allow_inf_nan=False)
    try:
        return create_model(kind.__name__, __config__=config, **fields)
    except Exception as error:
        raise ConfigError(
            f"algorithm.name = '{name}': a field's type is none of a setting: {said(error).partition('. ')[0]}"
        ) from error


def _declared_fields(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    """Name, type and default of every field."""
    if issubclass(kind, BaseModel):
        for name, field in kind.model_fields.items():
            yield name, (field.annotation, field)
    elif dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        for item in dataclasses.fields(kind):
            if item.init:
                default = ... if item.default is dataclasses.MISSING else item.default
                if item.default_factory is not dataclasses.MISSING:
                    default = item.default_factory()
                yield item.name, (hints[item.name], default)


def _check_declared(algorithm: Algorithm, name: str) -> None:
    rows, noise, losses, groups = algorithm.rows, algorithm.noise, algorithm.losses, algorithm.actor_groups
    for what, found, expected, fits in (
        ("rows", rows, "a Spec by column", isinstance(rows, Mapping) and _are(rows.values(), Spec)),
        ("rows", rows, "a column 'action' among them", "action" in rows),
        ("noise", noise, "a NoiseSpec", isinstance(noise, NoiseSpec)),
        ("losses", losses, "a tuple of one Loss or more", isinstance(losses, tuple) and losses and _are(losses, Loss)),
        ("actor_groups", groups, "a tuple of names", isinstance(groups, tuple) and _are(groups, str)),
    ):
        if not fits:
            raise ConfigError(f"algorithm.name = '{name}': {what} is {found!r}, expected {expected}")
    state = algorithm.init(0)
    if not isinstance(state, State):
        raise ConfigError(f"algorithm.name = '{name}': init gave {type(state).__name__}, expected a State")
    for group in (*groups, *(loss.group for loss in losses)):
        if group not in state.params:
            raise ConfigError(
                f"algorithm.name = '{name}': there is no parameter group '{group}', which actor_groups or a loss "
                f"names; init makes: {', '.join(state.params)}"
            )


def _are(values: Any, kind: type[Any]) -> bool:
    return all(isinstance(value, kind) for value in values)


def _explain(model: type[BaseModel], item: Any) -> str:
    field = ".".join(("algorithm", *map(str, item["loc"])))
    if item["type"] == "extra_forbidden":
        return f"{field}: no such setting; there are: {', '.join(('name', *model.model_fields))}"
    if item["type"] == "missing":
        return f"{field}: is missing, and has no default"
    return f"{field} = {item['input']!r}: {item['msg'][0].lower()}{item['msg'][1:]}"


def said(error: BaseException) -> str:
    """Kind, message and place of an error, on one line; the place is the last outside what is installed."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_installed(frame.filename)]
    text = " ".join(str(error).split())
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {text}"
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {text}{where}"


def _is_installed(filename: str) -> bool:
    path = Path(filename)
    return filename.startswith("<") or bool(INSTALLED & set(path.parts)) or path.parent == Path(__file__).parent

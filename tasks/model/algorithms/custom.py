"""Loads custom algorithms, from outside the repository, by `module:Class`; the class's fields are its settings.

This imports the module, and so torch: it is for workers, and for the process that `custom_probe` starts.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from penstock.storage.error_places import describe_error
from penstock.storage.errors import ConfigError
from penstock.storage.shards.specs import Spec
from penstock.tasks.environments.local_modules import search_working_directory
from penstock.tasks.model.algorithms.contract import DEFAULTED, Algorithm, Loss
from penstock.tasks.model.algorithms.source_digest import note_import
from penstock.tasks.setup.config.algorithm_base import (
    AlgorithmSettings,
    EncoderSettings,
    NetworkSettings,
    check_cells,
    check_row_steps,
)
from penstock.tasks.specs import NoiseSpec, State

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

    from penstock.native import EnvironmentSpec as DescribedEnvironment
    from penstock.tasks.setup.config.custom_algorithm import CustomAlgorithmSettings
    from penstock.tasks.specs import EnvironmentSpec

MEMBERS = tuple(name for name in vars(Algorithm) if not name.startswith("_"))
"""The members that an algorithm must have."""

_ENVIRONMENT, _SETTINGS = "environment", "settings"
_FORMER_NAMES = {"flows", "tasks", "storage", "native"}
"""Import names of Penstock 0.1, for which the error names the new ones."""


def load_class(name: str) -> type[Any]:
    """Import a module and return the class that `module:Class` names.

    The module is searched on Python's path, and last in the working directory.

    Raises:
        ConfigError: one line that names what is missing or went wrong, and where.
    """
    module_name, _, class_name = name.partition(":")
    module = _import(name, module_name)
    note_import(name)
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        classes = [key for key, value in vars(module).items() if is_algorithm(value)]
        available = (
            f"its algorithms are: {', '.join(classes)}" if classes else "no class in it has an algorithm's members"
        )
        finding = "there is no" if found is None else "it is not a class, expected one:"
        raise ConfigError(f"algorithm.name = '{name}': {finding} {class_name} in {module.__file__}; {available}")
    lacking = missing(found)
    if lacking:
        raise ConfigError(
            f"algorithm.name = '{name}': the class lacks {', '.join(lacking)}, so it is not an algorithm; "
            f"docs/algorithm.md describes each"
        )
    return found


def name_in_file(file: Path, class_name: str = "") -> str:
    """Return `module:Class` for a file and put its folder first on the path; without a class, its only algorithm.

    Raises:
        ConfigError: there is no such file, or there are several algorithms in it, or none.
    """
    if not file.is_file():
        raise ConfigError(f"there is no file '{file}'; expected one with an algorithm, or module:Class")
    sys.path.insert(0, str(file.resolve().parent))
    if class_name:
        return f"{file.stem}:{class_name}"
    module = _import(f"{file.stem}:", file.stem)
    found = [key for key, value in vars(module).items() if is_algorithm(value) and value.__module__ == module.__name__]
    if len(found) != 1:
        raise ConfigError(f"{file} has {', '.join(found) or 'no algorithm'}, expected one; name it: {file}:Class")
    return f"{file.stem}:{found[0]}"


def missing(kind: type[Any]) -> list[str]:
    """Return the members of an algorithm that a class lacks, or inherits from the contract without a body."""
    return [
        name
        for name in MEMBERS
        if not hasattr(kind, name) or (name not in DEFAULTED and getattr(kind, name) is getattr(Algorithm, name))
    ]


def is_algorithm(value: object) -> bool:
    """Return whether a value is a class with all members of an algorithm, and not the contract itself."""
    return isinstance(value, type) and value is not Algorithm and not missing(value)


def typed_settings(kind: type[Any], settings: CustomAlgorithmSettings) -> dict[str, Any]:
    """Return settings as the class's fields declare them, defaults included, as plain data that JSON can hold.

    Raises:
        ConfigError: one line a mistake, each naming the setting, its value and the expectation.
    """
    model = _settings_model(kind, settings.name)
    try:
        return model.model_validate(settings.model_dump(exclude={"name"})).model_dump(mode="json")
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(model, item) for item in error.errors())) from error
    except Exception as error:
        raise ConfigError(
            f"algorithm: a field of {settings.name} can't be stored as JSON: {describe_error(error)}"
        ) from error


def make_custom(settings: CustomAlgorithmSettings, environment: EnvironmentSpec) -> Algorithm:
    """Make the algorithm with these settings, for an environment's spaces.

    Raises:
        ConfigError: as `load_class` and `typed_settings`, or it can't be made, or its declarations are not valid.
    """
    kind = load_class(settings.name)
    typed_settings(kind, settings)
    model = _settings_model(kind, settings.name)
    values = dict(model.model_validate(settings.model_dump(exclude={"name"})))
    try:
        held = _held_settings(kind)
        if held is not None:
            values["settings"] = held(**{name: values.pop(name) for name in held.model_fields if name != "name"})
        algorithm: Algorithm = kind(environment=environment, **values)
        _check_declared(algorithm, settings.name)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"algorithm.name = '{settings.name}': it can't be made for {environment.name}: {describe_error(error)}"
        ) from error
    return algorithm


def check_held(
    algorithm: Algorithm, name: str, environment: DescribedEnvironment, round_steps: int | None, envs: int
) -> None:
    """Check the settings that a subclass of a shipped algorithm holds, as those of that algorithm are checked.

    Args:
        algorithm: the custom algorithm; other classes pass.
        name: its name in the configuration.
        environment: as its pool describes it; it must fit where acting is inherited, since that takes its actions.
        round_steps: steps of an environment in a round; None where rounds are not acted.
        envs: environments of the fewest shards that a round is learned from.

    Raises:
        ConfigError: names the setting and its bound.
    """
    held = getattr(algorithm, _SETTINGS, None)
    if not isinstance(held, AlgorithmSettings):
        return
    try:
        if type(algorithm).act.__module__.startswith(f"{Algorithm.__module__.rpartition('.')[0]}."):
            AlgorithmSettings.check_environment(held, environment)
        if isinstance(held, NetworkSettings | EncoderSettings) and held.network == "leaves":
            check_cells(held.cells, environment)
        if round_steps is not None:
            check_row_steps(held.row_steps, round_steps)
            held.check_round(round_steps * envs // held.row_steps)
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"algorithm.name = '{name}', as {held.name}, from which it inherits: {error}") from error


def _import(name: str, module_name: str) -> ModuleType:
    folder = search_working_directory()
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        top, _, _ = str(error.name).partition(".")
        if top in _FORMER_NAMES:
            raise ConfigError(
                f"algorithm.name = '{name}': {describe_error(error)}; Penstock's packages are imported as "
                f"penstock.{top}, and "
                f"what an algorithm needs is in `penstock` itself: `from penstock import Algorithm, Loss`"
            ) from error
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"algorithm.name = '{name}': there is no module '{error.name}' on this process's path, nor in "
                f"{folder}; install it, or name its folder in PYTHONPATH, here and where the workers start"
            ) from error
        raise ConfigError(
            f"algorithm.name = '{name}': importing {module_name} failed: {describe_error(error)}"
        ) from error
    except Exception as error:
        raise ConfigError(
            f"algorithm.name = '{name}': importing {module_name} failed: {describe_error(error)}"
        ) from error


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
            f"algorithm.name = '{name}': a field has a type that no setting can have: "
            f"{describe_error(error).partition('. ')[0]}"
        ) from error


def _declared_fields(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    """Yield name, type and default of every setting; those of a shipped algorithm that it inherits from are inlined."""
    held = _held_settings(kind)
    if held is not None:
        yield from ((name, (field.annotation, field)) for name, field in held.model_fields.items() if name != "name")
    if issubclass(kind, BaseModel):
        for name, field in kind.model_fields.items():
            yield name, (field.annotation, field)
    elif dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        for item in dataclasses.fields(kind):
            if item.init and not (held is not None and item.name == _SETTINGS):
                default = ... if item.default is dataclasses.MISSING else item.default
                if item.default_factory is not dataclasses.MISSING:
                    default = item.default_factory()
                yield item.name, (hints[item.name], default)


def _held_settings(kind: type[Any]) -> type[AlgorithmSettings] | None:
    """Return the settings class that a subclass of a shipped algorithm, such as PPO, holds; None for other classes."""
    annotation = get_type_hints(kind).get(_SETTINGS) if dataclasses.is_dataclass(kind) else None
    is_held = isinstance(annotation, type) and issubclass(annotation, AlgorithmSettings)
    return annotation if is_held else None


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
    for loss in losses:
        if loss.agents is not None and not (isinstance(loss.agents, tuple) and loss.agents and _are(loss.agents, int)):
            raise ConfigError(
                f"algorithm.name = '{name}': the loss '{loss.name}' has agents = {loss.agents!r}, expected a tuple of "
                f"agents' numbers, such as (0,), or None"
            )
        if other := next((one for one in losses if one.group == loss.group and one.agents != loss.agents), None):
            raise ConfigError(
                f"algorithm.name = '{name}': the losses '{loss.name}' and '{other.name}' train '{loss.group}' and have "
                f"agents = {loss.agents} and {other.agents}, expected that a group belongs to the same agents; give "
                f"both the same, or each a group of its own"
            )
    state = algorithm.init(0)
    if not isinstance(state, State):
        raise ConfigError(f"algorithm.name = '{name}': init returned {type(state).__name__}, expected a State")
    if wrong := [group for group in state.params if "/" in group]:
        raise ConfigError(
            f"algorithm.name = '{name}': init makes a parameter group '{wrong[0]}', expected a name without '/', which "
            f"divides names in checkpoints"
        )
    if lost := sorted(state.optimizer.keys() - state.params.keys()):
        raise ConfigError(
            f"algorithm.name = '{name}': init makes optimizer state for '{lost[0]}', expected one of the parameter "
            f"groups, with which checkpoints store it: {', '.join(state.params)}; keep other tensors in targets"
        )
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

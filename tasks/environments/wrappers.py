"""Finds the Gymnasium wrappers that a run names in `environment.wrappers`. Imports no torch."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium.wrappers import RecordVideo

from penstock import native
from penstock.storage.errors import ConfigError
from penstock.tasks.environments.local_modules import search_working_directory
from penstock.tasks.setup.config.environment import WrapperSettings, module_of_wrapper

if TYPE_CHECKING:
    from penstock.tasks.setup.config.environment import EnvironmentSettings


@dataclass(frozen=True, slots=True)
class NamedWrapper:
    """A wrapper's class with its arguments: what `gymnasium.make_vec` calls for each environment."""

    name: str
    made_by: type[gymnasium.Wrapper[Any, Any, Any, Any]]
    settings: dict[str, Any] = field(default_factory=dict)

    def __call__(self, env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        """Wrap an environment.

        Raises:
            ValueError: The wrapper refuses it or its arguments.
        """
        given = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        try:
            return self.made_by(env, **self.settings)
        except Exception as error:
            raise ValueError(
                f"environment.wrappers: {self.name}({given}) can't wrap {env}: {type(error).__name__}: {error}"
            ) from error

    def __repr__(self) -> str:
        return self.name


def wrappers_of(settings: EnvironmentSettings, environment_id: str) -> tuple[NamedWrapper, ...]:
    """Return the wrappers that the settings name, in their order; the first is the innermost.

    Raises:
        ConfigError: a wrapper can't be found, or Gymnasium does not step the environment.
    """
    if not settings.wrappers:
        return ()
    if not native.takes_wrappers(environment_id):
        instead = f"gymnasium/{environment_id}"
        other = f"choose environment.id = '{instead}', or " if environment_id in gymnasium.registry else ""
        raise ConfigError(
            f"environment.wrappers: wrappers are for environments that Gymnasium steps, and '{environment_id}' is not "
            f"among them; {other}leave environment.wrappers out"
        )
    named = [WrapperSettings(name=one) if isinstance(one, str) else one for one in settings.wrappers]
    return tuple(NamedWrapper(one.name, _class(one.name), dict(one.settings)) for one in named)


def _class(name: str) -> type[gymnasium.Wrapper[Any, Any, Any, Any]]:
    """Import what a name stands for. The module is searched on Python's path, and last in the working directory."""
    module_name = module_of_wrapper(name)
    search_working_directory()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError(
            f"environment.wrappers: '{name}' can't be found: importing {module_name} failed ({type(error).__name__}: "
            f"{error}); install the package that has it, or correct the name"
        ) from error
    class_name = name[len(module_name) + 1 :]
    found = getattr(module, class_name, None)
    if isinstance(found, type) and issubclass(found, RecordVideo):
        raise ConfigError(
            f"environment.wrappers: {name} writes files, which a stored run must not make its readers do; `penstock "
            f"play RUN --video FILE` records an episode"
        )
    # Of any callable in any package, a store could name one that does harm.
    if not (isinstance(found, type) and issubclass(found, gymnasium.Wrapper)):
        near = ", ".join(get_close_matches(class_name, dir(module), n=3))
        raise ConfigError(
            f"environment.wrappers: {'there is no' if found is None else 'no gymnasium.Wrapper is'} {class_name} in "
            f"{module_name}{f'; similar: {near}' if near else ''}; expected a subclass of gymnasium.Wrapper"
        )
    return found

"""Gives an environment's settings the types that the environment has for them. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from penstock import native
from penstock.storage.errors import ConfigError
from penstock.tasks.environments.header import loaded_header
from penstock.tasks.environments.local_modules import search_working_directory
from penstock.tasks.setup.config.environment import FLOORPLAN

if TYPE_CHECKING:
    from penstock.tasks.setup.config.environment import EnvironmentSettings
    from penstock.tasks.setup.config.run import RunConfig

    ConfigT = TypeVar("ConfigT", bound=RunConfig)

_CHOSEN = (
    *("id", "num_envs", "autoreset_mode", "render_mode", "batch_size", "record_episode_statistics"),
    *("one_array", "one_action"),
)
"""Arguments of `native.make` that a run chooses itself."""
_OF_THE_RUN = (
    *("max_episode_steps", "structured", "action_mask"),
    *("address", "tls_certificate", "reply_seconds", "reconnect_seconds"),
)
"""Arguments of `native.make` that are settings of their own."""


def with_typed_settings(config: ConfigT) -> ConfigT:
    """Return the configuration with whole numbers made floats where the environment has floats; others' unchanged.

    Stored bytes then do not depend on how a number was written: `gravity = 4` is stored as 4.0, as `4.0` is.

    Raises:
        ConfigError: there is no such environment.
    """
    settings = config.environment
    if not settings.settings:
        return config
    if ":" in settings.id:
        search_working_directory()
    try:
        with loaded_header(settings) as loaded_id:
            environment_id = loaded_id
            if settings.id == FLOORPLAN:
                from penstock.tasks.environments.floorplan_blocks import load_blocks  # noqa: PLC0415  (others need none of it)

                environment_id = load_blocks(settings)
            types = native.setting_types(environment_id)
    except (ValueError, ImportError) as error:
        raise ConfigError(f"environment: {error}") from error
    kinds = {name: float if _is_range(name, types) else types.get(name) for name in settings.settings}
    typed = {name: _typed(value, kinds[name]) for name, value in settings.settings.items()}
    return config.model_copy(update={"environment": settings.model_copy(update={"settings": typed})})


def arguments_of(
    settings: EnvironmentSettings, environment_id: str, num_envs: int, first_env: int = 0
) -> dict[str, Any]:
    """Return the settings as `native.make` takes them for a pool of `num_envs`.

    Args:
        settings: the configured ones.
        environment_id: id that is made, which for floorplans is not the configured one.
        num_envs: environments in the pool.
        first_env: number of the pool's first one; environment i has value i modulo the length of a list.

    Raises:
        ConfigError: a setting is one that a run chooses itself, or a list does not fit the tiles.
    """
    for name in settings.settings:
        if name in _OF_THE_RUN:
            raise ConfigError(f"environment.settings.{name}: expected as environment.{name}")
        if name == "wrappers":
            raise ConfigError("environment.settings.wrappers: expected as environment.wrappers, a list of names")
        if name in _CHOSEN:
            raise ConfigError(f"environment.settings.{name}: a run chooses it itself; leave it out")
    given = dict[str, Any](settings.settings)
    if not native.is_native(environment_id):
        return given
    types = native.setting_types(environment_id) if given else {}
    for name, values in given.items():
        # Such a list is one value, of the whole pool; a pair `x_range` is one of each environment.
        if not isinstance(values, list) or types.get(name) is list or _is_range(name, types):
            continue
        if settings.id == FLOORPLAN:
            raise ConfigError(f"environment.settings.{name} = {values!r}: expected one value, which all blocks have")
        if settings.envs_per_tile % len(values):
            raise ConfigError(
                f"environment.settings.{name}: found {len(values)} values, and envs_per_tile = "
                f"{settings.envs_per_tile} is not a multiple of that; choose one, so that every tile has each value as "
                f"often"
            )
        if len({isinstance(value, bool) for value in values}) > 1:
            raise ConfigError(f"environment.settings.{name} = {values!r}: expected values of one type")
        given[name] = [values[env % len(values)] for env in range(first_env, first_env + num_envs)]
    return given


def _is_range(name: str, types: dict[str, type | None]) -> bool:
    """Return whether a pair of that name stands for the fields of its bounds, as Gymnasium's classes take it."""
    bounds = {f"{name.removesuffix('_range')}{end}" for end in ("_min", "_max")}
    return name.endswith("_range") and name not in types and bounds <= types.keys()


def _typed(value: Any, kind: type | None) -> Any:
    if isinstance(value, list):
        return [_typed(part, kind) for part in value]
    return float(value) if kind is float and isinstance(value, int) and not isinstance(value, bool) else value

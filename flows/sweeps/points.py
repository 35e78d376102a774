"""Points of a sweep: values of the varied settings, and the configuration of the run that has them."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from penstock.flows.settings.options import resolve_setting
from penstock.storage.digest import canonical_json, digest
from penstock.storage.errors import ConfigError
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store
from penstock.tasks.environments.header import with_header
from penstock.tasks.setup.config.loading import build_config, with_overrides
from penstock.tasks.setup.distribution.policies import AUTO
from penstock.tasks.setup.planning.initial_parameters import find_initial
from penstock.tasks.setup.planning.preflight import check_distribution, check_environment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penstock.tasks.setup.config.run import TrainConfig

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_NAME_CHARACTERS = 64
_MARK_CHARACTERS = len("-0f1e2d3c")
_PLACES = {"name", "store", "cluster"}


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a sweep."""

    values: Mapping[str, Any]
    """Values of the settings that the sweep varies."""
    config: TrainConfig
    """Configuration of its run; the name follows from the point, so that a restarted sweep finds the run."""

    @property
    def name(self) -> str:
        """Return the name of its run."""
        return str(self.config.name)

    @property
    def folder(self) -> RunFolder:
        """Return the folder of its run, which need not exist yet."""
        return RunFolder(open_store(self.config.store), self.name)


def grid_points(name: str, grid: Mapping[str, Sequence[Any]], config: TrainConfig) -> list[Point]:
    """Return every combination of a grid's values as overrides of shared settings.

    Args:
        name: name of the sweep.
        grid: values by the name of a setting, in full or, where that is unique, its last part.
        config: settings that the runs share; its name is ignored.

    Raises:
        ConfigError: a name or value is wrong, or two combinations are the same run.
    """
    check_sweep_name(name, _MARK_CHARACTERS)
    for setting, choices in grid.items():
        if not choices:
            raise ConfigError(f"grid: '{setting}' has no values; give it one at least, or leave it out")
    paths = dict(zip(varied_settings("grid", grid), map(list, grid.values()), strict=True))
    combinations = itertools.product(*paths.values())
    points = [make_point(name, config, dict(zip(paths, values, strict=True))) for values in combinations]
    names = [point.name for point in points]
    twice = [point.values for point in points if names.count(point.name) > 1]
    if twice:
        raise ConfigError(f"grid: the same run more than once: {twice[0]}; give each value once")
    return points


def check_points(points: Iterable[Point]) -> None:
    """Refuse points whose environment or distribution policy no run can have, or not with its algorithm.

    Each combination is checked once; settings with a fraction, such as a learning rate, make no other one. Of a run
    that parameters are taken from, it is checked that there is its version.

    Raises:
        ConfigError: names the mistake.
        RunNotFoundError: parameters are to be taken from a run that there is not.
    """
    checked: list[tuple[object, ...]] = []
    sources: list[tuple[object, ...]] = []
    for point in points:
        source = point.config.init_from.run, point.config.init_from.version
        if source not in sources:
            sources.append(source)
            find_initial(point.config)
        algorithm = point.config.algorithm
        whole = {name: value for name, value in algorithm if not isinstance(value, float)}
        varied = (point.config.environment, point.config.distribution, type(algorithm), whole)
        if varied not in checked:
            checked.append(varied)
            config = with_header(point.config)
            if config.distribution.policy != AUTO or config.distribution.roles:
                check_distribution(config)
            unfit_if_new = check_environment(open_store(config.store), config)
            if unfit_if_new and not point.folder.exists():
                raise ConfigError(unfit_if_new)


def check_sweep_name(name: str, suffix_characters: int) -> None:
    """Refuse a name that can't begin the names of runs.

    Args:
        name: name of the sweep.
        suffix_characters: length of what the sweep appends to it.

    Raises:
        ConfigError: it has other characters than a run's name, or leaves no room for the suffix.
    """
    most = _NAME_CHARACTERS - suffix_characters
    if len(name) > most or not _NAME.fullmatch(name):
        raise ConfigError(
            f"'{name}' can't name a sweep: expected 1 to {most} of a-z, 0-9, '.', '_', '-', first a letter or digit"
        )


def varied_settings(what: str, names: Iterable[str]) -> list[str]:
    """Return the full names of the settings that a sweep varies.

    Args:
        what: the parameter that names them, for messages.
        names: names in full or, where that is unique, their last part.

    Raises:
        ConfigError: one is no setting, is named twice, is the table of another, or is not part of what a run computes.
    """
    paths = [resolve_setting(name.replace("-", "_")) for name in names]
    fixed = sorted(path for path in paths if path.split(".")[0] in {*_PLACES, "continues"})
    if fixed:
        raise ConfigError(f"{what}: {', '.join(fixed)} can't be varied; it is not part of what a run computes")
    if twice := sorted({path for path in paths if paths.count(path) > 1}):
        raise ConfigError(f"{what}: {', '.join(twice)} is named more than once; name each setting once")
    for path in paths:
        if inside := [other for other in paths if other.startswith(f"{path}.")]:
            raise ConfigError(f"{what}: {path} is the table of {inside[0]}; vary the table, or settings in it")
    return paths


def make_point(sweep: str, config: TrainConfig, values: Mapping[str, Any], name: str | None = None) -> Point:
    """Return the point with these values.

    Args:
        sweep: name of the sweep.
        config: settings that all runs of the sweep share; its name is ignored.
        values: values by the full names of settings.
        name: name of the run; without it, it is made of the sweep's name and a digest of the settings.

    Raises:
        ConfigError: a value is wrong.
    """
    override: dict[str, Any] = {}
    for path, value in values.items():
        *tables, last = path.split(".")
        table = override
        for each in tables:
            table = table.setdefault(each, {})
        table[last] = value
    shared = config.model_dump(mode="json", exclude_unset=True)
    merged = with_overrides(shared, override)
    for path, value in values.items():
        if isinstance(value, dict):  # a table that is varied is the whole table, and not merged with the shared one
            *tables, last = path.split(".")
            reduce(lambda table, each: table[each], tables, merged)[last] = value
    built = build_config({**merged, "name": None})
    name = name or f"{sweep}-{digest(canonical_json([built.algorithm.name, computed_settings(built)]))[:8]}"
    return Point(values, built.model_copy(update={"name": name}))


def computed_settings(config: TrainConfig) -> dict[str, Any]:
    """Return the settings that say what is computed; defaults are left out, so that new settings change nothing."""
    settings = config.model_dump(mode="json", exclude=_PLACES, exclude_defaults=True)
    if "distribution" in settings:  # under its first name, so that sweeps find the runs of earlier versions
        settings["placement"] = settings.pop("distribution")
    return settings

"""Takes the parameters that a new run starts with from a stored run, and keeps them with the new one. Imports no torch.

They are the parameters of a commit's checkpoint, which has every group; a snapshot has those of actors alone. Another
process, which imports torch, makes the algorithm's fresh parameters, which they have to fit.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from penstock.storage.digest import digest
from penstock.storage.errors import ConfigError, ObjectNotFoundError
from penstock.storage.refs import initial_name
from penstock.storage.runs.reader_claims import reading
from penstock.storage.runs.run import open_run
from penstock.storage.tensors import load_tensors, save_tensors
from penstock.tasks.inference.finding import find_snapshot
from penstock.tasks.model.algorithms.custom_probe import ask, question_of, reply
from penstock.tasks.setup.config.custom_algorithm import CustomAlgorithmSettings
from penstock.tasks.setup.config.run import TrainConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from penstock.storage.refs import SnapshotRef
    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.runs.run import RunFolder
    from penstock.tasks.setup.config.run import RunConfig

    Tensors = dict[str, NDArray[Any]]


_COUNTERS = {"rounds"}
"""Counters that older runs have as floats."""
_REWARD_SUMS = "reward_sums"
"""The group of discounted sums of rewards, one for each environment's episode: a new run's episodes begin with it."""
_EXPLORATION = "exploration"
"""The group of what DQN's and QR-DQN's epsilon and the random actions of SAC and TD3 have come to."""
_UPDATES = "updates"
"""The counter of minibatches, which epsilon depends on."""

TensorKind: TypeAlias = tuple[str, tuple[int, ...]]
"""A tensor's dtype, by NumPy's name, and its shape."""


@dataclass(frozen=True, slots=True)
class FreshParameters:
    """The tensors of an algorithm's fresh state, without its optimizers'."""

    params: dict[str, dict[str, TensorKind]]
    """By group and name."""
    targets: dict[str, TensorKind]
    """By name."""


@dataclass(frozen=True, slots=True)
class InitialParameters:
    """Parameters of another run, checked against the algorithm that will start with them."""

    data: bytes = field(repr=False)
    """The file that the new run keeps: tensors by `params/<group>/<name>` and `targets/<name>`."""
    digest: str
    version: int
    origin: dict[str, str | int]
    """Store, run, version, stage and checkpoint that they come from, for `run.json`."""


def find_initial(config: RunConfig) -> tuple[RunFolder, Commit, SnapshotRef] | None:
    """Return the run, the commit and the version whose parameters the settings name; None if they name no run.

    Raises:
        RunNotFoundError: there is no such run.
        ConfigError: it has no such version, or the version is not the last of a stage.
    """
    settings = config.init_from if isinstance(config, TrainConfig) else None
    if settings is None or settings.run is None:
        return None
    source = open_run(settings.run, None if "/" in settings.run else config.store)
    commit, ref = find_snapshot(source, settings.version)
    if ref.version != commit.version:
        raise ConfigError(
            f"init_from.version = {ref.version}: run '{source.name}' keeps all parameters of the last version of a "
            f"stage alone; choose {commit.version}, the last of stage {commit.stage}, or another stage's last"
        )
    return source, commit, ref


def read_initial(config: RunConfig) -> InitialParameters | None:
    """Read and check the parameters that the settings name; None if they name no run.

    Raises:
        RunNotFoundError: there is no such run.
        ConfigError: it has no such version, the version is not the last of a stage, its checkpoint was removed, it has
            other parameters than the digest says, or, one line each, groups, names, shapes or dtypes are not those of
            the new run's algorithm.
        CorruptObjectError: the checkpoint was altered or cut short.
    """
    source_commit = find_initial(config)
    if source_commit is None or not isinstance(config, TrainConfig):
        return None
    settings, (source, commit, ref) = config.init_from, source_commit
    with reading(source.store, "init_from", commit.stage, commit.stage, shards=False, optional=True):
        found = _checkpoint_of(source, commit.checkpoint.name, commit.checkpoint.digest, ref.version)
    stored, groups = _by_group(found), settings.groups
    fresh = fresh_parameters(config)
    # A custom algorithm may have anything under the names that built-in ones give to their schedules.
    left_out = set() if isinstance(config.algorithm, CustomAlgorithmSettings) else {_EXPLORATION, _REWARD_SUMS}
    taken = {f"params/{group}/{name}": array for group, name, array in _each(stored, groups, left_out)}
    targets = {name.removeprefix("targets/"): array for name, array in found.items() if name.startswith("targets/")}
    taken |= {f"targets/{name}": targets[name] for name in _targets_of(targets, stored, groups, left_out)}
    if mistakes := list(_mistakes(stored, taken, fresh, groups, left_out)):
        raise ConfigError("\n".join(f"init_from, run '{source.name}': {mistake}" for mistake in mistakes))
    data = save_tensors(taken, {"initial": sorted(groups)})
    if settings.digest not in (None, digest(data)):
        raise ConfigError(
            f"init_from.digest: version {ref.version} of run '{source.name}' gives parameters with the digest "
            f"{digest(data)}, expected {settings.digest}; leave the digest out, or name the run that they come from"
        )
    origin: dict[str, str | int] = {
        "store": source.root.url,
        "run": source.name,
        "version": ref.version,
        "stage": commit.stage,
        "checkpoint": commit.checkpoint.digest,
    }
    return InitialParameters(data, digest(data), ref.version, origin)


def keep_initial(run: RunFolder, config: RunConfig) -> tuple[RunConfig, dict[str, object]]:
    """Store the parameters with a run that is about to be created.

    Returns:
        The settings with the version's number and the parameters' digest, and what `run.json` says of their origin;
        both unchanged and empty without such parameters. Errors as `read_initial`.
    """
    found = read_initial(config)
    if found is None or not isinstance(config, TrainConfig):
        return config, {}
    run.store.write(initial_name(found.digest), [found.data], durable=True)
    pinned = config.init_from.model_copy(update={"version": found.version, "digest": found.digest})
    return config.model_copy(update={"init_from": pinned}), {"initialised_from": found.origin}


def _checkpoint_of(source: RunFolder, name: str, expected: str, version: int) -> Tensors:
    try:
        tensors, _ = load_tensors(source.store.view(name), name, expected)
    except ObjectNotFoundError as error:
        raise ConfigError(
            f"init_from.version = {version}: the checkpoint '{name}' of run '{source.name}' was removed, as `penstock "
            f"gc` does with old ones; choose newest"
        ) from error
    return tensors


def _by_group(tensors: Mapping[str, NDArray[Any]]) -> dict[str, Tensors]:
    groups: dict[str, Tensors] = {}
    for path, array in tensors.items():
        kind, _, rest = path.partition("/")
        group, _, name = rest.partition("/")
        if kind == "params":
            groups.setdefault(group, {})[name] = array
    return groups


def _each(
    stored: Mapping[str, Tensors], groups: Iterable[str], left_out: set[str]
) -> Iterator[tuple[str, str, NDArray[Any]]]:
    for group in groups or (each for each in stored if each not in left_out):
        yield from ((group, name, array) for name, array in stored.get(group, {}).items())


def _targets_of(
    targets: Tensors, stored: Mapping[str, Tensors], groups: tuple[str, ...], left_out: set[str]
) -> Iterator[str]:
    """Yield the targets to take: all but counters, or those that the named groups have.

    Target networks have the names of their group's parameters, or names below the group's, as normalisers' moments do.
    Counters, which are whole numbers, belong to schedules, and a new run begins them anew, unless it takes exploration
    over where it was.
    """
    for name, array in targets.items():
        of_groups = any(name.startswith(f"{group}/") or name in stored.get(group, {}) for group in groups)
        of_groups = of_groups or (name == _UPDATES and _EXPLORATION in groups)
        of_schedules = bool(left_out) and (name in _COUNTERS or name.startswith(f"{_EXPLORATION}/"))
        if of_groups or (not groups and not of_schedules and np.issubdtype(array.dtype, np.floating)):
            yield name


def _mistakes(
    stored: Mapping[str, Tensors],
    taken: Tensors,
    fresh: FreshParameters,
    groups: tuple[str, ...],
    left_out: set[str],
) -> Iterator[str]:
    """Yield what keeps the new run from starting with these tensors."""
    for group in groups:
        if group not in stored:
            yield f"groups = '{group}': found {', '.join(sorted(stored))}"
    expected: dict[str, TensorKind] = {}
    for group in groups or (each for each in fresh.params if each not in left_out):
        if group not in fresh.params:
            yield f"groups = '{group}': the new run has {', '.join(sorted(fresh.params))}"
        expected |= {f"params/{group}/{name}": kind for name, kind in fresh.params.get(group, {}).items()}
    for name, kind in sorted(expected.items()):
        if name not in taken and (not groups or name.split("/")[1] in stored):
            yield f"{_shown(name)}: not found, expected {_described(*kind)}"
    expected |= {f"targets/{name}": kind for name, kind in fresh.targets.items()}
    for name, array in sorted(taken.items()):
        found = str(array.dtype), tuple(array.shape)
        if name not in expected:
            if not groups or name.startswith("targets/") or name.split("/")[1] in fresh.params:
                yield f"{_shown(name)}: found {_described(*found)}, and the new run has none of that name"
        elif found != expected[name]:
            yield f"{_shown(name)}: found {_described(*found)}, expected {_described(*expected[name])}"


def _shown(name: str) -> str:
    return name.removeprefix("params/")


def _described(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype} {list(shape)}"


def fresh_parameters(config: RunConfig) -> FreshParameters:
    """Make the configured algorithm in another process, and list its tensors; takes seconds.

    Raises:
        ConfigError: the algorithm can't be made.
    """
    if isinstance(config.algorithm, CustomAlgorithmSettings):  # its source may change between two calls
        return _probe(question_of(config), config.algorithm.name)
    return _probe_once(question_of(config), config.algorithm.name)


def _probe(question: str, name: str) -> FreshParameters:
    answer = ask(__name__, question, name)
    return FreshParameters(
        params={group: _kinds(named) for group, named in answer["params"].items()},
        targets=_kinds(answer["targets"]),
    )


_probe_once = lru_cache(maxsize=8)(_probe)


def _kinds(named: dict[str, Any]) -> dict[str, TensorKind]:
    return {name: (dtype, tuple(shape)) for name, (dtype, shape) in named.items()}


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    specs = importlib.import_module("penstock.tasks.specs")
    make_pool = importlib.import_module("penstock.tasks.environments.factory").make_pool
    make_algorithm = importlib.import_module("penstock.tasks.model.algorithms.registry").make_algorithm
    build_config = importlib.import_module("penstock.tasks.setup.config.loading").build_config
    config = build_config({"environment": question["environment"], "algorithm": question["algorithm"]})
    pool = make_pool(config, 1)
    settings = config.environment
    environment = specs.EnvironmentSpec.from_pool(settings.id, dict(pool.environment), settings.num_envs)
    pool.close()
    try:
        state = make_algorithm(config.algorithm, environment).init(0)
    except ConfigError as error:
        return {"error": str(error)}
    return {
        "params": {group: _kinds_of(named) for group, named in state.params.items()},
        "targets": _kinds_of(state.targets),
    }


def _kinds_of(named: Any) -> dict[str, tuple[str, list[int]]]:
    return {name: (str(value.dtype).removeprefix("torch."), list(value.shape)) for name, value in named.items()}


if __name__ == "__main__":
    reply(_answer)

"""Lists an algorithm's fresh parameters in a separate process, since the process that asks imports no torch."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.storage.errors import ConfigError
from penstock.tasks.model.algorithms.custom_probe import ask, question_of, reply
from penstock.tasks.setup.config.custom_algorithm import CustomAlgorithmSettings

if TYPE_CHECKING:
    from penstock.tasks.setup.config.run import RunConfig

TensorKind: TypeAlias = tuple[str, tuple[int, ...]]
"""A tensor's dtype, by NumPy's name, and its shape."""


@dataclass(frozen=True, slots=True)
class FreshParameters:
    """The tensors of an algorithm's fresh state, without its optimizers'."""

    params: dict[str, dict[str, TensorKind]]
    """By group and name."""
    targets: dict[str, TensorKind]
    """By name."""


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
        "params": {group: _described(named) for group, named in state.params.items()},
        "targets": _described(state.targets),
    }


def _described(named: Any) -> dict[str, tuple[str, list[int]]]:
    return {name: (str(value.dtype).removeprefix("torch."), list(value.shape)) for name, value in named.items()}


if __name__ == "__main__":
    reply(_answer)

"""Makes the algorithm that a run's settings name; its module is imported only then."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from penstock.tasks.model.algorithms.custom import make_custom
from penstock.tasks.setup.config.algorithm_base import implementation_of
from penstock.tasks.setup.config.custom_algorithm import CustomAlgorithmSettings

if TYPE_CHECKING:
    from penstock.tasks.model.algorithms.contract import Algorithm
    from penstock.tasks.setup.config.algorithm_base import AlgorithmSettings
    from penstock.tasks.specs import EnvironmentSpec


def make_algorithm(settings: AlgorithmSettings, environment: EnvironmentSpec) -> Algorithm:
    """Make the algorithm of these settings for an environment's spaces.

    Raises:
        ConfigError: it is a custom algorithm, and can't be found or made.
    """
    if isinstance(settings, CustomAlgorithmSettings):
        return make_custom(settings, environment)
    module, _, name = implementation_of(type(settings)).partition(":")
    algorithm: Algorithm = getattr(importlib.import_module(module), name)(settings, environment)
    return algorithm

"""Settings that a user gave and that have no effect beside the others: a run's log names them when it starts.

They are no errors, since runs that were stored with them resume.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from penstock.tasks.setup.distribution.policies import unused_counts

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.tasks.setup.config.algorithm_base import AlgorithmSettings
    from penstock.tasks.setup.config.run import RunConfig


_UNPRIORITISED = ("priority_exponent", operator.not_, "rows are drawn without priorities")
_NOISY = ("noisy_scale", bool, "noisy layers explore, and no epsilon")
_NEEDS: dict[str, tuple[str, Callable[[object], bool], str]] = {
    "final_learning_rate": ("anneal_rounds", operator.not_, "the learning rate does not change"),
    "correction_minibatches": _UNPRIORITISED,
    "priority_correction": _UNPRIORITISED,
    "reward_normalization": ("normalize_reward", operator.not_, "rewards stay as they are"),
    "value_decay": ("normalize_value", operator.not_, "values are learned as they are"),
    "returns_across_rounds": ("return_steps", lambda steps: steps == 1, "no return reaches beyond a round"),
    "first_epsilon": _NOISY,
    "last_epsilon": _NOISY,
    "epsilon_minibatches": _NOISY,
}
"""Settings by the one that takes their effect away, when it does, and what it means."""


def settings_without_effect(config: RunConfig, *, local_store: bool) -> list[str]:
    """Return a line for each such setting, which says why; a setting at its default is none.

    Args:
        config: of the run.
        local_store: whether its store is a folder.
    """
    lines = [
        f"distribution.{name} = {getattr(config.distribution, name)} has no effect: policy "
        f"'{config.make_policy().name}' has no tasks of this kind"
        for name in unused_counts(config.distribution)
    ]
    if config.distribution.snapshot_differences and local_store:
        lines.append(
            "distribution.snapshot_differences = true has no effect: the store is a folder, whose snapshots are used "
            "in place"
        )
    return lines + _of_algorithm(config.algorithm)


def _of_algorithm(algorithm: AlgorithmSettings) -> list[str]:
    values = dict(algorithm)
    changed = {name for name, field in type(algorithm).model_fields.items() if values[name] != field.default}
    lines = [
        f"algorithm.{name} = {values[name]} has no effect: algorithm.{other} is {values[other]}, so {why}"
        for name, (other, is_off, why) in _NEEDS.items()
        if name in changed and other in values and is_off(values[other])
    ]
    if "sequence_steps" in changed and values.get("network", "recurrent") != "recurrent":
        lines.append(
            f"algorithm.sequence_steps = {values['sequence_steps']} has no effect: algorithm.network is "
            f"'{values['network']}', which has no memory"
        )
    if "cells" in changed and values.get("network") != "leaves":
        lines.append(
            f"algorithm.cells = {values['cells']} has no effect: algorithm.network is '{values['network']}', which "
            f"reads no leaves"
        )
    return lines

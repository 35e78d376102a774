"""`penstock check-algorithm`: which algorithm is meant, with which settings. Imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flows.overrides import parse_overrides
from tasks.algorithm_check import check_algorithm
from tasks.config import build_config, choices_of
from tasks.own_algorithm import name_in_file
from tasks.replay_config import ReplayConfig, build_replay_config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from native.check import Report


def check_one_algorithm(target: str, environment_id: str, options: Sequence[str]) -> Report:
    """Check what a person names: a file, `file.py:Class`, `module:Class`, or an algorithm that is there.

    Raises:
        ConfigError: there is none, its settings are wrong, or it can't be made.
    """
    file, _, class_name = target.partition(":")
    name = name_in_file(Path(file), class_name) if Path(file).suffix == ".py" else target
    settings = parse_overrides(options, algorithm=name).get("algorithm", {})
    values = {"algorithm": {**settings, "name": name}}
    if name in choices_of(ReplayConfig.model_fields["algorithm"].annotation):
        return check_algorithm(build_replay_config({"source": {"runs": ["any"]}, **values}), environment_id)
    return check_algorithm(build_config(values), environment_id)

"""`penstock check-algorithm`: which algorithm is meant, with which settings. Imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flows.overrides import parse_overrides
from storage.errors import ConfigError
from tasks.algorithm_check import check_algorithm
from tasks.algorithm_settings.own import OWN
from tasks.config import TrainConfig, build_config, choices_of
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
    trained, replayed = (choices_of(kind.model_fields["algorithm"].annotation) for kind in (TrainConfig, ReplayConfig))
    if ":" not in name and name not in trained | replayed:
        known = ", ".join(known for known in trained | replayed if known != OWN)
        raise ConfigError(
            f"there is no algorithm '{name}'; expected one of {known}, a file of your own with an algorithm in it "
            f"(my_file.py), or module:Class"
        )
    settings = parse_overrides(options, algorithm=name).get("algorithm", {})
    values = {"algorithm": {**settings, "name": name}}
    if name in replayed:
        return check_algorithm(build_replay_config({"source": {"runs": ["any"]}, **values}), environment_id)
    return check_algorithm(build_config(values), environment_id)

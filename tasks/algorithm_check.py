"""Checks of an algorithm on rows that it acted itself: the mistakes that learning hides, and what to do about each."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch

from native.check import Check, Report
from native.subject import CheckFailedError, SkippedError
from storage.cache import NodeCache
from storage.run import RunFolder
from storage.store import open_store
from tasks.algorithm_acting import ActingChecks
from tasks.algorithm_learning import LearningChecks
from tasks.algorithm_trial import Trial
from tasks.config import TrainConfig, build_config
from tasks.context import RunContext, make_algorithm
from tasks.environments import make_pool
from tasks.own_algorithm import said
from tasks.specs import EnvironmentSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from tasks.config import RunConfig

_LIMITS = (12, 9, 20, 50)
"""Limits of an episode, of which the first is taken that lets some episodes be truncated, and others be terminated."""


def check_algorithm(config: RunConfig, environment_id: str) -> Report:
    """Check the algorithm of a configuration on rows of an environment. Leaves torch with one thread.

    Raises:
        ConfigError: there is no such environment, or the algorithm can't be made.
    """
    torch.set_num_threads(1)  # as actors do; batches are small
    with TemporaryDirectory(prefix="penstock-check-") as folder:
        trial = _trial(config, environment_id, Path(folder), _LIMITS[0])
        acting = ActingChecks(trial)
        checks = [
            _outcome("init is a function of the seed", acting.check_init),
            _outcome("a snapshot is enough to act, and rows are as declared", acting.check_rows),
        ]
        if all(check.outcome == "pass" for check in checks):
            trial = _with_both_ends(trial, config, environment_id, Path(folder))
            acting, learning = ActingChecks(trial), LearningChecks(trial)
            checks += [
                _outcome(name, check)
                for name, check in (
                    ("act is a function of its arguments", acting.check_pure),
                    ("act is row-wise", acting.check_row_wise),
                    ("zero noise is greedy", acting.check_greedy),
                    ("learning is a function of its arguments", learning.check_pure),
                    ("the first minibatch's ratio is 1", learning.check_ratio),
                    ("statistics are global", learning.check_tiles),
                    ("parts of a minibatch add up", learning.check_parts),
                    ("a truncated episode and a round's end are bootstrapped", learning.check_bootstrap),
                    ("nothing leaks over an episode's end", learning.check_leak),
                    ("update changes its own group alone", learning.check_update),
                )
            ]
    return Report(f"{config.algorithm.name} on {environment_id}", tuple(checks))


def _trial(config: RunConfig, environment_id: str, folder: Path, limit: int) -> Trial:
    environment = {"id": environment_id, "num_envs": 8, "envs_per_tile": 4, "max_episode_steps": limit}
    values: dict[str, Any] = {"name": "check", "environment": environment, "schedule": {"round_steps": 64}}
    if isinstance(config, TrainConfig):
        values["algorithm"] = config.algorithm.model_dump()
    run = build_config(values)
    pool = make_pool(run, 1)
    described = EnvironmentSpec.from_pool(environment_id, dict(pool.environment))
    pool.close()
    context = RunContext(
        config=run,
        run=RunFolder(open_store(str(folder / "runs")), "check"),
        cache=NodeCache(folder / "cache"),
        environment=described,
        algorithm=make_algorithm(config, described),
    )
    return Trial(context)


def _with_both_ends(trial: Trial, config: RunConfig, environment_id: str, folder: Path) -> Trial:
    for limit in _LIMITS:
        trial = _trial(config, environment_id, folder, limit)
        ends = [trial.ends(trajectory) for trajectory in trial.trajectories]
        if all(torch.cat([end[kind] for end in ends]).any() for kind in (0, 1)):
            break
    return trial


def _outcome(name: str, check: Callable[[], str]) -> Check:
    try:
        return Check(name, "pass", check())
    except SkippedError as reason:
        return Check(name, "skip", str(reason))
    except CheckFailedError as failure:
        return Check(name, "fail", str(failure))
    except Exception as error:  # noqa: BLE001  (whatever an algorithm raises)
        return Check(name, "fail", said(error))

"""Runs all checks of an algorithm on rows that it acted itself; a failure names the mistake and its remedy."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import torch

from penstock.native.conformance.report import Report, outcome
from penstock.storage.cache.node_cache import NodeCache
from penstock.storage.error_places import describe_error
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store
from penstock.tasks.conformance.acting import ActingChecks
from penstock.tasks.conformance.learning import LearningChecks
from penstock.tasks.conformance.small_run import LIMITS, small_run
from penstock.tasks.conformance.trial import Trial
from penstock.tasks.model.algorithms.registry import make_algorithm
from penstock.tasks.runtime.run_context import RunContext
from penstock.tasks.specs import EnvironmentSpec

if TYPE_CHECKING:
    from penstock.tasks.setup.config.environment import EnvironmentSettings
    from penstock.tasks.setup.config.run import RunConfig


def check_algorithm(config: RunConfig, environment: EnvironmentSettings) -> Report:
    """Check a configuration's algorithm on rows of an environment; torch keeps one thread afterwards.

    Of the environment's settings the numbers of copies and the time limit are the check's own.

    Raises:
        ConfigError: there is no such environment, or the algorithm can't be made.
    """
    torch.set_num_threads(1)  # as actors do; batches are small
    with TemporaryDirectory(prefix="penstock-check-") as folder:
        trial = _trial(config, environment, Path(folder), LIMITS[0])
        acting = ActingChecks(trial)
        checks = [
            outcome("init is a function of the seed", acting.check_init, describe_error),
            outcome("a snapshot is enough to act, and rows are as declared", acting.check_rows, describe_error),
        ]
        if all(check.outcome == "pass" for check in checks):
            trial = _with_both_ends(trial, config, environment, Path(folder))
            acting, learning = ActingChecks(trial), LearningChecks(trial)
            checks += [
                outcome(name, check, describe_error)
                for name, check in (
                    ("act is a function of its arguments", acting.check_pure),
                    ("act is row-wise", acting.check_row_wise),
                    ("zero noise is greedy", acting.check_greedy),
                    ("learning is a function of its arguments", learning.check_pure),
                    ("the first minibatch's ratio is 1", learning.check_ratio),
                    ("statistics are global", learning.check_tiles),
                    ("parts of a minibatch add up", learning.check_parts),
                    ("kernels and torch agree", learning.check_kernels),
                    ("a truncated episode and a round's end are bootstrapped", learning.check_bootstrap),
                    ("nothing leaks over an episode's end", learning.check_leak),
                    ("update changes its own group alone", learning.check_update),
                )
            ]
    return Report(f"{config.algorithm.name} on {environment.label}", tuple(checks))


def _trial(config: RunConfig, environment: EnvironmentSettings, folder: Path, limit: int) -> Trial:
    run, formats = small_run(config, environment, limit)
    described = EnvironmentSpec.from_pool(run.environment.id, dict(formats), run.environment.num_envs)
    context = RunContext(
        config=run,
        run=RunFolder(open_store(str(folder / "runs")), "check"),
        cache=NodeCache(folder / "cache"),
        environment=described,
        algorithm=make_algorithm(config.algorithm, described),
        policy=run.make_policy(),
    )
    return Trial(context)


def _with_both_ends(trial: Trial, config: RunConfig, environment: EnvironmentSettings, folder: Path) -> Trial:
    for limit in LIMITS:
        trial = _trial(config, environment, folder, limit)
        ends = [trial.ends(trajectory) for trajectory in trial.trajectories]
        if all(torch.cat([end[kind] for end in ends]).any() for kind in (0, 1)):
            break
    return trial

"""A dry run: acts and learns rounds of a temporary run in this process, without a gang."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store
from penstock.tasks.model.algorithms.contract import window_spec
from penstock.tasks.roles.learning.round_update import StageTally, learn_batches
from penstock.tasks.runtime.assignment import Assignment
from penstock.tasks.runtime.run_context import load_context
from penstock.tasks.setup.distribution.policies import AUTO, single_learner_coarse
from penstock.tasks.specs import Trajectory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.tasks.roles.acting.tile import ActedRound
    from penstock.tasks.roles.reducing.reduction import LocalReduction
    from penstock.tasks.runtime.run_context import RunContext
    from penstock.tasks.setup.config.run import RunConfig
    from penstock.tasks.specs import Batch, State


class NullMembership:
    """A membership without a gang: notifications are dropped."""

    def notify(self, fragment: str, key: str, value: Any, replica: int | None = None) -> None:
        """Drop the notification."""

    def fail(self, error: BaseException) -> None:
        """Drop the error of a background thread, which whoever waits for that thread gets as well."""


@contextmanager
def trial_run(config: RunConfig) -> Iterator[tuple[Assignment, RunContext]]:
    """Create a run of that configuration in a temporary folder. Any policy will do for `auto`: none is run."""
    if config.distribution.policy == AUTO and not config.distribution.roles:
        distribution = config.distribution.model_copy(update={"policy": single_learner_coarse(1).name})
        config = config.model_copy(update={"distribution": distribution})
    with tempfile.TemporaryDirectory(prefix="penstock-calibration-") as folder:
        root = open_store(folder)
        stored = config.model_dump(mode="json", exclude={"store", "cluster"}) | {"name": "trial"}
        RunFolder(root, "trial").create({"config": stored})
        assignment = Assignment(
            store=root.url,
            run="trial",
            stage=0,
            attempt=0,
            gang="",
            generation=1,
            role="act",
            replica=0,
            replicas=config.environment.tiles,
            task_run="",
            cache_folder=f"{folder}/cache",
            device=config.distribution.device,
        )
        yield assignment, load_context(assignment)


@torch.no_grad()
def training_rows(context: RunContext, state: State, acted: ActedRound) -> Batch:
    """Return the training rows that the algorithm's `post` computes from a tile's round."""
    columns = {name: torch.from_numpy(array.copy()) for name, array in acted.buffers.arrays.items()}
    ends = torch.from_numpy(acted.end.bootstrap_rows), torch.from_numpy(acted.end.bootstrap_observation.copy())
    params = {} if window_spec(context.algorithm) else state.params
    return context.algorithm.post(params, Trajectory(columns, *ends, context.envs_of(acted.tile).start))


def learn_once(context: RunContext, state: State, batches: list[Batch], reduction: LocalReduction) -> State:
    """Learn one round from the training rows of these tiles, and return the state after it."""
    return learn_batches(context, state, 0, batches, StageTally(), reduction)

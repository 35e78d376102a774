"""Rounds of a run that is only tried: acted and learned in this process, with nobody to tell."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from storage.run import RunFolder
from storage.store import open_store
from tasks.algorithm import window_spec
from tasks.assignment import Assignment
from tasks.context import load_context
from tasks.learn import StageTally, learn_batch
from tasks.specs import Trajectory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tasks.config import RunConfig
    from tasks.context import RunContext
    from tasks.reduce import LocalReduction
    from tasks.specs import Batch, State
    from tasks.tile import ActedRound


class Nobody:
    """Stands where a gang would be: nobody is there to be hinted."""

    def hint(self, fragment: str, key: str, value: Any, replica: int | None = None) -> None:
        """Drop it."""


@contextmanager
def trial_run(config: RunConfig) -> Iterator[tuple[Assignment, RunContext]]:
    """A run of that configuration in a folder of its own."""
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
            device=config.placement.device,
        )
        yield assignment, load_context(assignment)


@torch.no_grad()
def training_rows(context: RunContext, state: State, acted: ActedRound) -> Batch:
    """What `post` makes of a tile's round."""
    columns = {name: torch.from_numpy(array.copy()) for name, array in acted.buffers.arrays.items()}
    ends = torch.from_numpy(acted.end.bootstrap_rows), torch.from_numpy(acted.end.bootstrap_observation.copy())
    params = {} if window_spec(context.algorithm) else state.params
    return context.algorithm.post(params, Trajectory(columns, *ends))


def learn_once(context: RunContext, state: State, batches: list[Batch], reduction: LocalReduction) -> None:
    """Learn one round of these tiles' training rows."""
    with torch.no_grad():
        sums = [context.algorithm.stats(batch) for batch in batches]
        stats = reduction.stats({name: torch.stack([part[name] for part in sums]).sum(0) for name in sums[0]})
        batch: Batch = {name: torch.cat([part[name] for part in batches]) for name in batches[0]}
    learn_batch(context, state, 0, batch, stats, StageTally(), reduction)

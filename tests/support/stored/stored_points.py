"""Store runs of chosen returns as training would, so that decisions about them are tested without training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.storage.digest import digest
from penstock.storage.refs import Ref
from penstock.storage.runs.commit_schema import Commit
from penstock.storage.runs.commits import commit_ref
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store
from penstock.tasks.driver.run import describe_run
from penstock.tasks.setup.config.loading import build_config

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penstock.tasks.setup.config.run import TrainConfig

STAGES = 4


def small_config(store: Path, **settings: object) -> TrainConfig:
    """Return settings of runs of four stages."""
    return build_config(
        {
            "store": str(store),
            "environment": {"num_envs": 8, "envs_per_tile": 4},
            "algorithm": {"hidden": [8], "epochs": 1, "minibatches": 2},
            "schedule": {"round_steps": 16, "rounds_per_stage": 4, "max_stages": STAGES, "evaluation_episodes": 2},
            **settings,
        }
    )


def store_run(config: TrainConfig, name: str, returns: Sequence[float], *, finished: bool = True) -> RunFolder:
    """Store a run with a commit for each return; the objects that its commits name are not there."""
    config = config.model_copy(update={"name": name})
    run = RunFolder(open_store(config.store), name)
    run.create(describe_run(config))
    parent = run.genesis()
    for stage, mean in enumerate(returns):
        found = digest(f"{config.seed} {stage} {mean}".encode())
        commit = Commit(
            stage=stage,
            parent=parent,
            rounds=(4 * stage, 4 * stage + 3),
            version=4 * stage + 4,
            env_steps=512 * (stage + 1),
            episodes=stage,
            shards=(),
            states=(),
            snapshots=(),
            checkpoint=Ref(f"checkpoints/{stage:08d}-{found}.safetensors", found, 1),
            metrics={"episode_return": mean - 1.0},
            evaluation={"mean_return": mean, "min_return": mean - 400.0, "max_return": mean + 400.0, "episodes": 2},
            finished="last stage reached" if finished and stage + 1 == len(returns) else None,
        )
        run.log.append(commit)
        parent = commit_ref(commit).digest
    return run

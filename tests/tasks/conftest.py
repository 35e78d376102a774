"""Small runs in a temporary store, as the members of a gang see them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage.run import RunFolder
from storage.store import open_store
from tasks.assignment import Assignment
from tasks.config import build_config, merge
from tasks.context import RunContext, _load

SMALL: dict[str, Any] = {
    "name": "small",
    "seed": 5,
    "environment": {"id": "CartPole-v1", "num_envs": 6, "envs_per_tile": 3, "max_episode_steps": 5},
    "algorithm": {"hidden": [8], "minibatches": 2, "epochs": 1},
    "schedule": {"round_steps": 8, "rounds_per_stage": 2, "max_stages": 2},
}

MakeContext = Callable[..., RunContext]


def first_stage_of(role: str, replicas: int = 1, **changed: Any) -> Assignment:
    """What the first member of a role is told of the first stage of `SMALL`."""
    return Assignment(
        **{
            "store": "", "run": "small", "stage": 0, "attempt": 0, "gang": "", "generation": 1, "role": role,
            "replica": 0, "replicas": replicas, "task_run": "", "cache_folder": "", "device": "cpu", **changed,
        }
    )  # fmt: skip


@pytest.fixture
def make_context(tmp_path: Path) -> MakeContext:
    """Creates a run with the given settings laid over `SMALL`, and loads it as a worker does."""

    def make(values: dict[str, Any] | None = None, name: str = "small") -> RunContext:
        values = values or {}
        # Settings of one algorithm are no settings of another.
        small = SMALL if "name" not in values.get("algorithm", {}) else {**SMALL, "algorithm": {}}
        config = build_config(merge(small, values))
        root = open_store(str(tmp_path / "root"))
        RunFolder(root, name).create({"config": config.model_dump(mode="json", exclude={"store", "cluster"})})
        return _load(root.url, name, str(tmp_path / "cache"))

    return make

"""Small runs in a temporary store, as the members of a gang see them."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import native
from penstock.storage.runs.run import RunFolder
from penstock.storage.stores.open import open_store
from penstock.tasks.runtime.assignment import Assignment
from penstock.tasks.runtime.run_context import RunContext, _load
from penstock.tasks.setup.config.loading import build_config, merge
from penstock.tasks.setup.config.replay import build_replay_config

from ..support.environments.leaving import DESERTING, LEAVING

if TYPE_CHECKING:
    from penstock.tasks.setup.config.run import RunConfig

SMALL: dict[str, Any] = {
    "name": "small",
    "seed": 5,
    "environment": {"id": "CartPole-v1", "num_envs": 6, "envs_per_tile": 3, "max_episode_steps": 5},
    "algorithm": {"hidden": [8], "minibatches": 2, "epochs": 1},
    "schedule": {"round_steps": 8, "rounds_per_stage": 2, "max_stages": 2},
}

MakeContext = Callable[..., RunContext]


def first_stage_of(role: str, replicas: int = 1, **changed: Any) -> Assignment:
    """Return the assignment of a role's first member in the first stage of `SMALL`."""
    return Assignment(
        **{
            "store": "", "run": "small", "stage": 0, "attempt": 0, "gang": "", "generation": 1, "role": role,
            "replica": 0, "replicas": replicas, "task_run": "", "cache_folder": "", "device": "cpu", **changed,
        }
    )  # fmt: skip


@pytest.fixture(scope="session")
def leaving(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Load `Leaving-v0` and `Deserting-v0`, whose second agent leaves its episodes; compiled once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path_factory.mktemp("libraries")))
        for header in (LEAVING, DESERTING):
            native.load(header, flags=["-O0"])


@pytest.fixture
def make_context(tmp_path: Path) -> MakeContext:
    """Return a function that creates a run with settings merged over `SMALL`, and loads it as a worker does.

    A replay has the given settings alone.
    """

    def make(values: dict[str, Any] | None = None, name: str = "small") -> RunContext:
        values = values or {}
        # Another algorithm does not accept the algorithm settings of `SMALL`.
        small = SMALL if "name" not in values.get("algorithm", {}) else {**SMALL, "algorithm": {}}
        is_replay = "source" in values
        config: RunConfig = build_replay_config(values) if is_replay else build_config(merge(small, values))
        root = open_store(str(tmp_path / "root"))
        RunFolder(root, name).create({"config": config.model_dump(mode="json", exclude={"store", "cluster"})})
        return _load(root.url, name, "", str(tmp_path / "cache"))

    return make

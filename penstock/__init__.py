"""The public names of Penstock: reinforcement learning as a durable data pipeline.

A name is imported from its own module when it is first used, so `import penstock` loads neither torch, Prefect nor
Dask. Functions for algorithms are in `penstock.nn`. docs/stability.md says which of these names and formats are stable.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.flows.api.run import Run
    from penstock.flows.api.training import evaluate, resume, train
    from penstock.flows.observers.callbacks.callback import Callback
    from penstock.flows.observers.callbacks.records import RunEnd, RunStart, StageRecord
    from penstock.native import Pool, environment_ids, load, load_library, make
    from penstock.storage.errors import ConfigError, CorruptObjectError, ObjectNotFoundError, PenstockError, StoreError
    from penstock.storage.refs import ShardRef
    from penstock.storage.runs.run import RunFolder, list_runs
    from penstock.storage.shards.codec import decode_shard
    from penstock.storage.shards.reader import open_shard
    from penstock.storage.shards.specs import Spec
    from penstock.storage.stores.open import open_store
    from penstock.storage.stores.protocol import Store
    from penstock.tasks.data.datasets.replay_buffer import StoredReplayBuffer
    from penstock.tasks.data.datasets.torch_dataset import TrajectoryDataset
    from penstock.tasks.inference.loading import load_policy
    from penstock.tasks.inference.policy import Policy
    from penstock.tasks.model.algorithms.contract import Algorithm, Loss
    from penstock.tasks.setup.config.loading import build_config, load_preset
    from penstock.tasks.setup.config.run import TrainConfig
    from penstock.tasks.specs import (
        ActionLeaf,
        ActionSpec,
        EnvironmentSpec,
        LossInputs,
        LossResult,
        NoiseSpec,
        ParameterGroup,
        State,
    )

    __version__: str

_MODULES = {
    "ActionLeaf": "penstock.tasks.specs",
    "ActionSpec": "penstock.tasks.specs",
    "Algorithm": "penstock.tasks.model.algorithms.contract",
    "Callback": "penstock.flows.observers.callbacks.callback",
    "ConfigError": "penstock.storage.errors",
    "CorruptObjectError": "penstock.storage.errors",
    "EnvironmentSpec": "penstock.tasks.specs",
    "Loss": "penstock.tasks.model.algorithms.contract",
    "LossInputs": "penstock.tasks.specs",
    "LossResult": "penstock.tasks.specs",
    "NoiseSpec": "penstock.tasks.specs",
    "ObjectNotFoundError": "penstock.storage.errors",
    "ParameterGroup": "penstock.tasks.specs",
    "PenstockError": "penstock.storage.errors",
    "Policy": "penstock.tasks.inference.policy",
    "Pool": "penstock.native",
    "Run": "penstock.flows.api.run",
    "RunEnd": "penstock.flows.observers.callbacks.records",
    "RunFolder": "penstock.storage.runs.run",
    "RunStart": "penstock.flows.observers.callbacks.records",
    "ShardRef": "penstock.storage.refs",
    "Spec": "penstock.storage.shards.specs",
    "StageRecord": "penstock.flows.observers.callbacks.records",
    "State": "penstock.tasks.specs",
    "Store": "penstock.storage.stores.protocol",
    "StoreError": "penstock.storage.errors",
    "StoredReplayBuffer": "penstock.tasks.data.datasets.replay_buffer",
    "TrainConfig": "penstock.tasks.setup.config.run",
    "TrajectoryDataset": "penstock.tasks.data.datasets.torch_dataset",
    "build_config": "penstock.tasks.setup.config.loading",
    "decode_shard": "penstock.storage.shards.codec",
    "environment_ids": "penstock.native",
    "evaluate": "penstock.flows.api.training",
    "list_runs": "penstock.storage.runs.run",
    "load": "penstock.native",
    "load_library": "penstock.native",
    "load_policy": "penstock.tasks.inference.loading",
    "load_preset": "penstock.tasks.setup.config.loading",
    "make": "penstock.native",
    "open_shard": "penstock.storage.shards.reader",
    "open_store": "penstock.storage.stores.open",
    "resume": "penstock.flows.api.training",
    "train": "penstock.flows.api.training",
}

__all__ = [
    "ActionLeaf",
    "ActionSpec",
    "Algorithm",
    "Callback",
    "ConfigError",
    "CorruptObjectError",
    "EnvironmentSpec",
    "Loss",
    "LossInputs",
    "LossResult",
    "NoiseSpec",
    "ObjectNotFoundError",
    "ParameterGroup",
    "PenstockError",
    "Policy",
    "Pool",
    "Run",
    "RunEnd",
    "RunFolder",
    "RunStart",
    "ShardRef",
    "Spec",
    "StageRecord",
    "State",
    "Store",
    "StoreError",
    "StoredReplayBuffer",
    "TrainConfig",
    "TrajectoryDataset",
    "__version__",
    "build_config",
    "decode_shard",
    "environment_ids",
    "evaluate",
    "list_runs",
    "load",
    "load_library",
    "load_policy",
    "load_preset",
    "make",
    "open_shard",
    "open_store",
    "resume",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its module, once."""
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 - read only when asked for

        value: Any = version("penstock-rl")
    elif name in _MODULES:
        value = getattr(import_module(_MODULES[name]), name)
    else:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}; its names are {', '.join(__all__)}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "flows", "native", "nn", "storage", "tasks"]

"""Loads the run that a member works for: read once from `run.json` by each worker process."""

from __future__ import annotations

import os
import threading
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.storage import system
from penstock.storage.cache.node_cache import LIMIT_BYTES, NodeCache, default_cache_folder
from penstock.storage.errors import ConfigError
from penstock.storage.refs import Ref
from penstock.storage.runs.commits import read_commit
from penstock.storage.runs.run import RunFolder, digest_of_description
from penstock.storage.stores.counted import CountedStore, StoreTally
from penstock.storage.stores.open import open_store
from penstock.tasks.environments.factory import make_pool
from penstock.tasks.model.algorithms.registry import make_algorithm
from penstock.tasks.model.algorithms.source_digest import require_source
from penstock.tasks.runtime.stored_objects import SharedListing
from penstock.tasks.setup.config.replay import build_stored_config
from penstock.tasks.setup.config.run import RunConfig, TrainConfig
from penstock.tasks.setup.config.shards import shard_columns, stored_as
from penstock.tasks.specs import EnvironmentSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.native import EnvironmentPool
    from penstock.storage.refs import ShardRef, StateRef
    from penstock.storage.runs.commit_schema import Commit
    from penstock.storage.shards.specs import Spec
    from penstock.tasks.model.algorithms.contract import Algorithm
    from penstock.tasks.runtime.assignment import Assignment
    from penstock.tasks.setup.distribution.policies import DistributionPolicy


class RecentCommit:
    """Caches the last commit for all members of a process: a commit names every shard of its stage."""

    def __init__(self) -> None:
        self._lock = system.condition()
        self._last: tuple[str, Commit] | None = None

    def get(self, content: str, read: Callable[[], Commit]) -> Commit:
        """Return the commit of that digest, read by one thread while the others wait."""
        with self._lock:
            if self._last is None or self._last[0] != content:
                self._last = content, read()
            return self._last[1]


@dataclass(frozen=True, slots=True)
class RunContext:
    """A run as its members see it."""

    config: RunConfig
    run: RunFolder
    cache: NodeCache
    environment: EnvironmentSpec
    algorithm: Algorithm
    policy: DistributionPolicy
    """Resolved once per process. A role's number of replicas may have changed since: a member's assignment has it."""
    resets_each_stage: bool = False
    """True if every stage begins with new episodes, because environments can't save their state."""
    recent_commit: RecentCommit = field(default_factory=RecentCommit)
    shard_listing: SharedListing[ShardRef] = field(default_factory=SharedListing)
    state_listing: SharedListing[StateRef] = field(default_factory=SharedListing)
    store_calls: StoreTally = field(default_factory=StoreTally)
    """Counts the calls of the run's store in this process."""

    @property
    def columns(self) -> dict[str, Spec]:
        """Return the columns of every shard as stored: the environment's, the algorithm's, and identifiers."""
        columns = shard_columns(self.environment.observation, self.environment.reward, self.algorithm.rows)
        return stored_as(columns, self.config.shards) if isinstance(self.config, TrainConfig) else columns

    @property
    def round_rows(self) -> int:
        """Return the steps of all environments in a round."""
        return self.config.environment.num_envs * self.config.schedule.round_steps

    @property
    def tile_rows(self) -> int:
        """Return the steps of a tile's environments in a round."""
        return self.config.environment.envs_per_tile * self.config.schedule.round_steps

    def rounds_of(self, stage: int) -> range:
        """Return the rounds of a stage, counted over the whole run."""
        rounds = self.config.schedule.rounds_per_stage
        return range(stage * rounds, (stage + 1) * rounds)

    def acting_version(self, round_: int) -> int:
        """Return the version of the parameters that a round acts with; this alone bounds staleness."""
        return max(0, round_ - self.config.schedule.lag)

    def commit_before(self, assignment: Assignment) -> Commit | None:
        """Return the commit that an assignment's stage resumes from; None before the first.

        It is read once by each node and parsed once by each process, whose members share it.

        Raises:
            ObjectNotFoundError: it does not exist.
            CorruptObjectError: it was altered, or replaced by another one.
        """
        if assignment.before is None:
            return None
        ref = Ref.from_json(assignment.before)
        return self.recent_commit.get(ref.digest, lambda: read_commit(self.cache, self.run.store, ref))

    def envs_of(self, tile: int) -> range:
        """Return the environment ids of a tile."""
        envs = self.config.environment.envs_per_tile
        return range(tile * envs, (tile + 1) * envs)

    def make_pool(self, num_envs: int) -> EnvironmentPool:
        """Return a new pool of the run's environment."""
        return make_pool(self.config, num_envs)


_loading = threading.Lock()
"""Held while a run is loaded: members that begin together would each load it, and share no connection and no cache."""


@lru_cache(maxsize=8)
def _load(
    store: str, name: str, description: str, cache_folder: str, cache_limit_bytes: int = LIMIT_BYTES
) -> RunContext:
    tally = StoreTally()
    run = RunFolder(CountedStore(open_store(store), tally), name)
    loaded = run.load("config")
    if description and digest_of_description(loaded) != description:
        raise ConfigError(
            f"run '{name}' in {store} has another description here than where its work was assigned: the store is "
            f"another one on this host, or the run was replaced meanwhile. Give every process the same store, and "
            f"resume the run"
        )
    config = build_stored_config(loaded["config"])
    with closing(make_pool(config, 1)) as pool:
        described = dict(pool.environment)
        environment = EnvironmentSpec.from_pool(config.environment.id, described, config.environment.num_envs)
    return RunContext(
        config=config,
        run=run,
        cache=NodeCache(_cache_of(cache_folder), cache_limit_bytes),
        environment=environment,
        algorithm=make_algorithm(config.algorithm, environment),
        policy=config.make_policy(),
        resets_each_stage=pool.restores_by_replay,
        store_calls=tally,
    )


def _cache_of(folder: str) -> Path:
    """Return the node's cache: in a configured folder, which users may share, each has a private one."""
    return Path(folder) / f"penstock-{os.geteuid()}" if folder else default_cache_folder()


def load_context(assignment: Assignment) -> RunContext:
    """Return the run of an assignment; the first member in a process reads it from storage, and the others wait.

    Raises:
        ConfigError: its custom algorithm can't be found or constructed here, or has another source; or the run here is
            another one.
    """
    with _loading:
        context = _load(
            assignment.store,
            assignment.run,
            assignment.description,
            assignment.cache_folder,
            assignment.cache_limit_bytes,
        )
    if assignment.custom_files:
        require_source(context.config.algorithm.name, assignment.custom_files)
    return context

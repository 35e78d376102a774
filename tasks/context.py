"""What a member knows of its run: read once from `run.json` by each worker process."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.cache import LIMIT_BYTES, NodeCache
from storage.commits import read_commit
from storage.refs import Ref
from storage.run import RunFolder
from storage.store import open_store
from tasks.algorithm_settings.behaviour_cloning import BehaviourCloningSettings
from tasks.algorithm_settings.dqn import DQNSettings
from tasks.algorithm_settings.impala import IMPALASettings
from tasks.algorithm_settings.ippo import IPPOSettings
from tasks.algorithm_settings.iql import IQLSettings
from tasks.algorithm_settings.mappo import MAPPOSettings
from tasks.algorithm_settings.own import OwnSettings
from tasks.algorithm_settings.ppo import PPOSettings
from tasks.algorithm_settings.sac import SACSettings
from tasks.algorithms.behaviour_cloning import BehaviourCloning
from tasks.algorithms.dqn import DQN
from tasks.algorithms.impala import IMPALA
from tasks.algorithms.iql import IQL
from tasks.algorithms.mappo import MAPPO
from tasks.algorithms.ppo import PPO
from tasks.algorithms.sac import SAC
from tasks.columns import shard_columns, stored_as
from tasks.config import RunConfig, TrainConfig
from tasks.environments import make_pool
from tasks.own_algorithm import make_own
from tasks.own_source import require_source
from tasks.replay_config import build_stored_config
from tasks.specs import EnvironmentSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from native import EnvironmentPool
    from storage.specs import Spec
    from tasks.algorithm import Algorithm
    from tasks.algorithm_settings.base import AlgorithmSettings
    from tasks.assignment import Assignment
    from tasks.policies import DistributionPolicy


class RecentCommit:
    """The commit that was read last, for all members of a process: each names every shard of its stage."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: tuple[str, dict[str, Any]] | None = None

    def get(self, content: str, read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The commit of that digest, read by one thread while the others wait."""
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
    restarts: bool = False
    """Whether every stage begins with new episodes, because environments can't give their state."""
    recent_commit: RecentCommit = field(default_factory=RecentCommit)

    @property
    def columns(self) -> dict[str, Spec]:
        """Columns of every shard, stored as configured: the environment's, the algorithm's, who acted with what."""
        columns = shard_columns(self.environment.observation, self.environment.reward, self.algorithm.rows)
        return stored_as(columns, self.config.shards) if isinstance(self.config, TrainConfig) else columns

    @property
    def policy(self) -> DistributionPolicy:
        """Who does what. How many replicas of a role there are may have changed since: a member's assignment knows."""
        return self.config.policy

    @property
    def round_rows(self) -> int:
        """Steps of all environments in a round."""
        return self.config.environment.num_envs * self.config.schedule.round_steps

    @property
    def tile_rows(self) -> int:
        """Steps of a tile's environments in a round."""
        return self.config.environment.envs_per_tile * self.config.schedule.round_steps

    def rounds_of(self, stage: int) -> range:
        """Rounds of a stage, counted over the whole run."""
        rounds = self.config.schedule.rounds_per_stage
        return range(stage * rounds, (stage + 1) * rounds)

    def acting_version(self, round_: int) -> int:
        """The parameters that a round acts with; staleness is bounded here and nowhere else."""
        return max(0, round_ - self.config.schedule.lag)

    def commit_before(self, assignment: Assignment) -> dict[str, Any] | None:
        """The commit that an assignment's stage goes on from; None before the first.

        Read once by each node and parsed once by each process, whose members share it: change nothing in it.

        Raises:
            ObjectNotFoundError: it is gone.
            CorruptObjectError: it was altered, or another one stands there.
        """
        if assignment.before is None:
            return None
        ref = Ref.from_json(assignment.before)
        return self.recent_commit.get(ref.digest, lambda: read_commit(self.cache, self.run.store, ref))

    def envs_of(self, tile: int) -> range:
        """Environment ids of a tile."""
        envs = self.config.environment.envs_per_tile
        return range(tile * envs, (tile + 1) * envs)

    def make_pool(self, num_envs: int) -> EnvironmentPool:
        """A pool of the run's environment."""
        return make_pool(self.config, num_envs)


_ALGORITHMS: dict[type[AlgorithmSettings], Callable[..., Algorithm]] = {
    PPOSettings: PPO,
    IMPALASettings: IMPALA,
    MAPPOSettings: MAPPO,
    IPPOSettings: partial(MAPPO, central_critic=False),
    DQNSettings: DQN,
    SACSettings: SAC,
    BehaviourCloningSettings: BehaviourCloning,
    IQLSettings: IQL,
}


def make_algorithm(config: RunConfig, environment: EnvironmentSpec) -> Algorithm:
    """The configured algorithm for an environment's spaces.

    Raises:
        ConfigError: it is one's own, and can't be found or made.
    """
    if isinstance(config.algorithm, OwnSettings):
        return make_own(config.algorithm, environment)
    make = _ALGORITHMS[type(config.algorithm)]
    return make(environment=environment, **config.algorithm.model_dump(exclude={"name"}))


@lru_cache(maxsize=8)
def _load(store: str, name: str, cache_folder: str, cache_limit_bytes: int = LIMIT_BYTES) -> RunContext:
    run = RunFolder(open_store(store), name)
    config = build_stored_config(run.load("config")["config"])
    with closing(make_pool(config, 1)) as pool:
        environment = EnvironmentSpec.from_pool(config.environment.id, dict(pool.environment))
    return RunContext(
        config=config,
        run=run,
        cache=NodeCache(Path(cache_folder), cache_limit_bytes),
        environment=environment,
        algorithm=make_algorithm(config, environment),
        restarts=pool.repeats_state,
    )


def load_context(assignment: Assignment) -> RunContext:
    """The run of an assignment; read from storage by the first member in a process.

    Raises:
        ConfigError: its algorithm is one's own, and can't be found or made here, or has another source.
    """
    context = _load(assignment.store, assignment.run, assignment.cache_folder, assignment.cache_limit_bytes)
    if assignment.own_files:
        require_source(context.config.algorithm.name, assignment.own_files)
    return context

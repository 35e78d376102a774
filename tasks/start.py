"""What is checked before anything is started, so that a mistake costs a second and not a minute. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from storage.errors import ConfigError, RunExistsError, RunFinishedError
from storage.probe import probe
from storage.run import RunFolder
from storage.store import open_store
from tasks.algorithm_settings.own import OwnSettings
from tasks.columns import check_stored_as
from tasks.config import TrainConfig
from tasks.environments import make_pool
from tasks.own_probe import ask
from tasks.placement import check_clusters, check_supported
from tasks.policies import AUTO
from tasks.quorum import check_quorum
from tasks.replay_config import ReplayConfig
from tasks.replay_plan import in_environment_of_sources
from tasks.torch_environments import check_torch_environment

if TYPE_CHECKING:
    from tasks.config import RunConfig
    from tasks.policies import DistributionPolicy

_KINDS = {"discrete": "one of some choices as action", "box": "a vector as action"}

IfExists: TypeAlias = Literal["refuse", "resume"]


def check_placement(config: RunConfig) -> DistributionPolicy:
    """The configured policy, if it can be played with this environment and these numbers of tasks.

    Raises:
        ConfigError: names what is wrong, and what would be right.
    """
    policy = config.policy
    check_supported(policy)
    if policy.learners != config.placement.learn_tasks:
        raise ConfigError(
            f"placement.learn_tasks = {config.placement.learn_tasks}: policy '{policy.name}' has {policy.learners} "
            f"learner; leave it out, or choose a policy with several, such as multiple_learners"
        )
    if config.placement.env_tasks > 1 and all(role.fragments != {"env"} for role in policy.roles):
        raise ConfigError(
            f"placement.env_tasks = {config.placement.env_tasks}: policy '{policy.name}' has no tasks that only step "
            f"environments; leave it out, or choose single_learner_fine or environments"
        )
    if policy.acts != config.acts:
        raise ConfigError(
            f"placement.policy = '{policy.name}': it {'acts' if policy.acts else 'only learns from what is stored'}, "
            f"which is not what `penstock {'train' if config.acts else 'replay'}` does; leave it out"
        )
    if policy.pools == "torch":
        check_torch_environment(config.environment.id, config.environment.settings)
    check_quorum(config, policy)
    return policy


def check_reach(config: RunConfig) -> None:
    """Check that a new run's roles can have the clusters that they name.

    Raises:
        ConfigError: as `check_clusters`, or the roles are not known before a policy is chosen.
    """
    if config.placement.policy != AUTO or config.placement.roles:
        check_clusters(config.policy, config.cluster)
    elif config.cluster.schedulers:
        raise ConfigError(
            f"cluster.schedulers names {', '.join(sorted(config.cluster.schedulers))}, and placement.policy = '{AUTO}' "
            f"chooses the roles for one cluster; name a policy, or leave cluster.schedulers out"
        )


def check_start(config: RunConfig, if_exists: IfExists) -> int | None:
    """Check the configuration, the store, and that the run may begin or go on.

    Returns:
        The newest committed stage of a run that goes on.

    Raises:
        PenstockError: names what is wrong, and what would be right.
    """
    if config.placement.policy != AUTO or config.placement.roles:
        check_placement(config)
    root = open_store(config.store)
    if isinstance(config, ReplayConfig):
        config = in_environment_of_sources(root, config)
    pool = make_pool(config, 1)
    environment = pool.environment
    pool.close()
    own = ask(config).rows if isinstance(config.algorithm, OwnSettings) else None
    if isinstance(config, TrainConfig):
        check_stored_as(config, environment, own)
        kind, kinds = environment["action"]["kind"], config.algorithm.action_kinds
        if kind not in kinds:
            raise ConfigError(
                f"algorithm.name = '{config.algorithm.name}': it needs {_KINDS[kinds[0]]}, and {config.environment.id} "
                f"takes {_KINDS[kind]}; choose another algorithm, such as ppo"
            )
    probe(root)
    run = RunFolder(root, config.name) if config.name else None
    if run is None or not run.exists():
        check_reach(config)
        return None
    if if_exists == "refuse":
        raise RunExistsError(
            f"run '{run.name}' is in {root.url} already; `penstock resume {run.name}` goes on with it, or choose "
            f"another --name"
        )
    newest = run.log.newest()
    if newest and newest["finished"]:
        raise RunFinishedError(
            f"run '{run.name}' is finished ({newest['finished']}) with stage {newest['stage']}; start another, or look "
            f"at it with `penstock show {run.name}`"
        )
    return newest["stage"] if newest else None

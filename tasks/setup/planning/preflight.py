"""Checks a configuration before any process is started. Imports no torch."""

from __future__ import annotations

import math
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
from gymnasium.spaces import Box

from penstock import native
from penstock.native.adapters.one_array import OneArray
from penstock.native.kernel_level import UnknownLevelError, level
from penstock.native.teams.masks import permitted
from penstock.storage.errors import ConfigError
from penstock.tasks.data.replay.plan import in_environment_of_sources
from penstock.tasks.environments.factory import make_pool
from penstock.tasks.environments.header import loaded_header
from penstock.tasks.environments.torch.registry import check_torch_environment
from penstock.tasks.model.algorithms.custom_probe import probe_algorithm
from penstock.tasks.setup.config.algorithm_base import EncoderSettings, NetworkSettings, misread_images
from penstock.tasks.setup.config.custom_algorithm import CustomAlgorithmSettings
from penstock.tasks.setup.config.on_policy import MultiAgentSettings
from penstock.tasks.setup.config.replay import ReplayConfig
from penstock.tasks.setup.config.run import TrainConfig
from penstock.tasks.setup.config.shards import check_stored_as
from penstock.tasks.setup.distribution.dataflow import (
    check_agents,
    check_supported,
    crossings,
    is_stored,
    works_in_step,
)
from penstock.tasks.setup.distribution.policies import AUTO

if TYPE_CHECKING:
    from penstock.native import EnvironmentPool, EnvironmentSpec
    from penstock.storage.stores.protocol import Store
    from penstock.tasks.setup.config.cluster import ClusterSettings
    from penstock.tasks.setup.config.run import RunConfig
    from penstock.tasks.setup.distribution.policies import DistributionPolicy

_MOST_ROUND_BYTES = 64 << 30


def check_quorum(config: RunConfig, policy: DistributionPolicy) -> None:
    """Refuse a quorum below 1 if a round requires all of its shards.

    Raises:
        ConfigError: names the reason and a remedy.
    """
    quorum, tiles = config.distribution.quorum, config.environment.tiles
    if config.requires_full_round:
        return
    asked = f"distribution.quorum = {quorum:g}"
    if not config.has_actors:
        raise ConfigError(f"{asked}: a replay reads stored shards and waits for no actor; leave it out")
    if works_in_step(policy):
        raise ConfigError(
            f"{asked}: policy '{policy.name}' has members that wait for each other within a round, so a smaller "
            f"quorum saves no time; choose distribution.policy = 'single_learner_coarse', or quorum 1"
        )
    actors = policy.role_of("act")
    if actors.replicas != tiles:
        raise ConfigError(
            f"{asked}: {actors.replicas} act tasks share {tiles} tiles, and each acts its own one after the other, so "
            f"the last of them would be left out in every round; choose distribution.act_tasks = {tiles}, or larger "
            f"tiles (environment.envs_per_tile)"
        )
    if actors.needed != tiles:
        raise ConfigError(
            f"{asked}: distribution.min_act_tasks = {actors.needed} lets stages begin with fewer act tasks than the "
            f"{tiles} tiles, of which some would then be left out in every round; leave it out"
        )
    if config.shards_needed == tiles:
        raise ConfigError(
            f"{asked}: this requires all of a round's {tiles} shards; choose a smaller quorum, or more tiles (a "
            f"smaller environment.envs_per_tile)"
        )
    algorithm = probe_algorithm(config) if isinstance(config.algorithm, CustomAlgorithmSettings) else config.algorithm
    if algorithm.learns_from_window:
        raise ConfigError(
            f"{asked}: '{config.algorithm.name}' learns from a window of rounds, which must have the same size; choose "
            f"an algorithm without a window, such as ppo or impala, or quorum 1"
        )


def check_staleness(config: RunConfig, policy: DistributionPolicy) -> None:
    """Refuse `max_staleness` where learners don't take steps at a server, or can't take them independently.

    Raises:
        ConfigError: names the reason and a remedy.
    """
    if config.distribution.max_staleness is None:
        return
    asked = f"distribution.max_staleness = {config.distribution.max_staleness}"
    if policy.reduce != "parameter_server":
        raise ConfigError(
            f"{asked}: policy '{policy.name}' has no parameter server, to which learners could send gradients "
            f"independently; choose distribution.policy = 'central', or leave it out"
        )
    if policy.learners == 1:
        raise ConfigError(
            f"{asked}: one learner has no other to get ahead of; choose distribution.learn_tasks = 2 or more, or leave "
            f"it out"
        )
    name = f"algorithm.name = '{config.algorithm.name}'"
    if isinstance(config.algorithm, CustomAlgorithmSettings):
        prioritised = probe_algorithm(config).prioritised
    else:
        prioritised = getattr(config.algorithm, "priority_exponent", 0.0) > 0
    if prioritised:
        raise ConfigError(
            f"{asked}: {name} draws rows by priority, and all learners must add up a minibatch's priorities before "
            f"they draw the next; choose algorithm.priority_exponent = 0, or leave max_staleness out"
        )
    annealing = ("anneal_rounds", "anneal_minibatches")
    if annealed := next((name for name in annealing if getattr(config.algorithm, name, 0)), None):
        raise ConfigError(
            f"{asked}: algorithm.{annealed} counts optimizer steps, of which {policy.learners} learners take "
            f"{policy.learners} times as many in a round, so the learning rate would be annealed too soon; choose "
            f"algorithm.{annealed} = 0, or leave max_staleness out"
        )
    if getattr(config.algorithm, "target_kl", 0.0):
        raise ConfigError(
            f"{asked}: algorithm.target_kl ends a round for all learners at the same minibatch, and these are at "
            f"different ones; choose algorithm.target_kl = 0, or leave max_staleness out"
        )


def check_distribution(config: RunConfig) -> DistributionPolicy:
    """Return the configured policy if the runtime supports it with this environment and these numbers of tasks.

    Raises:
        ConfigError: names the mistake and a remedy.
    """
    policy = config.make_policy()
    check_supported(policy)
    if policy.learners != config.distribution.learn_tasks:
        raise ConfigError(
            f"distribution.learn_tasks = {config.distribution.learn_tasks}: policy '{policy.name}' has "
            f"{policy.learners} learner; leave it out, or choose a policy with several, such as multiple_learners"
        )
    if config.distribution.env_tasks > 1 and all(role.fragments != {"env"} for role in policy.roles):
        raise ConfigError(
            f"distribution.env_tasks = {config.distribution.env_tasks}: policy '{policy.name}' has no tasks that only "
            f"step environments; leave it out, or choose single_learner_fine or environments"
        )
    if config.has_actors and not policy.has_actors and config.distribution.roles:
        raise ConfigError(
            "distribution.roles: no role has the fragments env, act and collect, which a training run needs; add a "
            "role that has them, or learn from stored shards with `penstock replay`"
        )
    if policy.has_actors != config.has_actors:
        does = "has actors" if policy.has_actors else "only learns from stored shards"
        raise ConfigError(
            f"distribution.policy = '{policy.name}': it {does}, unlike "
            f"`penstock {'train' if config.has_actors else 'replay'}`; leave it out"
        )
    if policy.pools == "torch":
        with loaded_header(config.environment) as environment_id:
            check_torch_environment(environment_id, config.environment.settings)
    check_league(config, policy)
    if policy.reduce == "agents":
        check_owners(config, policy)
    check_quorum(config, policy)
    check_staleness(config, policy)
    return policy


def check_league(config: RunConfig, policy: DistributionPolicy) -> None:
    """Check that the environment of a run that plays against itself is a game of two, and is stepped on CPUs.

    Raises:
        ConfigError: names the mistake and a remedy.
    """
    if not isinstance(config, TrainConfig) or not config.league.plays_itself:
        return
    asked = f"league.opponents = '{config.league.opponents}'"
    if policy.pools == "torch":
        raise ConfigError(
            f"{asked}: policy '{policy.name}' steps environments on the learner's device, where there is no other "
            f"player; choose another policy, such as multiple_learners"
        )
    if "turns" in config.environment.settings:
        raise ConfigError(
            f"{asked}: environment.settings.turns = {config.environment.settings['turns']!r} is set by the run itself; "
            f"leave it out"
        )
    with loaded_header(config.environment) as environment_id:
        types = native.setting_types(environment_id) if native.is_native(environment_id) else {}
    if types.get("turns") is not bool:
        raise ConfigError(
            f"{asked}: environment.id = '{config.environment.label}' has no setting 'turns', by which a game of two "
            f"lets the caller move for both players; choose ConnectFour-v0 or a header that has it, or "
            f"league.opponents = 'environment'"
        )
    with closing(make_pool(config, 1)) as pool:
        limit = pool.environment["max_episode_steps"]
    if limit is not None:
        # What follows the learner's move is what the other player sees, from which its return can't be continued.
        raise ConfigError(
            f"{asked}: episodes of environment.id = '{config.environment.label}' are cut after {limit} moves of both "
            f"players (max_episode_steps of its Info), expected none; have the game end by its own rules"
        )


def check_owners(config: RunConfig, policy: DistributionPolicy) -> None:
    """Check that every agent's parameters are its own, and that each has a learner.

    Raises:
        ConfigError: agents share parameters, a loss trains those of agents with several learners, or as `check_agents`.
    """
    algorithm = config.algorithm
    custom = probe_algorithm(config) if isinstance(algorithm, CustomAlgorithmSettings) else None
    shared = custom.shared if custom else "" if algorithm.parts_agents else "its agents, if any, share all parameters"
    if shared:
        raise ConfigError(
            f"algorithm.name = '{algorithm.name}': {shared}, and learners of policy '{policy.name}' own agents, each "
            f"with parameters of its own; choose mappo or ippo with algorithm.shared_parameters = false, or another "
            f"policy, such as multiple_learners"
        )
    with closing(make_pool(config, 1)) as pool:
        agents = pool.environment["agents"]
    check_agents(policy, config.environment.id, agents, custom.loss_agents if custom else ())


def check_reach(config: RunConfig, policy: DistributionPolicy | None) -> None:
    """Check that a new run's roles may run on the clusters that the settings name.

    Raises:
        ConfigError: as `check_clusters`, or the roles are unknown because `policy` is not chosen yet.
    """
    if policy is not None:
        check_clusters(policy, config.cluster)
    elif config.cluster.schedulers:
        raise ConfigError(
            f"cluster.schedulers names {', '.join(sorted(config.cluster.schedulers))}, and distribution.policy = "
            f"'{AUTO}' chooses the roles for one cluster; name a policy, or leave cluster.schedulers out"
        )


def check_environment(root: Store, config: RunConfig) -> str:
    """Check that the environment can be made, and that the algorithm and the shards' columns fit it.

    Returns:
        Why a new run is refused where a stored one goes on, with a remedy; '' if it is not.

    Raises:
        PenstockError: names the mistake and a remedy.
    """
    return check_acting(in_environment_of_sources(root, config) if isinstance(config, ReplayConfig) else config)


def check_acting(config: RunConfig) -> str:
    """Check a configuration that has its environment as `check_environment` does, whose result and errors it has."""
    with closing(make_pool(config, 1)) as pool:
        environment = pool.environment
        unfit_if_new = misread_images(config.algorithm, environment) or _unread_texts(config, pool)
        if isinstance(config, TrainConfig):
            _check_round_bytes(config, environment)
        if pool.restores_by_replay:
            _try_one_step(config, pool)
        _check_categories(config, pool)
    custom = probe_algorithm(config).rows if isinstance(config.algorithm, CustomAlgorithmSettings) else None
    if isinstance(config, TrainConfig):
        check_stored_as(config, environment, custom)
    return unfit_if_new


def _unread_texts(config: RunConfig, pool: EnvironmentPool) -> str:
    """Say which texts the environment observes; '' if none: the numbers of their characters mean nothing."""
    space = pool.single_observation_space
    if not isinstance(space, OneArray) or not space.texts:
        return ""
    return (
        f"environment: {config.environment.id} observes text ({', '.join(map(repr, space.texts))}), which no network "
        f"here reads; of a Dict, name the other keys to gymnasium.wrappers.FilterObservation (filter_keys) in "
        f"environment.wrappers, or choose an id whose entry point encodes the text as a Box, with "
        f"gymnasium.wrappers.TransformObservation"
    )


def _check_round_bytes(config: TrainConfig, environment: EnvironmentSpec) -> None:
    """Refuse tiles whose observations of one round no machine holds.

    Raises:
        ConfigError: names the settings and the bytes.
    """
    steps, envs = config.schedule.round_steps, config.environment.envs_per_tile
    spec = environment["observation"]
    nbytes = steps * envs * math.prod(spec["shape"]) * np.dtype(spec["dtype"]).itemsize
    if nbytes > _MOST_ROUND_BYTES:
        raise ConfigError(
            f"schedule.round_steps = {steps:,} and environment.envs_per_tile = {envs:,}: a round of a tile would hold "
            f"{nbytes / 2**30:,.0f} GiB of observations, expected {_MOST_ROUND_BYTES >> 30} at most; choose shorter "
            f"rounds or smaller tiles"
        )


def _try_one_step(config: RunConfig, pool: EnvironmentPool) -> None:
    """Reset another library's environment and step it once: some accept an argument that they can't step with.

    Raises:
        ConfigError: it fails.
    """
    try:
        observed, _ = pool.reset(seed=0)
        pool.action_space.seed(0)
        pool.step(permitted(pool.environment, observed, pool.action_space.sample()))
    except Exception as error:
        cause = error.__cause__ or error
        raise ConfigError(
            f"environment: {config.environment.id} was made with the settings {dict(config.environment.settings)}, and "
            f"failed in its first step ({type(cause).__name__}: {cause}); correct the settings, or the environment"
        ) from error


def _check_categories(config: RunConfig, pool: EnvironmentPool) -> None:
    """Refuse grids of cells whose bounds or first observation have a number that is none of the categories.

    Bounds that are those of the leaf's type, such as 0 and 255, say nothing of categories.

    Raises:
        ConfigError: names the leaf, its numbers and those expected.
    """
    algorithm = config.algorithm
    if not isinstance(algorithm, (NetworkSettings, EncoderSettings, MultiAgentSettings)):
        return
    if algorithm.network != "leaves" or not algorithm.cells:
        return
    (seen, _), space, start = pool.reset(seed=0), pool.single_observation_space, 0
    assert isinstance(space, Box)
    for leaf in pool.environment["observation"]["leaves"]:
        width = sum(leaf["sizes"]) or math.prod(leaf["shape"])
        own, start = slice(start, start + width), start + width
        if leaf["name"] not in algorithm.cells or leaf["kind"] == "choice":
            continue
        sizes, of_type = algorithm.cells[leaf["name"]], np.iinfo(leaf["dtype"])
        low, high = space.low[own], space.high[own]
        declared = np.where(low > of_type.min, low, 0), np.where(high < of_type.max, high, 0)
        numbers = np.stack([*declared, seen[0][own]]).reshape(-1, len(sizes))
        for channel, (size, least, most) in enumerate(zip(sizes, numbers.min(0), numbers.max(0), strict=True)):
            if not 0 <= least <= most < size:
                raise ConfigError(
                    f"algorithm.cells.{leaf['name']} = {list(sizes)}: in channel {channel} of the leaf "
                    f"'{leaf['name']}', {config.environment.id} has numbers from {least:g} to {most:g} by its bounds "
                    f"or in its first observation, expected categories from 0 to {size - 1}; correct their number, or "
                    f"leave it out"
                )


def check_device(config: RunConfig) -> None:
    """Refuse an unknown level of kernels, and a CUDA device if workers run on this machine and torch finds none here.

    Raises:
        ConfigError: names a remedy.
    """
    try:
        level()
    except UnknownLevelError as error:
        raise ConfigError(str(error)) from error
    if config.distribution.device != "cuda" or config.cluster.scheduler or config.cluster.schedulers:
        return
    import torch  # noqa: PLC0415  (its import takes seconds, and only this setting needs it before the start)

    if not torch.cuda.is_available():
        raise ConfigError(
            f"distribution.device = 'cuda': torch {torch.__version__} finds no CUDA device on this machine; choose "
            f"device 'auto', which takes one where there is one, or workers that have one (cluster.scheduler)"
        )


def check_clusters(policy: DistributionPolicy, cluster: ClusterSettings) -> None:
    """Refuse roles on several Dask clusters that exchange more than storage carries.

    Raises:
        ConfigError: an unknown role is named, or roles that communicate within a round are on several clusters.
    """
    known = [role.name for role in policy.roles]
    unknown = sorted(set(cluster.schedulers) - set(known))
    if unknown:
        raise ConfigError(
            f"cluster.schedulers names {', '.join(unknown)}: policy '{policy.name}' has the roles {', '.join(known)}"
        )
    for item in crossings(policy):
        roles = dict.fromkeys((item.source.name, item.target.name))
        where = {address for role in roles for address in cluster.schedulers_of(role)}
        if not is_stored(item) and len(where) > 1:
            raise ConfigError(
                f"cluster.schedulers puts {' and '.join(roles)} on "
                f"{', '.join(sorted(address or 'this machine' for address in where))}, and policy '{policy.name}' has "
                f"'{item}'. Only shards and snapshots cross clusters, through storage: name one scheduler for "
                f"{' and '.join(roles)}, or choose single_learner_coarse"
            )

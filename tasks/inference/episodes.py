"""Plays episodes with a policy in its run's environment, and hands every picture on."""

from __future__ import annotations

import warnings
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.storage.errors import ConfigError
from penstock.storage.runs.run import stored_settings
from penstock.tasks.analysis.drawing import drawn, drawn_pool
from penstock.tasks.seeds import Purpose, environment_seeds
from penstock.tasks.setup.config.loading import merge
from penstock.tasks.setup.config.replay import build_stored_config

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import numpy as np
    from numpy.typing import NDArray

    from penstock.tasks.inference.policy import Policy

_PICTURES_PER_SECOND = 30.0


@dataclass(frozen=True, slots=True)
class Episode:
    """An episode that was played."""

    number: int
    episode_return: float
    """Sum of rewards; of several agents, of the mean of theirs."""
    steps: int
    ended: bool
    """False if it was cut after the given number of steps."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of an environment before a step."""

    pixels: NDArray[np.uint8]
    """`[height, width, 3]`, or `[height, width]` of grey values."""
    per_second: float
    """Pictures a second of the environment's own time."""


def play_episodes(
    policy: Policy, episodes: int, *, seed: int, deterministic: bool = True, max_steps: int = 10_000
) -> Generator[Picture | Episode]:
    """Play episodes one after the other; yield each picture as it is drawn, and each episode when it is over.

    Greedy episodes are those of `penstock evaluate --key SEED`, which is given the same number of them.

    Args:
        policy: with the settings of its run, whose environment is made.
        episodes: number of episodes.
        seed: selects the set of environment seeds.
        deterministic: act greedily, otherwise by sampling.
        max_steps: an episode is cut after so many.

    Raises:
        ConfigError: the environment can't be drawn, or gives what the policy refuses; names the reason.
    """
    config = build_stored_config(merge(stored_settings(policy.settings), {"store": policy.origin.store}))
    seeds = environment_seeds(config.seed, Purpose.EVALUATION, seed, env_ids=range(episodes))
    environment = config.environment
    differ = len(environment.blocks) > 1 or any(isinstance(value, list) for value in environment.settings.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # third-party renderers emit many warnings
        for numbers in [range(number, number + 1) for number in range(episodes)] if differ else [range(episodes)]:
            pool, picture = drawn_pool(config, numbers.start)
            with closing(pool):
                for number in numbers:
                    pool.reset_ids(seeds[number : number + 1])
                    yield from _episode(policy, pool, picture, number, deterministic=deterministic, max_steps=max_steps)


def _episode(
    policy: Policy,
    pool: Any,
    picture: Callable[[], NDArray[np.uint8]],
    number: int,
    *,
    deterministic: bool,
    max_steps: int,
) -> Generator[Picture | Episode]:
    """Play an episode that was just begun."""
    policy.reset()
    per_second = float(getattr(pool, "metadata", {}).get("render_fps") or _PICTURES_PER_SECOND)
    steps, episode_return, ended = 0, 0.0, False
    while not ended and steps < max_steps:
        yield Picture(drawn(picture), per_second)
        try:
            action = policy.act_stored(pool.observation, deterministic=deterministic)
        except ValueError as error:
            name = policy.environment.name
            raise ConfigError(f"episode {number + 1} of {name} can't go on after {steps} steps: {error}") from error
        _, reward, terminated, truncated, _ = pool.step(action)
        steps += 1
        episode_return += float(reward[0].mean())
        ended = bool(terminated[0] or truncated[0])
    yield Episode(number, episode_return, steps, ended)

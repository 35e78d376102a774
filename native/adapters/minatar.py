"""MinAtar (Young and Tian 2019, arXiv 1903.03176): its Gymnasium environments, made to be functions of their seeds.

MinAtar is licensed under GPL. It is an optional extra that is imported here, when such a pool is made, and nothing
of it is shipped with this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium

from penstock.native.adapters.gymnasium import gymnasium_source, gymnasium_types
from penstock.native.adapters.one_array import PLAIN, Encoding
from penstock.native.pool.arguments import folded_seed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.native.adapters.vector_env import WrappedSource

PREFIX = "MinAtar/"

_SEED_BITS = 32


def minatar_source(
    env_id: str,
    num_envs: int,
    num_threads: int,
    max_episode_steps: int | None,
    settings: Mapping[str, Any],
    encoding: Encoding = PLAIN,
) -> WrappedSource:
    """Return a game as `MinAtar/Breakout-v1`, with the settings of `gymnasium_source`; wrappers may give it leaves.

    Raises:
        ValueError: MinAtar is not installed, or as `gymnasium_source`.
    """
    _be_registered(env_id)
    usual = env_id, num_envs, num_threads, max_episode_steps, settings
    return gymnasium_source(*usual, encoding=encoding, own_wrappers=(SeededGame,))


def minatar_ids() -> list[str]:
    """Return the ids of all games; ValueError if MinAtar is not installed."""
    _be_registered(PREFIX)
    return [name for name in gymnasium.registry if name.startswith(PREFIX)]


def minatar_types(env_id: str) -> dict[str, type | None]:
    """Return the names and types of a game's settings; ValueError if MinAtar is not installed."""
    _be_registered(env_id)
    return gymnasium_types(env_id)


class SeededGame(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A game whose episodes are a function of their seed: MinAtar may repeat the last action of the episode before."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; with a seed, no action comes before it."""
        if seed is not None:
            seed = folded_seed(seed, _SEED_BITS)
            self.env.unwrapped.game.last_action = 0  # type: ignore[attr-defined]
        return self.env.reset(seed=seed, options=options)


def _be_registered(env_id: str) -> None:
    try:
        from minatar.gym import register_envs  # noqa: PLC0415
    except ImportError as error:
        raise ValueError(
            f"{env_id} needs MinAtar (GPL), and importing it failed: {error}. Install it with: pip install "
            f"'penstock-rl[minatar]'"
        ) from error
    if f"{PREFIX}Breakout-v1" not in gymnasium.registry:
        register_envs()
